"""Forward passes of the project's own networks and losses are followed for what their results may be."""

from __future__ import annotations

import ast

from gradlab.audit.interpreter.function_calls import CALLS
from gradlab.audit.knowledge.value_ranges import UNKNOWN
from gradlab.audit.source.project import Function, Module
from gradlab.audit.trace.engine import Engine
from gradlab.audit.trace.event_tree import events
from gradlab.audit.trace.provenance import WITHOUT_GRAPH, parts
from gradlab.audit.trace.tensors import roots_of
from gradlab.audit.trace.values import Event, Graph, Value

WHOLE = (*WITHOUT_GRAPH, "list", "dict")
"""Kinds of values that have no graph themselves."""
NESTED, PASSES = 60, 40
"""Calls that one forward pass may enter, and forward passes that are entered from one entry point."""


def forward_pass(engine: Engine, node: ast.Call, owner: Value, args: list[Value], made: Value) -> Value:
    """`made`, the result of a forward pass, with what the text of that pass shows of it."""
    root = owner.root()
    found = root.method("forward") if not owner.choice else None
    if found is None or engine.without_gradient:
        return made
    words = tuple(a.range if a.kind == "tensor" else a.kind for a in args)
    key = (root.number, found[0], words)
    if key not in engine.passes:
        if len(engine.passes) >= PASSES:
            return made
        engine.passes[key] = None  # a network that calls itself
        engine.passes[key], happened = enter_pass(engine, node, root, found, args)
        engine.clearing[key] = [e.value for e in happened if e.kind == "zero" and e.owner is None]
        engine.graphs[key] = graphs(engine.passes[key], args, root)
    for cleared in engine.clearing.get(key, ()):
        engine.emit("zero", node, cleared)
    result = engine.passes[key]
    if result is None:
        return made
    made.roots = made.roots | tokens(engine, result)
    within = engine.graphs.get(key, {})
    made.graphs = {part: (made.layers | layers, made.lost | lost) for part, (layers, lost) in within.items()}
    made.layers = made.layers.union(*(layers for layers, _ in within.values()))
    made.lost = made.lost.union(*(lost for _, lost in within.values()))
    if result.kind == "list":
        made.outputs = tuple((output_range(item), tokens(engine, item), item.reduction) for item in result.items)
    elif result.kind == "dict":
        made.entries = {key: (output_range(item), tokens(engine, item)) for key, item in result.attributes.items()}
    elif result.kind == "detached" and result.cut is not None:  # whatever it returns
        lost = made.lost | {(root, result.cut, result.cut_path)}
        made.update(origins=(), traced=True, cut=result.cut, cut_path=result.cut_path, layers=frozenset(), lost=lost)
    elif result.kind == "tensor":
        known = made.range if made.range != "output" or root.last == UNKNOWN else result.range
        made.range = known or "output"
        if (owner.kind == "criterion" or result.scalar) and result.reduction != "mean":
            factors = (*made.factors, *result.factors)  # such as a division by the number of its own terms
            made.update(reduction=result.reduction, reduced=result.reduced, factors=factors)
    return made


def enter_pass(
    engine: Engine, node: ast.Call, owner: Value, found: tuple[Function, Module], args: list[Value]
) -> tuple[Value | None, list[Event]]:
    """What the method returns and what happens in it, of which only unstable operations are kept."""
    calls, visited, closures = engine.calls, set(engine.visited), list(engine.closures)
    deeper = owner.kind != "criterion"
    engine.calls, engine.depth = max(calls, CALLS - NESTED), engine.depth + deeper
    made: list[Value | None] = []
    happened = events(engine.collect(lambda: made.append(engine.enter(*found, args, {}, owner, node))))
    engine.calls, engine.depth, engine.closures = calls, engine.depth - deeper, closures
    engine.visited.intersection_update(visited)
    engine.out += [event for event in happened if event.kind == "unstable"]
    cut = made[0] is not None and all(one.kind == "detached" for one in engine.answers)
    return made[0] if cut or made[0] is None or made[0].kind != "detached" else Value(), happened


def graphs(result: Value | None, args: list[Value], owner: Value) -> dict[object, Graph]:
    """What each part of a network's result, or all of it, comes from inside the network; nothing where that is hidden.

    What the network keeps of it may go on from there.
    """
    outside = [one for value in args for one in parts(value)]
    if result is None or not all(one.traced or one.kind in WHOLE for one in [*parts(result), *outside]):
        return {}
    kept = frozenset(x for v in owner.attributes.values() if v.kind == "tensor" for x in v.layers)
    layers, cuts = {x for v in outside for x in v.layers}, {x for v in outside for x in v.lost}
    named = result.attributes if result.kind == "dict" else {}
    items = dict(enumerate(result.items)) if result.kind == "list" else named
    return {
        key: (
            kept.union(*(v.layers for v in parts(item))) - layers,
            frozenset(x for v in parts(item) for x in v.lost) - cuts,
        )
        for key, item in (items or {"": result}).items()
    }


def tokens(engine: Engine, value: Value) -> frozenset[int]:
    return roots_of(value.items if value.kind in ("list", "dict") else [value]) & engine.tokens


def output_range(value: Value) -> str:
    """The range of one of several outputs: where each has a meaning of its own, exp() of one is often intended."""
    word = value.range if value.kind == "tensor" else ""
    return {"any": "part", "unseen": ""}.get(word, word)
