"""What people look at: the page of a run and of a sweep, and figures."""
