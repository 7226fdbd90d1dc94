"""What a `with` block means for gradients, by the value that it is opened with."""

from __future__ import annotations

import ast
from dataclasses import replace

from gradlab.audit.source.syntax import dotted, walk
from gradlab.audit.trace.conditions import TRUE, Formula, joined
from gradlab.audit.trace.values import Event, Region, Value

HARMLESS = {"tqdm", "trange", "record_function", "profile"}
"""Context managers that change nothing in their blocks."""
SYNC_FLAG = "require_backward_grad_sync"
"""DDP's attribute that `no_sync()` sets, and that programs set by hand."""


def regions(value: Value, node: ast.expr, when: Formula = TRUE) -> list[Region]:
    """`when`: the condition under which the block is opened with this value."""
    if value.choice:
        return [region for test, item in value.choice for region in regions(item, node, joined("and", [when, test]))]
    there = joined("and", [when, value.when])
    if value.kind == "autocast":
        return [Region("autocast", there, node, value, value)]
    if value.kind == "context" and value.word == "followed":
        return [replace(r, when=joined("and", [when, r.when])) for r in value.regions]
    if value.kind == "context":
        return [Region(value.word, there, node, value.model, value)]
    if value.kind == "stack":
        return [Region("null", when, node, value)]
    if value.kind == "unknown" and dotted(getattr(node, "func", node)).split(".")[-1] in HARMLESS:
        return []
    if value.kind in ("unknown", "instance"):
        return [Region("unknown", when, node, value)]
    return []


def settled(found: list[Region], body: list[ast.stmt]) -> list[Region]:
    """The regions of a block: where a loss goes backward in it there is a graph, whatever the flag is."""
    ends = any(isinstance(part, ast.Attribute) and part.attr == "backward" for node in body for part in walk(node))
    return [replace(r, kind="grad") if ends and r.kind == "perhaps_grad" else r for r in found]


def add_sync_flag(forward: Event) -> None:
    """DDP decides in the forward pass, by a flag that may have been set by hand, whether gradients will be reduced."""
    state = forward.value.attributes.get(SYNC_FLAG) if forward.value is not None else None
    found = regions(state, ast.Constant(None)) if state is not None else []
    forward.regions += tuple(replace(r, node=r.context.node) for r in found if r.context is not None)


def by_hand(region: Region) -> bool:
    """Whether a region stands for DDP's flag."""
    return isinstance(region.node, ast.Attribute) and region.node.attr == SYNC_FLAG
