"""Data sets, one in each file."""
