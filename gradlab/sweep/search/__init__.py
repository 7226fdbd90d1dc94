"""Sweeps that choose their jobs from finished ones: boundaries and refined maps."""
