"""The text that is audited: files, notebooks, settings, comments that silence, and modules of the project."""
