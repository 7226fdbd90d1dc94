"""The commands: arguments, help, `main -> compose -> run`."""
