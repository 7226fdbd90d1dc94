"""Runs in the terminal: lists, verdicts and curves."""
