"""What a `with` block means for gradients, by the value that it is opened with."""

from __future__ import annotations

import ast
from dataclasses import replace

from gradlab.audit.source.syntax import dotted
from gradlab.audit.trace.conditions import TRUE, Formula, joined
from gradlab.audit.trace.values import Region, Value

HARMLESS = {"tqdm", "trange", "record_function", "profile"}
"""Context managers that change nothing in their blocks."""


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
    if value.kind == "method" and value.node.name in ("no_sync", "accumulate"):
        return [Region(value.node.name, when, node)]
    return []
