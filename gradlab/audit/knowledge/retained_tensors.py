"""Tensors that are retained with their graphs: added to a sum, or appended to a list, that outlives the iteration."""

from __future__ import annotations

import ast

from gradlab.audit.knowledge.call_site import CallSite
from gradlab.audit.source.syntax import called_name, dotted
from gradlab.audit.trace.engine import Engine
from gradlab.audit.trace.iterables import members
from gradlab.audit.trace.tensors import made_of
from gradlab.audit.trace.values import Event, Value, births


def retain(engine: Engine, node: ast.AST, target: ast.expr, old: Value, value: Value) -> int | None:
    """Emit that `value` goes into `target`; returns a mark of the sum, None where no tensor with a graph is kept."""
    tensors = all(v.kind == "tensor" and v.roots for v in members(value) or [value])
    value = value.items[0] if value.kind == "list" and tensors else value  # losses += [loss]
    if old.kind not in ("number", "unknown", "list", "tensor") or not tensors or engine.without_gradient:
        return None
    began = 0 if old.kind == "tensor" else old.birth if old.before is None else old.before
    since = max(engine.assigned.get((id(engine.scope.node), dotted(target)), 0), began)
    base = target.value if isinstance(target, ast.Subscript) else target
    mark = next(births)
    owner = engine.selves[-1]
    classes = owner.lineage if owner is not None else ()
    event = engine.emit("keep", node, value, into=dotted(base), since=since, mark=mark, classes=classes)
    event.node, event.path = position(engine, event, value)
    return mark


def retain_in_meter(call: CallSite, owner: Value | None) -> None:
    """Emit that a meter of a class that is not seen keeps a tensor, where another of that class receives numbers."""
    func = call.node.func
    if call.name != "update" or owner is None or not owner.opaque or not isinstance(func, ast.Attribute):
        return
    nodes, name = call.engine.module.source.nodes, dotted(func.value)
    made = {dotted(one.targets[0]): called_name(one.value) for one in nodes.of(ast.Assign)}
    if "meter" not in made.get(name, "").lower() or not call.args:
        return
    for other in nodes.of(ast.Call):
        if isinstance(other.func, ast.Attribute) and other.func.attr == "update" and other.args:
            same = made.get(dotted(other.func.value)) == made[name]
            if same and called_name(other.args[0]) in ("item", "float"):
                kept = call.args[0]
                kept = kept.derived(kept.kind, unsure=True, made_of=(kept,)) if kept.kind == "tensor" else kept
                retain(call.engine, call.node, func.value, owner, kept)
                return


def position(engine: Engine, event: Event, value: Value) -> tuple[ast.AST, str]:
    """The call that gave a tensor to another object, which keeps it as it would keep a number."""
    found: tuple[ast.AST, str] = event.node, event.path
    for i in range(len(engine.frames) - 1, -1, -1):
        frame = engine.frames[i]
        own = engine.selves[i - len(engine.frames)]
        behind = len(engine.frames) - i + 1
        before = engine.selves[-behind] if len(engine.selves) >= behind else None
        received = any(a in made_of(value) for a in frame.args)
        if own is None or own is before or not isinstance(frame.call, ast.Call) or not received:
            break
        found = frame.call, frame.module.path
    return found
