"""Where measurements go: local files always, and services that a user names."""
