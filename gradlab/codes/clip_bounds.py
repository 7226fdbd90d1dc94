"""Values of max_norm that are seldom intended."""

from __future__ import annotations


def extreme(max_norm: float) -> bool:
    """Every gradient is clipped, or none ever is; from a million on, clipping is a way to measure the norm."""
    return 0 < max_norm <= 0.02 or 1000 <= max_norm < 1e6


def tight(max_norm: float) -> bool:
    """Too small for a ResNet; 0 and less turn clipping off."""
    return 0 < max_norm <= 1
