"""HTML pages of runs, sweeps and comparisons."""
