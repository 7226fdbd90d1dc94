"""Functions that only calculate: they can be asked without a trace in the program that they belong to."""

from __future__ import annotations

import builtins
import dis
import functools
import math
from types import CellType, FunctionType
from typing import Any

NUMBERS = (int, float, str, type(None))
CALCULATING = [min, max, abs, float, int, round, pow, math, *vars(math).values()]
"""What it may refer to besides numbers."""
EFFECTS = (
    "STORE_DEREF",
    "STORE_GLOBAL",
    "STORE_ATTR",
    "STORE_SUB",
    "STORE_SLICE",
    "DELETE",
    "IMPORT",
    "MAKE_",
    "YIELD",
)
"""Beginnings of the names of operations that change something elsewhere, or that make a function."""
LOOPS = "BACKWARD"
"""Part of the names of operations that repeat others."""
REFERENCES, ATTRIBUTES = ("LOAD_GLOBAL", "LOAD_DEREF"), ("LOAD_ATTR", "LOAD_METHOD")


def is_pure(function: Any, callers: tuple[Any, ...] = ()) -> bool:
    """Whether all that it uses are its argument, numbers, `min`, `max`, those of `math`, and functions like itself."""
    if isinstance(function, functools.partial):
        given = [*function.args, *function.keywords.values()]
        return all(isinstance(value, NUMBERS) for value in given) and is_pure(function.func, callers)
    if not isinstance(function, FunctionType) or function in callers:
        return False
    operations = list(dis.get_instructions(function))
    defaults = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    if any(each.opname.startswith(EFFECTS) or LOOPS in each.opname for each in operations):
        return False
    return all(isinstance(value, NUMBERS) for value in defaults) and all(
        isinstance(value, NUMBERS)
        or any(value is known for known in CALCULATING)
        or is_pure(value, (*callers, function))
        for value in references(function, operations)
    )


def references(function: FunctionType, operations: list[dis.Instruction]) -> list[Any]:
    """Its outer variables, and of objects among them the attributes that it reads; `operations` for what is unknown."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    outer = vars(builtins) | function.__globals__
    outer |= {name: cell.cell_contents for name, cell in cells if cell != CellType()}
    found: list[Any] = []
    for before, each in zip([None, *operations], operations, strict=False):
        if each.opname in REFERENCES:
            found.append(outer.get(each.argval, operations))
        elif each.opname in ATTRIBUTES:
            known = before is not None and before.opname in (*REFERENCES, *ATTRIBUTES)
            found.append(getattr(found.pop(), "__dict__", {}).get(each.argval, operations) if known else operations)
    return found
