"""Bounds that fields of several groups share."""

MOST_AT_ONCE = 1024
"""Threads, or processes, of one kind: a system that can start no more of them ends the program."""
