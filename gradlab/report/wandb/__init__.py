"""W&B Reports."""
