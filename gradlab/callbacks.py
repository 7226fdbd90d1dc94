"""The name under which the files of runs know the callback of a sweep."""

from gradlab.cli.sweep_end import SweepEnd

__all__ = ["SweepEnd"]
