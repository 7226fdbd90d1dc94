"""What is known of a watched loop, shared by those that listen to its calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from gradlab.measure.monitor import Monitor
from gradlab.watch import rules
from gradlab.watch.events import Backward
from gradlab.watch.faults import Faults, Seen
from gradlab.watch.follower import Follower
from gradlab.watch.output import Output
from gradlab.watch.parts import gathers, named
from gradlab.watch.place import Place
from gradlab.watch.scale import Scale
from gradlab.watch.where import Site

BEHIND = {"clip-after-step", "update-missing"}
"""Known when the step that they are about is counted already."""


@dataclass
class Passes:
    """Forward passes since the latest backward pass."""

    count: int = 0
    half: bool = False
    """Whether the latest was in fp16, as far as autocast tells."""
    synced: bool | None = None
    """Whether DDP meant to average after the latest; None without DDP."""
    site: Site | None = None
    """Of the latest; looked up at the beginning only."""
    raw: Site | None = None
    """Where the module inside of DDP was called in its stead."""


class Loop:
    """Its models, optimizers and loss scale; who looks at what, and what was found."""

    def __init__(
        self,
        models: list[nn.Module],
        optimizers: Sequence[torch.optim.Optimizer],
        scaler: Any,
        schedules: list[Any],
        place: Place,
        monitor: Monitor,
        faults: Faults,
    ) -> None:
        self.models, self.schedules, self.place, self.monitor = models, schedules, place, monitor
        self.scale, self.faults, self.passes = Scale(scaler), faults, Passes()
        self.ddp: Any = next((m for m in models if hasattr(m, "require_backward_grad_sync")), None)
        self.gathers = gathers(models)
        self.followers: list[Follower] = []
        self.outputs: list[Output] = []
        self.of: dict[int, Follower] = {}
        """id of a parameter -> who follows its optimizer."""
        self.backwards = self.depth = 0
        """Backward passes so far, and how many are under way within each other."""
        self.running: Backward | None = None
        """The one that is under way."""
        self.half = False
        """Whether anything ran in fp16."""
        self.no_sync: Site | None = None
        """Where `no_sync` was called last."""
        self.outer: Site | None = None
        self.home: Site | None = None
        """Where somebody called a trainer, and the function of his that this trainer calls: what is told instead."""
        self.followed: list[Callable[[Follower], None]] = []
        """Told of every optimizer that is followed later on."""
        for optimizer in optimizers:
            self.follow(optimizer)

    def follow(self, optimizer: torch.optim.Optimizer) -> Follower:
        f = Follower(len(self.followers), optimizer, self.names())
        self.followers.append(f)
        self.outputs.append(Output(self.place, self.monitor, self.models[0], f))
        self.of |= {id(p): f for p in f.params}
        for tell in self.followed:
            tell(f)
        return f

    @property
    def ranks(self) -> int:
        there = torch.distributed.is_available() and torch.distributed.is_initialized()
        return torch.distributed.get_world_size() if there else 1

    def names(self) -> dict[torch.Tensor, str]:
        return named(self.models)

    def grown(self, f: Follower) -> None:
        """An optimizer has parameters that it did not have."""
        f.find(self.names())
        self.outputs[f.index].numbers.grown(f.names, f.params)
        self.of |= {id(p): f for p in f.params}

    def settle(self) -> None:
        """The latest update is complete, as far as no scaler moves after it."""
        for output in self.outputs:
            if not self.scale.on and not output.follower.trying:
                output.numbers.finish(self.scale.now())

    def found(self, f: Follower, what: Iterable[rules.Found]) -> None:
        for name, where, detail in what:
            self.fault(name, where, f, detail)

    def fault(self, name: str, where: Site | None, f: Follower, detail: str = "") -> None:
        if where is not None and where == self.outer:
            where = self.home or where
        behind = name in BEHIND and f.attempts > 0
        self.faults.add(Seen(name, where, f.attempts + (not behind), detail, f.index))
