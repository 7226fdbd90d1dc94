"""What is known of a replayed update: its calls of modules, and the origin of non-finite numbers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from gradlab.diagnosis.replay.ranges import Range


@dataclass(eq=False)
class Call:
    """One call of a module, in one micro-batch."""

    name: str
    module: torch.nn.Module
    number: int
    batch: int
    begun: int
    """Operations before it."""
    first_node: int
    inputs: tuple[Any, Any] | None
    parent: Call | None = None
    """The call that this one is part of."""
    last_node: int = 0
    done: int = 0
    output: float | None = None
    """Largest magnitude of its outputs; NaN where one is."""
    grad: float | None = None
    """The same of the gradient of its outputs."""
    grad_done: int = 0

    @property
    def kind(self) -> str:
        return type(self.module).__name__

    def within(self, other: Call) -> bool:
        """Whether this is a part of another call, at any depth."""
        return self.parent is not None and (self.parent is other or self.parent.within(other))


class Maker(NamedTuple):
    """What computed a tensor: the operation, its position in the order of execution, and its module or node."""

    order: int
    name: str
    call: Call | None
    node: int | None


@dataclass
class Origin:
    """The operation that made a non-finite number out of finite ones."""

    maker: Maker
    backward: bool
    masks: bool
    summed: bool = False
    """Whether it added up the gradients of several uses."""
    given: str | None = None
    """What was not finite beforehand."""
    rounded: str | None = None
    """What a narrower type could not hold: the name of a weight, `input`, or `RESULT`."""
    input_max: float | None = None
    output_max: float | None = None
    operand_max: float | None = None
    """Largest magnitude of what the operation itself was given."""
    limit: float | None = None
    failure: str | None = None
    """What the operation did: see `failure`."""
    derivative: str | None = None
    """The operation whose derivative it computed, in the backward pass."""
    ranges: list[Range] = field(default_factory=list)


@dataclass
class NonFiniteTensor:
    """A tensor that is not finite, or beyond a given limit: where it was noticed, and where it came from."""

    order: int
    what: str
    call: Call | None
    name: str
    batch: int
    origin: Origin | None
    value: float | None = None
