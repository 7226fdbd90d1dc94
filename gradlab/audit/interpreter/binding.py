"""What assignments bind names, attributes and items to."""

from __future__ import annotations

import ast
from typing import Any

from gradlab.audit.knowledge.context_regions import SYNC_FLAG
from gradlab.audit.knowledge.freezing import freeze, renew
from gradlab.audit.knowledge.known_names import NAMES, kind_by_name
from gradlab.audit.knowledge.tensor_methods import own_gradient
from gradlab.audit.knowledge.usage import usage
from gradlab.audit.source.syntax import dotted
from gradlab.audit.trace.choices import either
from gradlab.audit.trace.conditions import Formula, negation
from gradlab.audit.trace.engine import Engine
from gradlab.audit.trace.iterables import OTHERS
from gradlab.audit.trace.provenance import is_traced, of_part, sources, take_apart
from gradlab.audit.trace.truth import truthy
from gradlab.audit.trace.values import NO_ROOTS, Value, births

Attributes = dict[tuple[int, str], tuple[Value, Value]]
"""An object and the value of its attribute, by the object's id and the attribute's name."""


def name_result(engine: Engine, target: ast.expr, value: Value) -> None:
    """Give the result of a call that could not be followed the kind that its use shows."""
    name = dotted(target)
    owner = engine.selves[-1]
    scope = (owner.cls if owner is not None else None) if name.startswith("self.") else engine.scope.node
    if scope is not None and name:
        value.kind = usage(scope).kind(name) or kind_by_name(name) or value.kind
        value.name = name
        if (
            value.kind == "unknown"
            and value.leaf is None
            and "backward" in usage(engine.scope.node).methods.get(name, ())
            and name not in usage(engine.scope.node).takes_loss
        ):
            value.become_tensor()
            value.inside = value.inside or tuple(engine.regions)


def bind(engine: Engine, target: ast.expr, value: Value) -> None:
    if isinstance(target, ast.Name):
        if value.blank:
            value.kind = usage(engine.scope.node).kind(target.id) or "unknown"
        engine.scope.home(target.id).names[target.id] = value
    elif isinstance(target, ast.Attribute):
        bind_attribute(engine, target, value)
    elif isinstance(target, (ast.Tuple, ast.List)):
        for i, part in enumerate(target.elts):
            if isinstance(part, ast.Starred):
                bind(engine, part.value, Value())
            else:
                bind(engine, part, unpacked(engine, part, value, i, len(target.elts)))
    elif isinstance(target, ast.Subscript):
        whole = engine.value(target.value)
        replace_item(whole, value)
        if whole.kind in ("unknown", "tensor", "detached") and (not is_traced(value) or sources(value)):
            whole.update(kind="tensor" if whole.kind == "tensor" else "unknown", traced=False)
        if whole.kind in ("model", "ddp") or value.kind in ("model", "ddp", "instance"):
            renew(engine, whole, value)
        if whole.kind == "dict":
            set_attribute(engine, whole, OTHERS, Value())
        named = isinstance(target.slice, ast.Constant) and isinstance(target.slice.value, str)
        setting = value.kind == "unknown" and value.given and whole.kind in ("dict", "unknown")
        if named and (setting or value.kind in ("tensor", "index", "number", "external")):
            set_attribute(engine, whole, f"[{ast.unparse(target.slice)}]", value)


def bind_attribute(engine: Engine, target: ast.Attribute, value: Value) -> None:
    owner = engine.value(target.value)
    set_attribute(engine, owner, target.attr, value)
    if target.attr != "requires_grad" and value is not owner:
        renew(engine, owner, value)
    if owner.kind in ("model", "ddp") and value is not owner and target.attr != "requires_grad":
        if value.kind in ("model", "ddp", "unknown", "instance"):
            value.shared |= value.within not in (None, owner)
        if value.kind == "model" and value.within is None:
            value.within = owner
    if target.attr == "requires_grad":
        owner.own_weight = owner.kind == "unknown" and owner.made and owner.traced and value.value is True
        if value.value is True:
            own_gradient(owner)
        owner.traced = False
        freeze(engine, target, owner, value)
    if target.attr == "last_epoch" and not engine.branches:
        owner.rewound = True
    if target.attr == SYNC_FLAG:
        engine.emit("sync", target, owner)
        off = negation(truthy(value, dotted(target)))
        state = Value("context", word="no_sync", model=owner, when=off, node=target)
        set_attribute(engine, owner, target.attr, state)


def unpacked(engine: Engine, part: ast.expr, value: Value, i: int, count: int) -> Value:
    """What the i-th of several targets is bound to."""
    items = value.items if value.kind == "list" else []
    name = dotted(part)
    if len(items) == count:
        kept = isinstance(part, ast.Attribute)
        unnamed = (items[i].made and (kept or not items[i].name)) or items[i].prepared is not None
        if items[i].kind == "unknown" and unnamed and name:
            name_result(engine, part, items[i])
        return items[i]
    if value.kind == "optimizer":
        return Value("scheduler" if NAMES["scheduler"].search(name) else "optimizer", name, given=True)
    if value.kind == "scheduler":
        return Value("scheduler", name, given=True)
    item = Value("unknown", name, made=value.made, blind=value.blind, inside=value.inside, foreign=value.foreign)
    item.traced = value.traced and value.kind == "unknown"
    if value.made and name:
        name_result(engine, part, item)
    elif value.kind == "tensor":
        beside = i > 0 and value.source == "criterion"  # a tensor, or a number for the log
        roots, word = output(value, i, count)
        facts: dict[str, Any] = {"roots": roots | {next(births)}, "pieces": take_apart(value, str(i))}
        facts |= of_part(value, i)
        if len(value.outputs) == count and value.outputs[i][2] != "mean":
            facts["reduction"] = "unknown"  # the method may be given another word than its default
        item = value.derived("tensor", name, unsure=beside, range=word, traced=value.traced, **facts)
    return item


def output(value: Value, i: int, count: int) -> tuple[frozenset[int], str]:
    """The roots and the range of one of a network's outputs."""
    if len(value.outputs) != count:
        return value.roots, {"unseen": "several"}.get(
            value.range, value.range if value.range in ("slope", "output") else ""
        )
    word, own, _ = value.outputs[i]
    word = word or ("output" if value.range == "output" else "")
    return value.roots - NO_ROOTS.union(*(tokens for _, tokens, _ in value.outputs)) | own, word


def replace_item(whole: Value, value: Value) -> None:
    """`items[i] = items[i].item()`: which item of the list is replaced is not known; each may be."""
    if whole.kind == "list" and value.kind != "tensor":
        whole.items[:] = [
            v.derived("tensor", v.name, unsure=True, perhaps_divided=True) if v.kind == "tensor" else v
            for v in whole.items
        ]


def set_attribute(engine: Engine, owner: Value, name: str, value: Value) -> None:
    engine.written.append((owner, name, owner.attributes.get(name)))
    owner.attributes[name] = value


def revert_attributes(engine: Engine, mark: int) -> Attributes:
    """Set attributes back to what they were when `written` was as long as `mark`; returns what they were set to."""
    found: Attributes = {}
    for owner, name, old in reversed(engine.written[mark:]):
        if name in owner.attributes:
            found.setdefault((id(owner), name), (owner, owner.attributes[name]))
        if old is None:
            owner.attributes.pop(name, None)
        else:
            owner.attributes[name] = old
    del engine.written[mark:]
    return found


def merge_attributes(
    engine: Engine, test: Formula, then: Attributes, other: Attributes, then_leaves: bool, other_leaves: bool
) -> None:
    """Set attributes to what they are after two branches, of which one or the other may have been left by a jump."""
    for key, (owner, _) in {**then, **other}.items():
        before = owner.attributes.get(key[1])
        one, two = (side[key][1] if key in side else before for side in (then, other))
        if owner.kind == "unknown" and None in (one, two) and "number" in [v.kind for v in (one, two) if v is not None]:
            continue  # a setting that is changed, or stays what it was elsewhere
        if other_leaves and not then_leaves:
            value = one
        elif one is None or (then_leaves and not other_leaves):
            value = two
        else:
            value = either(test, one, two)
        if value is not None and value is not before:
            set_attribute(engine, owner, key[1], value)
