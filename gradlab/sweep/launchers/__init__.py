"""Jobs of a sweep in other processes."""
