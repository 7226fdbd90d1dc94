"""What a data set offers, and what a model must fit."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Spec:
    """The shapes of one sample and of one answer.

    inputs:  "tokens" (T,) integers, "vectors" (D,), "images" (C, H, W) or "sequences" (T, F) floats.
    targets: "classes" () integers, "tokens" (T,) integers, or "values" (K,) floats.
    outputs: number of classes, size of the vocabulary, or number of values K.
    """

    inputs: str
    shape: tuple[int, ...]
    targets: str
    outputs: int
    vocabulary: int = 0
    """Number of distinct input tokens; 0 where inputs are not tokens."""
