"""hydra/launcher=vectorized; the work is in gradlab/sweep/."""
