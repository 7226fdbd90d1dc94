"""How many steps a learning rate schedule is made for."""

from __future__ import annotations

import functools
from types import CellType, FunctionType
from typing import Any

ATTRIBUTES = ("T_max", "total_steps", "total_iters")


def schedule_lengths(schedule: Any) -> set[int]:
    """Steps until its end; of a function of the step all whole numbers that it uses, of which one may be that."""
    if parts := getattr(schedule, "_schedulers", None):
        ends = [schedule_lengths(part) for part in parts]
        milestones = getattr(schedule, "_milestones", None)
        return {end + milestones[-1] for end in ends[-1]} if milestones else set().union(*ends)
    known = {value for name in ATTRIBUTES if isinstance(value := getattr(schedule, name, None), int)}
    return known.union(*map(numbers_of, getattr(schedule, "lr_lambdas", ())))


def numbers_of(function: Any) -> set[int]:
    """Whole numbers among a function's keywords, defaults and outer variables, or an object's attributes."""
    if isinstance(function, functools.partial):
        values = [*function.args, *function.keywords.values()]
        return whole(values) | numbers_of(function.func)
    if not isinstance(function, FunctionType):
        return whole(getattr(function, "__dict__", {}).values())
    cells = [cell.cell_contents for cell in function.__closure__ or () if cell != CellType()]
    names = [function.__globals__.get(name) for name in function.__code__.co_names]
    return whole([*cells, *names, *(function.__defaults__ or ())])


def whole(values: Any) -> set[int]:
    return {value for value in values if type(value) is int}
