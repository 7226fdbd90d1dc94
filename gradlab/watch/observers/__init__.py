"""One module for each kind of call that a watch observes."""
