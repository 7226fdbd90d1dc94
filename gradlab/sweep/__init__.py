"""Sweeps: grids of jobs, launchers, searches round by round, lanes, resuming, results and maps.

grid: the jobs of a sweep, and their configurations. launchers: jobs in other processes, and round by round.
search: where an edge of stability lies, and maps refined around it. maps: figures and recommendations.
vectorized: jobs trained together as lanes; `lane.py` and `lane_update.py` are where a lane differs from a run.
"""
