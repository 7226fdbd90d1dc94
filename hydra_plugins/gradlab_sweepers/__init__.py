"""Sweepers that decide from finished runs which to make next; the work is in gradlab/sweep/."""
