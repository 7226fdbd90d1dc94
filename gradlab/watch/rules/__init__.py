"""The rules that detect mistakes. If it is not certain that something is wrong, a rule yields nothing."""
