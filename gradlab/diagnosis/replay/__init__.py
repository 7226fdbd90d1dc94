"""Run a failing update again and find the first operation whose result is not finite."""
