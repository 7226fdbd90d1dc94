"""The first tensor of an update that left the range of its type: where, in what, from what."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from math import isfinite
from typing import Any

from gradlab.base.json_lines import from_object
from gradlab.diagnosis.replay.ranges import Range

MODERATE = 1e4
"""Largest magnitude of an output that is of ordinary size."""

SUM = "the sum over its uses"
"""The operation that adds up the gradients of a tensor that several others are computed from."""
RESULT = "result"
"""What was rounded to a narrower type, where the operation is the one that had computed it in a wider type."""
NO_WEIGHTS = (RESULT, "input", "operand")
"""First words of the names of ranges that are not of a module's own weights."""


@dataclass
class Overflow:
    """The first tensor that is not finite, or above a given limit."""

    phase: str
    """parameters, inputs, targets, buffers: broken beforehand. forward, between (in the code around two modules), loss:
    in the forward pass. backward, gradient (of a parameter), unscale (in dividing by the loss scale): after it."""
    module: str
    """The module whose own arithmetic it was; in phase `between` the module that received it first; in phases
    `parameters`, `gradient` and `unscale` the parameter."""
    kind: str
    """Class of the module."""
    input_max: float | None = None
    """Largest magnitude that went in."""
    output_max: float | None = None
    """Largest magnitude of the same result in a wider type."""
    operand_max: float | None = None
    """Largest magnitude of what the operation itself was given."""
    healthy: str | None = None
    """The module that finished last with a finite output (backward: gradient), and its largest magnitude."""
    healthy_max: float | None = None
    limit: float | None = None
    """Largest number of the type that was left."""
    inside: str | None = None
    """The module whose code it was, where that is not `module`."""
    call: int = 1
    """Which call of the module in this forward pass (0: not known), of how many."""
    calls: int = 1
    micro_batch: int = 1
    """Which micro-batch of the update, of how many."""
    micro_batches: int = 1
    operation: str | None = None
    """PyTorch's name of the operation."""
    failure: str = "overflow"
    """What it did: overflow, 0/0, log of a negative number, ..."""
    derivative: str | None = None
    """The operation whose derivative it computed, in the backward pass."""
    evaluation: bool = False
    """Whether it was in the evaluation, and not in an update."""
    rounded: str | None = None
    """What a narrower type could not hold: the name of one of the module's weights, `input`, or `RESULT`."""
    beyond: float | None = None
    """The given limit, where a finite number exceeded it."""
    samples: list[int] = field(default_factory=list)
    """Indices of the samples whose inputs or targets are not finite, where they are known."""
    ranges: list[Range] = field(default_factory=list)
    """Of what went in, of the module's own weights, and of what came out."""
    outputs: Range | None = None
    """Of the model, where the loss is what is not finite."""
    targets: Range | None = None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> Overflow | None:
        """The inverse of `as_dict`; None where another version wrote it."""
        try:
            found = from_object(cls, content)
            found.ranges = [from_object(Range, r) for r in content.get("ranges") or []]
            for name in ("outputs", "targets"):
                setattr(found, name, from_object(Range, content[name]) if content.get(name) else None)
        except TypeError:
            return None
        return found

    @property
    def moderate(self) -> bool:
        """Whether the model's outputs are of a size at which a loss should not fail."""
        return self.outputs is not None and (self.outputs.absmax or 0.0) <= MODERATE

    @property
    def ordinary(self) -> bool:
        """Whether the operation made it of numbers of ordinary size, as an exponential does."""
        return self.operand_max is not None and self.operand_max <= MODERATE

    @property
    def of_data(self) -> bool:
        """Whether it is what the model was given that a narrower type could not hold, before anything was computed."""
        return self.rounded == "input" and self.healthy is None and self.phase == "forward"

    @property
    def after(self) -> str:
        """What was still finite."""
        if self.healthy is None:
            return "no module had finished"
        return f"last finite: {self.healthy or 'the model'}, at most {self.healthy_max or 0.0:.4g}"

    @property
    def where(self) -> str:
        """The module, which call of it, and in which micro-batch."""
        call = f"call {self.call} of {self.calls}" if self.calls > 1 and self.call else ""
        return f"{self.module or 'the model'} ({', '.join(filter(None, (self.kind, call, self.batch)))})"

    @property
    def batch(self) -> str:
        return f"micro-batch {self.micro_batch} of {self.micro_batches}" if self.micro_batches > 1 else ""

    @property
    def undefined(self) -> bool:
        """Whether the operation has no finite result in any type."""
        return self.failure != "overflow"

    @property
    def by_zero(self) -> bool:
        """Whether it divided by zero."""
        return "0/0" in self.failure or "division by zero" in self.failure

    @property
    def within(self) -> bool:
        """Whether the type could hold the result, and not what it is computed by, as the squares of a norm."""
        known = self.output_max is not None and self.limit is not None
        return known and not (self.undefined or self.rounded) and self.output_max <= self.limit  # type: ignore[operator]

    @property
    def fails(self) -> str:
        """What happened, as the predicate of a sentence."""
        if self.rounded == RESULT:
            return f"overflows first, where the result of {self.place} is rounded to a narrower type"
        if self.within:
            return f"is the first that is not finite: at most {self.output_max:.4g}, but a number on the way overflows"
        if not self.undefined:
            return "overflows first"
        return f"is the first that is not finite ({self.failure} in {self.place})"

    @property
    def place(self) -> str:
        """The operation, or that whose derivative it computed."""
        of = self.derivative if self.operation != SUM else None
        return f"the derivative of {of}" if of else (self.operation or "").rstrip("_")

    @property
    def far(self) -> str:
        """By how much it exceeded the type's range, where a wider type could hold it."""
        if self.output_max is None or self.limit is None or not self.limit < self.output_max < float("inf"):
            return ""
        return f": {self.output_max:.4g}, {self.output_max / self.limit:.3g} times the largest number, {self.limit:g}"

    def __str__(self) -> str:
        return f"in the evaluation, {self.sentence}" if self.evaluation else self.sentence

    @property
    def sentence(self) -> str:
        by = f", in {self.place}" if self.operation and not (self.undefined or self.rounded) else ""
        if self.beyond is not None:
            what = "the gradient of the output" if self.phase == "backward" else "the output"
            return f"{what} of {self.where} is the first beyond {self.beyond:g}: {self.output_max:.4g} ({self.after})"
        if self.phase == "parameters":
            return f"the weights {self.module} are already not finite: an earlier update broke them"
        if self.phase in ("inputs", "targets"):
            return f"the {self.phase}{f' of {self.batch}' if self.batch else ''} are not finite"
        if self.phase == "buffers":
            return f"the buffer {self.module} was not finite beforehand"
        if self.phase == "loss":
            how = f"overflows{by.lstrip(',')}{self.far}" if by or self.far else "is not"
            how = f"{self.fails}{self.far}" if self.rounded == RESULT else how
            how = f"is not: {self.failure} in {self.place}" if self.undefined else how
            return f"every module's output is finite, and the loss {how} ({self.after})"
        if self.phase == "between":
            code = f"{self.inside or 'the model'}'s arithmetic before {self.where}"
            return f"{code} {self.fails}{by}{self.far} ({self.after})"
        if self.phase == "gradient":
            return (
                f"all outputs and their gradients are finite; the gradient of the weight {self.module} {self.fails}"
                f"{f' in {self.batch}' if self.batch else ''}{self.far}"
            )
        if self.phase == "unscale":
            return f"the gradient of the weight {self.module} overflows where it is divided by the loss scale"
        if self.phase == "backward":
            source = f"the gradient that {self.where} passes back" if self.kind else "the gradient of the loss"
            if self.operation == SUM:
                source = f"the gradient of the output of {self.where}"
            return f"the forward pass is finite; in the backward pass {source} {self.fails}{by}{self.far}"
        if self.rounded not in (None, RESULT):
            return (
                f"the {self.rounded} of {self.where} overflows first, where it is rounded to a narrower type{self.far}"
            )
        text = f"the output of {self.where} {self.fails}{self.far}"
        if self.input_max is not None and isfinite(self.input_max):
            text += f", from inputs of at most {self.input_max:.4g}"
            weights = max((r.absmax or 0.0 for r in self.ranges if r.name.split(" ")[0] not in NO_WEIGHTS), default=0.0)
            if weights > max(1.0, self.input_max):  # then it is they that have grown
                text += f" and weights of at most {weights:.4g}"
        return text
