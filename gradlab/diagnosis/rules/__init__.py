"""The rules: each reads measurements and returns a finding or none. One class each, in any file of this folder."""
