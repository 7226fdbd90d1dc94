"""Advice for the next run: max_norm, learning rate, accumulation."""
