"""What `--fix` changes: statements moved, added or renamed so that a mistake is gone."""
