"""How many steps a learning rate schedule is made for, and what it would come to."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from types import CellType, FunctionType
from typing import Any

from gradlab.watch.pure_functions import is_pure

FURTHER = 1.2
"""Factor between two steps at which the function of a schedule is asked."""
LAST = 1_000_000
"""The last of these steps: a rate that still rises there is that of a search, and has no peak."""
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


def peak(schedule: Any) -> tuple[float, int]:
    """The learning rate that a warm-up leads to, and the step at which it is reached; zeros where unknown."""
    while parts := getattr(schedule, "_schedulers", None):
        schedule = parts[0]
    base = next(iter(getattr(schedule, "base_lrs", [])), 0.0)
    if not isinstance(base, float):
        return 0.0, 0
    functions = getattr(schedule, "lr_lambdas", None)
    if functions is None:
        return base, 0
    factors = dict(factors_ahead(functions[0], schedule.last_epoch))
    step = max(factors, key=lambda each: factors[each], default=LAST)
    return (base * factors[step], step) if step < LAST / FURTHER**2 else (0.0, 0)


def factors_ahead(function: Any, step: int) -> Iterator[tuple[int, float]]:
    """What a function of the step returns at this step and later ones; nothing if it cannot be asked."""
    if not is_pure(function):
        return
    while step < LAST:
        try:
            factor = float(function(step))
        except Exception:  # such as a division by zero
            return
        if not math.isfinite(factor):
            return
        yield step, factor
        step = max(step + 1, int(step * FURTHER))
