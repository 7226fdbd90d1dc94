"""One optimizer in a watched loop: what its gradients hold now, and what was done with them since its last step."""

from __future__ import annotations

from dataclasses import InitVar, dataclass, field
from typing import Any

import torch

from gradlab.watch import byhand
from gradlab.watch.events import Backward, Clip, Move
from gradlab.watch.parts import kind
from gradlab.watch.where import Site

SAMPLED = 16
"""Gradients that are looked at, by version and never by value, to see whether anybody has written to them."""


@dataclass(eq=False)
class Follower:
    """What is known of one optimizer; `session` tells it what happens, `rules` look at it."""

    index: int
    optimizer: torch.optim.Optimizer
    named: InitVar[dict[torch.Tensor, str]]
    held: list[Backward] = field(default_factory=list)
    """What the gradients are the sum of."""
    dropped: list[tuple[Backward, Site | None]] = field(default_factory=list)
    """Since the last step: cleared before any optimizer stepped on it, and where it was cleared."""
    clips: list[Clip] = field(default_factory=list)
    """These and `scheduled` since the last step."""
    scheduled: list[Move] = field(default_factory=list)
    tokens: list[list[Any]] = field(default_factory=list)
    """Of the latest updates, whether the graphs of their losses are alive."""
    attempts: int = 0
    by_hand: bool = False
    """Whether somebody has written to the gradients in a way that was not followed, since the last step."""
    dropless: int = 0
    """Steps before which nothing was dropped."""
    dropped_last: int = 0
    """How many were before the latest step."""
    length: int | None = None
    """Micro-batches of an update, known from a full one whose losses were divided by it."""
    unscaled: bool = False
    """Whether the gradients are, since the loss scale was in them."""
    unscaled_at: int = 0
    """Backward passes in them when they were unscaled."""
    scale_calls: int = 0
    """Of the scaler, up to the last step."""
    stage: str = "ready"
    """What the scaler thinks of it: ready, unscaled or stepped."""
    stepping: bool = False
    trying: bool = False
    """Whether a step has begun, and not ended."""
    state: list[int] | None = None
    """What the optimizer remembered after the latest backward pass, by version."""
    hooked: bool = False
    """Whether its latest step has called hooks."""
    unhooked: int = 0
    """Steps that were noticed afterwards."""
    inner: int = 0
    """Steps that it calls in its turn."""
    closure: bool = False
    """Whether the step under way calls a closure."""
    inside: list[Backward] = field(default_factory=list)
    """Backward passes of the step under way, in its closure."""
    clamped: bool = False
    """Whether a call that clips values is, or was, the last that wrote to the gradients."""
    looks: int = 0
    cleared_by_hand: bool = True
    backwards: int = 0
    """Passes that added to its gradients, since the beginning."""
    unscaled_site: Site | None = None
    updated_site: Site | None = None
    """Where the scaler was updated though the optimizer has not stepped on what its gradients hold."""
    stepped_site: Site | None = None
    """Where the scaler stepped last."""
    locked: bool = False
    """Whether an overflow was given up without the scaler, since its last update."""
    reduced: bool = False
    """Whether somebody has summed the gradients over ranks, since the last step."""
    kept: tuple[torch.Tensor, torch.Tensor] | None = None
    """A small parameter and its gradient after the latest backward pass, to tell what is done to it by hand."""
    shrunk: list[float] = field(default_factory=list)
    """By what numbers all gradients were multiplied by hand, since the last step."""
    heads: list[Site | None] = field(default_factory=list)
    """Where schedules moved before anything else happened."""

    others: list[str] = field(default_factory=list)
    """Optimizers that were not named and move the same parameters, and where."""

    def __post_init__(self, named: dict[torch.Tensor, str]) -> None:
        self.find(named)
        self.mark = self.versions()
        self.by_hand = any(v != -1 for v in self.mark)

    def find(self, named: dict[torch.Tensor, str]) -> None:
        """The parameters that are trained, with names: those of the models, where they are theirs."""
        self.params = self.trained() or [p for group in self.optimizer.param_groups for p in group["params"]]
        if not self.params:
            raise ValueError(f"watch: optimizer is {kind(self.optimizer)} without parameters")
        self.names = [named.get(p, f"parameter{i}") for i, p in enumerate(self.params)]
        every = max(1, -(-len(self.params) // SAMPLED))
        self.sample = self.params[::every] + self.params[-1:]
        self.spread = any(hasattr(p, "_local_tensor") for p in self.sample)
        self.small = min(self.params, key=lambda p: p.numel() or 1 << 60)
        self.ids = {id(p) for p in self.params}
        self.mark = self.versions()

    def changed(self) -> bool:
        """Whether parameters were frozen or replaced, or are trained that were not."""
        now = self.trained()
        return len(now) != len(self.params) or any(p is not q for p, q in zip(now, self.params, strict=True))

    def trained(self) -> list[torch.Tensor]:
        """Parameters; those of which another rank holds all elements are not of this one's."""
        return [p for g in self.optimizer.param_groups for p in g["params"] if p.requires_grad and p.numel()]

    def versions(self) -> list[int]:
        """Of the sampled gradients; -1 where there is none."""
        grads = [p.grad for p in self.sample]
        if self.spread:
            grads = [getattr(g, "_local_tensor", g) for g in grads]
        return [-1 if g is None else id(g) + g._version for g in grads]

    def settle(self) -> None:
        """What has happened to the gradients up to now was followed."""
        self.mark = self.versions()

    def look(self) -> list[int]:
        """Notice whether anybody wrote to the gradients since the last call that was followed; returns versions."""
        now = self.versions()
        if self.clamped:
            self.clamped, self.mark = False, now
        elif now != self.mark:
            if all(v == -1 for v in now) or (self.held and not self.new and self.zeros()):
                self.clear(None)
            else:
                self.by_hand = True
                self.compare()
            self.mark = now
        return now

    def keep(self) -> None:
        """A backward pass is over."""
        self.kept = byhand.kept(self.small, self.spread)

    def compare(self) -> None:
        """Gradients were written to by hand: were they multiplied by one number?"""
        if self.new and len(self.shrunk) < 2 and (ratio := byhand.ratio(self.kept)) is not None:
            self.shrunk.append(ratio)

    def forget(self) -> None:
        """The loop went on unwatched for a while."""
        self.held, self.dropped, self.clips, self.scheduled, self.shrunk = [], [], [], [], []
        self.unscaled = self.stepping = self.trying = self.closure = self.clamped = self.reduced = self.locked = False
        self.stage, self.kept, self.updated_site = "ready", None, None
        self.mark = self.versions()
        self.by_hand = any(v != -1 for v in self.mark)

    def zeros(self) -> bool:
        """Whether gradients that somebody wrote to are zeros. Looked at three times at most, as it waits."""
        if self.looks < 3:
            self.looks += 1
            grads = [p.grad for p in self.sample if p.grad is not None]
            self.cleared_by_hand = not any(bool(g.any()) for g in grads[-2:])
        return self.cleared_by_hand

    @property
    def new(self) -> list[Backward]:
        """What is in the gradients and no optimizer has used."""
        return [b for b in self.held if not b.used]

    @property
    def version(self) -> int:
        return self.sample[0]._version

    def unmoved(self, b: Backward) -> bool:
        """Whether the weights are what they were when a backward pass ran."""
        return b.versions.get(self.index) == self.version

    def clear(self, site: Site | None) -> None:
        """The gradients were set to zero or None."""
        if not self.stepping:
            self.dropped += [(b, site) for b in self.held if not b.used and self.unmoved(b)]
        self.held, self.unscaled, self.clips, self.shrunk = [], False, [], []
        self.by_hand, self.updated_site = False, None

    def stepped(self) -> None:
        """The optimizer has stepped, or was held back."""
        for b in self.held:
            b.used.add(self.index)
        self.dropless += not self.dropped
        self.dropped_last = len(self.dropped)
        self.dropped, self.clips, self.scheduled, self.shrunk = [], [], [], []
        self.by_hand = self.reduced = False
        self.updated_site = None
        self.settle()
