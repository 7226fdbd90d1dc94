"""Several optimizers of one model, as one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import torch


class Joined(torch.optim.Optimizer):
    """Each part steps the groups that name it under the key `by`; one state for all."""

    def __init__(self, parts: Mapping[Any, torch.optim.Optimizer], by: str, note: str) -> None:
        """note: who steps what."""
        self.parts, self.by, self.note = dict(parts), by, note
        groups = [group | {by: name} for name, part in parts.items() for group in part.param_groups]
        super().__init__(groups, {})
        for part in parts.values():
            self.state.update(part.state)
        for name in ("train", "eval"):
            if any(callable(getattr(part, name, None)) for part in parts.values()):
                setattr(self, name, partial(self.call, name))

    def add_parts(self, other: Joined) -> None:
        """Add the parts of another one, where there are none of their names."""
        for name, part in other.parts.items():
            own = self.parts.setdefault(name, part)
            if isinstance(own, Joined) and own is not part:
                own.add_parts(part)  # type: ignore[arg-type]

    def ready(self) -> Iterator[torch.optim.Optimizer]:
        """The parts, each with its groups."""
        for name, part in self.parts.items():
            part.state, part.param_groups = self.state, [g for g in self.param_groups if g[self.by] == name]
            yield part

    def call(self, name: str) -> None:
        for part in self.ready():
            getattr(part, name, lambda: None)()

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for part in self.ready():
            part.step()


def describe(parts: Mapping[Any, torch.optim.Optimizer]) -> str:
    """How many parameters each steps; parts are named as what they match."""
    counts = {name: sum(len(group["params"]) for group in part.param_groups) for name, part in parts.items()}
    kinds = {name: " and ".join(type(one).__name__ for one in leaf_optimizers(part)) for name, part in parts.items()}
    return ", ".join(f"of {kinds[name]}: {counts[name]} ({name or 'the rest'})" for name in parts)


def leaf_optimizers(optimizer: torch.optim.Optimizer) -> list[torch.optim.Optimizer]:
    """The optimizers that one consists of: itself, where it is no `Joined`."""
    parts = optimizer.parts.values() if isinstance(optimizer, Joined) else ()
    return [one for part in parts for one in leaf_optimizers(part)] or [optimizer]
