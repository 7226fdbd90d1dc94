"""Whether the text of a loop steps a schedule that has not been stepped yet, as after a warm-up or a first stage."""

from __future__ import annotations

import ast
import gc
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any

from torch.optim.lr_scheduler import LRScheduler

from gradlab.watch.call_site import ORIGINS, USER, CallSite, definition_site
from gradlab.watch.source_lines import (
    FUNCTIONS,
    encloses,
    is_never_called,
    nodes_in,
    user_frames,
    value_of,
    words_of,
)


def may_be_stepped(schedule: Any, sites: Sequence[CallSite | None]) -> bool:
    """Whether any of the user's files that ran calls a method `step` of something else than these lines do.

    Calls of an attribute that no object holds the schedule by are left aside, and those in a function whose name is
    nowhere else in the text: as those of a callback that was not passed on, or that has the name of no event.
    """
    names: dict[str, Any] = {}
    for frame in reversed(user_frames()):
        names |= {**frame.f_globals, **frame.f_locals}
    lines = {(site[0].co_filename, site[1]) for site in sites if site is not None}
    files = [file for file, kind in ORIGINS.items() if kind == USER]
    nodes: list[tuple[str, Any]] = [(file, node) for file in files for node in nodes_in(file)]
    calls = [(file, node) for file, node in nodes if may_step(node, names)]
    known = {owner_name(node) for file, node in calls if (file, node.lineno) in lines} | {"self"}
    others = [(file, node) for file, node in calls if owner_name(node) not in known]
    keys = set(keys_of(schedule)) if others else set()
    words = {word for _, node in nodes for word in words_of(node)} if others else set()
    dead = [(file, n) for file, n in nodes if isinstance(n, FUNCTIONS) and is_never_called(n, words)]
    for file, node in others:
        is_held = not isinstance(node.func.value, ast.Attribute) or node.func.value.attr in keys
        if is_held and not any(f == file and encloses(n, node.lineno) for f, n in dead):
            return True
    return False


def may_step(node: Any, names: dict[str, Any]) -> bool:
    """Whether a call may be the step of a schedule. No schedule takes more than one argument; a method of the user's is
    left aside: the calls that are meant stand in its text."""
    if not isinstance(node, ast.Call) or len(node.args) + len(node.keywords) > 1:
        return False
    if not isinstance(node.func, ast.Attribute) or node.func.attr != "step":
        return False
    value = value_of(node.func.value, names)
    return isinstance(value, LRScheduler) or definition_site(getattr(type(value), "step", None)) is None


def owner_name(call: Any) -> str:
    return getattr(call.func.value, "attr", getattr(call.func.value, "id", ""))


def keys_of(thing: Any) -> Iterator[str]:
    """Names of the attributes by which any object holds this one; variables of functions are none."""
    for holder in gc.get_referrers(thing):
        for owner in gc.get_referrers(holder) if isinstance(holder, dict) else [holder]:
            known = attributes_of(owner)
            yield from (key for key, value in list(known.items()) if value is thing)


def attributes_of(owner: Any) -> dict[str, Any]:
    """Without a call of the user's `__getattr__`."""
    try:
        known = {} if isinstance(owner, ModuleType) else object.__getattribute__(owner, "__dict__")
    except AttributeError:
        return {}
    return known if isinstance(known, dict) else {}
