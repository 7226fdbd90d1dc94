"""Functions that are called through a variable, as handlers: whoever wrote them decides, not the line that calls."""

from __future__ import annotations

import ast
import functools

from gradlab.watch.call_site import CallSite
from gradlab.watch.source_lines import name_of, nodes_in


def up_to_variable(stack: tuple[CallSite, ...]) -> tuple[CallSite, ...]:
    """Of functions that are running, the innermost first, those up to one that is not called by its own name."""
    return next((stack[: i + 1] for i in range(len(stack) - 1) if is_variable(stack, i)), stack)


def is_variable(stack: tuple[CallSite, ...], i: int) -> bool:
    """Whether one of them is called by another name than its own, also than that of a function that it wraps, or that
    wraps it. Objects that are called, and parts of a function, have none."""
    name = stack[i][0].co_name
    if name == "forward" or (name[0] in "<_" and name[-1] in ">_" and name != "<lambda>"):
        return False
    called = names_at(stack[i + 1])
    wrapped = i > 0 and stack[i - 1][0].co_name in called
    return bool(called) and not wrapped and name not in called.union(*map(names_at, stack[i + 2 : i + 3]))


def names_at(site: CallSite) -> set[str]:
    """Names of what is called at a line."""
    return {name for name, first, last in calls_in(site[0].co_filename) if first <= site[1] <= last}


@functools.lru_cache(maxsize=100)
def calls_in(file: str) -> list[tuple[str, int, int]]:
    """Name of each call, and its first and last line."""
    calls = (node for node in nodes_in(file) if isinstance(node, ast.Call))
    return [(name_of(call), call.lineno, call.end_lineno or call.lineno) for call in calls]
