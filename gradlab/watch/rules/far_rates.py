"""Rules about learning rates that are far from each other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from gradlab.watch.events import Violation
from gradlab.watch.making_lines import RATE, made_at, number_at
from gradlab.watch.tracking.initial_weights import InitialWeights, in_even_layers
from gradlab.watch.tracking.optimizer_tracker import OptimizerTracker, listed

LONG = 100
"""Updates after which weights with a usual learning rate are others than at the start."""
TIMES = 100
"""Quotient of two learning rates of one kind of optimizer."""
OPPOSED = 300
"""The same where losses need not fall: those of two time scales are further apart."""
STILL, FURTHER = 0.03, 10
"""Relative move of weights that are what they were, and how many times as far the others have moved at least."""


@dataclass
class Part:
    """Weights with one learning rate."""

    tracker: OptimizerTracker
    rate: float
    moved: float
    """Relative, since the start."""
    weights: list[Tensor]

    def is_new(self, initial: InitialWeights, layered: set[int]) -> bool:
        """Whether most of it is as a layer draws it."""
        sizes = [p.numel() for p in self.weights]
        return 2 * sum(p.numel() for p in self.weights if initial.is_as_drawn(p, layered)) >= sum(sizes) > 0


def at_end(
    trackers: Sequence[OptimizerTracker],
    initial: InitialWeights,
    models: Sequence[nn.Module],
    need_not_fall: Callable[[OptimizerTracker], str],
) -> Iterator[tuple[OptimizerTracker, Violation]]:
    """The loop is over: has a part stayed at its initial weights, at a rate far below that of another one?"""
    parts = [part for t in trackers if t.attempts >= LONG for part in parts_of(t, initial)]
    if not parts:
        return
    for part in parts:
        times = OPPOSED if need_not_fall(part.tracker) else TIMES
        higher = [
            each
            for each in parts
            if type(each.tracker.optimizer) is type(part.tracker.optimizer) and each.rate > part.rate
        ]
        graded = any(each.rate < times * part.rate for each in higher)  # from layer to layer, as is meant
        others = [each for each in higher if each.moved > max(STILL, FURTHER * part.moved)]
        if others and not graded and part.moved < STILL and part.is_new(initial, in_even_layers(models)):
            tracker, rate = part.tracker, max(each.rate for each in others)
            names = listed([tracker.name_of(p) for p in part.weights])
            name = "learning-rate-far-lower"
            detail = f"{part.rate:.3g} for {names}, {rate:.3g} for others; they have moved by {part.moved:.1%}"
            yield tracker, number_at(part.rate, made_at(name, tracker.optimizer, tracker.step_site, detail, part=RATE))


def parts_of(tracker: OptimizerTracker, initial: InitialWeights) -> Iterator[Part]:
    moves = initial.moves(tracker)
    for group in tracker.optimizer.param_groups:
        rate = tracker.rates.peaks.get(id(group), 0.0)
        rises = tracker.rates.changes > 2 and group["lr"] >= rate  # its warm-up goes on
        weights = [p for p in group["params"] if p.requires_grad and id(p) in moves]
        if rate > 0 and weights and not rises:
            moved, size = (sum(moves[id(p)][i] for p in weights) for i in (0, 1))
            yield Part(tracker, rate, (moved / size) ** 0.5 if size else 0.0, weights)
