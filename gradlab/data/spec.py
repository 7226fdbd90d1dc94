"""The shapes of a data set, which a model must fit."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Spec:
    """The shapes of one sample and of one answer.

    inputs:  "tokens" (T,) integers, "vectors" (D,), "images" (C, H, W) or "sequences" (T, F) floats; or "episodes" ()
             integers, the seeds of episodes with observations (D,).
    targets: "classes" () integers, "tokens" (T,) integers, or "values" (K,) or (...) floats; or "returns" of episodes.
    outputs: number of classes, size of the vocabulary, number of values of a sample K, or of actions.
    """

    inputs: str
    shape: tuple[int, ...]
    targets: str
    outputs: int
    vocabulary: int = 0
    """Number of distinct input tokens or seeds; 0 where inputs are neither."""
    environment: str = ""
    """Name of the environment that episodes are played in."""
    single: bool = False
    """Whether the user's own data have one value a sample, () and not (1,): a loss of the user's own gets them so, and
    for mse and bce a model may return (B,) too."""
    whole_output: bool = False
    """Whether the loss gets all that a model=custom returns, and not its logits alone."""
