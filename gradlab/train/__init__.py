"""The trainer: building a run from its configuration, epochs, evaluation, checkpoints."""
