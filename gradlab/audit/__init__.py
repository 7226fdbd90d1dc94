"""The red flags of a training script, read from its text: nothing is imported, nothing runs. `python -m gradlab.audit`."""
