"""The typed configuration: its schema, composing it, and what a remedy makes of it."""
