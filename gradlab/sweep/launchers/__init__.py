"""Jobs of a sweep in other processes, and round by round."""
