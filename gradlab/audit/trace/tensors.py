"""Tensors: what they come from."""

from __future__ import annotations

from typing import Any

from gradlab.audit.trace.values import NO_ROOTS, Value


def tensor(**facts: Any) -> Value:
    return Value("tensor", **facts)


def reduction(value: Value, name: str, dims: set[object] | None) -> dict[str, Any]:
    """The facts that `sum` or `mean` over some dimensions changes; None: over all of them.

    Samples are along the first dimension: a sum over others and a mean over these is a mean.
    """
    if value.reduced or value.reduction == "unknown":
        return {}
    whole = dims is None or 0 in dims
    if name in ("sum", "nansum"):
        return {"reduction": "sum", "reduced": whole}
    if not whole:
        return {}
    chosen = () if value.selected is None else (value.selected,)
    return {"reduction": "mean", "reduced": True, "factors": (*value.factors, *chosen), "selected": None}


def of_one_number(value: Value) -> bool:
    """A loss that is reduced over its samples."""
    return value.scalar or value.reduced or (value.source == "criterion" and value.reduction in ("mean", "sum"))


def roots_of(values: list[Value]) -> frozenset[int]:
    """The roots of the tensors among values."""
    return NO_ROOTS.union(*(v.roots for v in values if v.kind == "tensor"))


def made_of(value: Value | None) -> list[Value]:
    """A tensor and what it is made of by arithmetic: if it is a single number, so is each of them."""
    found: list[Value] = []
    left = [value]
    while left and len(found) < 50:
        one = left.pop()
        if one is not None and one.kind == "tensor" and one not in found:
            found.append(one)
            left += [*one.made_of, *(v for _, v in one.choice)]
    return found
