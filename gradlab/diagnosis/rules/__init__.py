"""The rules: each reads measurements and returns findings."""
