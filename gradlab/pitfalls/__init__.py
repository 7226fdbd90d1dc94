"""`pitfall=`: wrong implementations of one function of the update, run for real."""
