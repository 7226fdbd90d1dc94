"""Forward passes of the project's own networks and losses: what their results may be, and where numbers may leave."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from gradlab.audit.interpreter.classes import method_of
from gradlab.audit.interpreter.function_calls import CALLS, enter
from gradlab.audit.trace.events import events
from gradlab.audit.trace.values import Value

if TYPE_CHECKING:
    from gradlab.audit.interpreter.interpreter import Interpreter

NESTED, PASSES = 60, 40
"""Calls that one forward pass may enter, and forward passes that are entered from one beginning."""


def passed(it: Interpreter, node: ast.Call, owner: Value, args: list[Value], made: Value) -> Value:
    """`made`, the result of a forward pass, with what the text of that pass shows of it."""
    root = owner.root()
    found = method_of(root, "forward") if "class" in root.data and "choice" not in owner.data else None
    if found is None or any(region.kind == "no_grad" for region in it.regions):
        return made
    words = tuple(a.data.get("range", "") if a.kind == "tensor" else a.kind for a in args)
    key = (root.number, found[0], words)
    if key not in it.seen_inside:
        if len(it.seen_inside) >= PASSES:
            return made
        it.seen_inside[key] = None  # a network that calls itself
        it.seen_inside[key] = entered(it, node, root, found, args)
    result = it.seen_inside[key]
    if result is None:
        return made
    made.data["roots"] = made.data["roots"] | tokens(it, result)
    if result.kind == "list":
        made.data["outputs"] = [(part(item), tokens(it, item)) for item in result.data["items"]]
    elif result.kind == "tensor" and not made.data.get("range"):
        made.data["range"] = result.data.get("range", "")
    return made


def entered(it: Interpreter, node: ast.Call, owner: Value, found: tuple, args: list[Value]) -> Value | None:
    """What the method gives back; of what happens in it only what is unstable is kept."""
    calls, visited, inner = it.calls, set(it.visited), list(it.inner)
    it.calls, it.within = max(calls, CALLS - NESTED), it.within + (owner.kind != "criterion")
    made: list[Value | None] = []
    method, module = found
    items = it.collect(lambda: made.append(enter(it, method, module, args, {}, owner, node, it.world(module))))
    it.calls, it.within, it.inner = calls, it.within - (owner.kind != "criterion"), inner
    it.visited.intersection_update(visited)
    it.out += [event for event in events(items) if event.kind == "unstable"]
    return made[0]


def tokens(it: Interpreter, value: Value) -> frozenset[int]:
    items = value.data["items"] if value.kind == "list" else [value]
    return frozenset().union(*(v.data.get("roots", frozenset()) for v in items if v.kind == "tensor")) & it.tokens


def part(value: Value) -> str:
    """The word of one of several outputs: where each has a meaning of its own, exp() of one is often meant."""
    word = value.data.get("range", "") if value.kind == "tensor" else ""
    return {"any": "part", "unseen": ""}.get(word, word)
