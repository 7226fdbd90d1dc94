"""The condition under which a value is true, or is not None."""

from __future__ import annotations

import re

from gradlab.audit.trace.conditions import FALSE, TRUE, Atom, Formula, joined
from gradlab.audit.trace.values import Value

OBJECTS = {
    *("optimizer", "scaler", "scheduler", "model", "ddp", "tensor", "accelerator", "fabric", "loader", "list", "params")
}
"""Kinds of objects: true where they are not None."""
NUMBERS = {"index", "detached", "measured"}
"""Kinds of what is a number or a tensor, and never None."""
FINITE = re.compile(r"(?<!in)(?<!de)finite|isnan|isinf|is_nan|nan|inf\b|overflow|found_inf", re.I)
DEEP = 3
"""How deep choices between choices are told apart."""


def truthy(value: Value, text: str) -> Formula:
    """That a value is true; `text`: the expression."""
    if value.kind == "bool":
        return value.formula
    if value.choice:
        return alternatives(value, text)
    if value.kind == "none":
        return FALSE
    if value.kind == "number" and value.value is not None and value.birth == 0:
        return TRUE if value.value else FALSE
    if value.kind in OBJECTS:
        return present(value)
    kind = "finite" if FINITE.search(text) or value.checks_finite else "flag"
    return ("atom", Atom(f"{value.name or text}#{value.number}", value.birth, kind))


def alternatives(value: Value, text: str, depth: int = 0) -> Formula:
    """That a choice is true: that one of its alternatives is the one, and true."""

    def there(item: Value) -> Formula:
        if item.choice:
            return alternatives(item, text, depth + 1) if depth < DEEP else present(item)
        return present(item) if item.kind == "unknown" else truthy(item, text)

    return joined("or", [joined("and", [when, there(item)]) for when, item in value.choice])


def present(value: Value, depth: int = 0) -> Formula:
    """That a value is not None."""
    if value.choice and depth < DEEP:
        return joined("or", [joined("and", [when, present(item, depth + 1)]) for when, item in value.choice])
    if value.kind == "none":
        return FALSE
    if value.kind == "gradient":  # where it is missing nothing can happen to it
        return TRUE
    if value.kind in OBJECTS and not value.given:
        return TRUE
    if value.kind in NUMBERS or value.never_none or (value.kind == "number" and value.value is not None):
        return TRUE
    return ("atom", Atom(f"{value.name}#{value.number} is not None", value.birth))
