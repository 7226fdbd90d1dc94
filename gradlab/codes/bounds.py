"""Bounds of clipping that are seldom meant."""

from __future__ import annotations


def extreme(max_norm: float) -> bool:
    """Every update is cut, or none ever is; above a million it is meant to measure only."""
    return 0 < max_norm <= 0.02 or 1000 <= max_norm < 1e6


def tight(max_norm: float) -> bool:
    """For a ResNet."""
    return max_norm <= 1
