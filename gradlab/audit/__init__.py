"""`python -m gradlab.audit`: the red flags of a training script, read from its text; nothing runs."""
