"""Weights & Biases."""
