"""The rules: each a function that finds one mistake, registered for its code in `gradlab.codes` by a decorator."""
