"""Remedies: candidates for a verdict, and paired comparisons of runs."""
