"""Sweeps: grids, jobs in other processes, going on after an interruption, results and maps."""
