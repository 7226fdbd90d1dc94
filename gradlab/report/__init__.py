"""Views of runs and sweeps: pages, figures, the terminal, W&B Reports."""
