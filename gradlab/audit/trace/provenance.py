"""Which forward passes the graph of a tensor comes from, where the text shows all of them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from typing import Any

from gradlab.audit.trace.conditions import TRUE
from gradlab.audit.trace.engine import Engine
from gradlab.audit.trace.values import NO_ROOTS, UNSET, Event, Value

WITHOUT_GRAPH = ("number", "none", "index", "detached", "measured", "bool")
"""Kinds of values that have no graph."""
SETTING = re.compile(r"(self\.)?(\[')?(args?|opts?|cfg|conf|config|hparams?|flags)('\])?[.\[]", re.I)
"""Names of settings, which have no graph."""
GRADIENT_MODES = {"no_grad": False, "grad": True, "perhaps_grad": None}
"""Kinds of regions, and whether what is computed in them has a graph."""
LONGEST = 8
"""Forward passes that a tensor remembers."""


def is_traced(value: Value) -> bool:
    """Whether every forward pass that a value's graph comes from is known."""
    if value.choice:
        return all(is_traced(one) for _, one in value.choice)
    if value.kind in ("list", "dict"):
        return bool(value.items) and all(map(is_traced, value.items))
    setting = value.kind == "external" and SETTING.search(value.name) is not None
    setting = setting or (value.kind == "unknown" and value.given and bool(SETTING.match(value.name)))
    return value.kind in WITHOUT_GRAPH or setting or (value.traced and len(value.origins) < LONGEST)


def sources(value: Value) -> list[Event]:
    """The forward passes that a value comes from, whichever of several it is."""
    if value.choice or value.kind in ("list", "dict"):
        return [event for one in (*value.items, *(v for _, v in value.choice)) for event in sources(one)]
    return [*value.origins]


def take_apart(value: Value, key: str = "") -> frozenset[int]:
    """The pieces of a part of a network's result, which may come from a part of its graph; key: which part."""
    part = value.attributes.setdefault(f"part {key}", Value()).number if key else 0
    if value.origins:
        value.origins[-1].parts.add(part)
    return value.pieces | {part}


def of_part(value: Value, key: object) -> dict[str, Any]:
    """The layers of a part of a network's result."""
    if not value.graphs or key not in value.graphs:
        return {"graphs": UNSET}
    layers, lost = value.graphs[key]
    return {"graphs": UNSET, "layers": layers, "lost": lost}


def pieces(value: Value) -> frozenset[int]:
    """The parts of networks' results that a value comes from."""
    inside = (*value.items, *(one for _, one in value.choice)) if value.choice or value.kind in ("list", "dict") else ()
    return value.pieces.union(*map(pieces, inside))


def records(engine: Engine) -> bool | None:
    """Whether what is computed now has a graph, by the innermost block that decides it; None where none is known to."""
    deciding = [region for region in engine.regions if region.kind in GRADIENT_MODES]
    if not deciding:
        return True
    return GRADIENT_MODES[deciding[-1].kind] if deciding[-1].when == TRUE else None


def provenance(engine: Engine, node: ast.AST, values: Iterable[Value]) -> dict[str, Any]:
    """The facts of what is computed from some values, and from nothing else."""
    values = [*values]
    if (graph := records(engine)) is not True:
        lost = graph is False
        facts = {"origins": (), "traced": lost, "cut": node if lost else None, "cut_path": engine.module.path}
        return facts | cut_off(engine, node, values)
    cut = next((found for value in values if (found := first_cut(value)) is not None), None)
    return {
        "origins": tuple(dict.fromkeys(event for value in values for event in sources(value)))[-LONGEST:],
        "pieces": NO_ROOTS.union(*map(pieces, values)),
        "layers": frozenset(layer for value in values for one in parts(value) for layer in one.layers),
        "lost": frozenset(cut for value in values for one in parts(value) for cut in one.lost),
        "traced": all(map(is_traced, values)),
        "cut": cut.cut if cut is not None else None,
        "cut_path": cut.cut_path if cut is not None else "",
    }


def parts(value: Value) -> list[Value]:
    """A value, and the items or alternatives of it."""
    inside = (*value.items, *(one for _, one in value.choice)) if value.choice or value.kind in ("list", "dict") else ()
    return [value, *inside]


def first_cut(value: Value) -> Value | None:
    """The value, or one of those in it, that lost its graph."""
    return next((one for one in parts(value) if one.cut is not None), None)


def cut_off(engine: Engine, node: ast.AST, values: Iterable[Value]) -> dict[str, Any]:
    """The layers of what some values become without their graphs: each cut is the first on its way."""
    every = [one for value in values for one in parts(value)]
    now = ((layer, node, engine.module.path) for one in every for layer in one.layers)
    return {"layers": frozenset(), "lost": frozenset([*(cut for one in every for cut in one.lost), *now])}
