"""Sweeps: their results, and maps of them."""
