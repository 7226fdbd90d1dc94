"""What assignments and the turns of a loop bind names to."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from gradlab.audit.interpreter.choices import either
from gradlab.audit.knowledge import known_names
from gradlab.audit.source.syntax import dotted
from gradlab.audit.trace.conditions import Formula
from gradlab.audit.trace.scope import usage
from gradlab.audit.trace.values import Value, births, several

if TYPE_CHECKING:
    from gradlab.audit.interpreter.interpreter import Interpreter

TOLD = ("made", "blind", "inside", "foreign")
"""What is known of a value that is known of its parts, too."""
Held = dict[tuple[int, str], tuple[Value, Value]]
"""By object and name: an attribute's object and value."""


def name_result(it: Interpreter, target: ast.expr, value: Value) -> None:
    """The result of a call that cannot be followed: what its use shows it to be."""
    name = dotted(target)
    scope = owner_class(it) if name.startswith("self.") else it.scope.node
    if scope is not None and name:
        value.kind = usage(scope).kind(name) or known_names.by_name(name) or value.kind
        value.name = name
        if value.kind == "unknown" and "backward" in usage(it.scope.node).methods.get(name, ()):
            value.kind = "tensor"
            value.data |= {"opaque": True, "roots": frozenset([next(births)]), "factors": []}


def bind(it: Interpreter, target: ast.expr, value: Value) -> None:
    if isinstance(target, ast.Name):
        if value.kind == "unknown" and not value.name and not value.data:
            value.kind = usage(it.scope.node).kind(target.id) or "unknown"
        it.scope.names[target.id] = value
    elif isinstance(target, ast.Attribute):
        owner = it.value(target.value)
        hold(it, owner, target.attr, value)
        if owner.kind in ("model", "ddp") and value.kind == "model" and value is not owner:
            value.data.setdefault("within", owner)
        if target.attr == "last_epoch":
            owner.data["rewound"] = True
        if target.attr == "require_backward_grad_sync":
            it.emit("sync", target, owner)
    elif isinstance(target, (ast.Tuple, ast.List)):
        items = value.data["items"] if value.kind == "list" else []
        for i, part in enumerate(target.elts):
            if isinstance(part, ast.Starred):
                bind(it, part.value, Value("unknown"))
            elif len(items) == len(target.elts):
                if items[i].kind == "unknown" and items[i].data.get("made") and not items[i].name and dotted(part):
                    name_result(it, part, items[i])
                bind(it, part, items[i])
            else:
                known_of = {key: value.data[key] for key in TOLD if key in value.data}
                item = Value("unknown", dotted(part), known_of)
                if value.kind == "optimizer":
                    kind = "scheduler" if known_names.NAMES["scheduler"].search(dotted(part)) else "optimizer"
                    item = Value(kind, dotted(part), {"of": None, "given": True})
                elif value.kind == "scheduler":
                    item = Value("scheduler", dotted(part), {"given": True})
                elif value.data.get("made") and item.name:
                    name_result(it, part, item)
                elif value.kind == "tensor":
                    beside = i > 0 and value.data.get("source") == "criterion"  # a tensor, or a number for the log
                    roots, word = output(value, i, len(target.elts))
                    told = {"roots": roots | {next(births)}, "unpacked": True, "unsure": beside, "range": word}
                    item = Value("tensor", dotted(part), {**value.data, **told})
                bind(it, part, item)
    elif isinstance(target, ast.Subscript):
        whole = it.value(target.value)
        changed(whole, value)
        if isinstance(target.slice, ast.Constant) and isinstance(target.slice.value, str) and value.kind == "tensor":
            hold(it, whole, f"[{ast.unparse(target.slice)}]", value)


def changed(whole: Value, value: Value) -> None:
    """`items[i] = items[i].item()`: of a list, which item is another is not known; each may be."""
    if whole.kind == "list" and value.kind != "tensor":
        items = whole.data["items"]
        items[:] = [
            Value("tensor", v.name, {**v.data, "unsure": True, "perhaps": True}) if v.kind == "tensor" else v
            for v in items
        ]


def hold(it: Interpreter, owner: Value, name: str, value: Value) -> None:
    it.written.append((owner, name, owner.attributes.get(name)))
    owner.attributes[name] = value


def taken_back(it: Interpreter, mark: int) -> Held:
    """What attributes were set to since a mark; they are what they were before."""
    found: Held = {}
    for owner, name, old in reversed(it.written[mark:]):
        if name in owner.attributes:
            found.setdefault((id(owner), name), (owner, owner.attributes[name]))
        if old is None:
            owner.attributes.pop(name, None)
        else:
            owner.attributes[name] = old
    del it.written[mark:]
    return found


def held(it: Interpreter, test: Formula, then: Held, other: Held, left: bool, other_left: bool) -> None:
    """Attributes after two branches, of which one or the other may have been left."""
    for key, (owner, _) in {**then, **other}.items():
        before = owner.attributes.get(key[1])
        one, two = (side[key][1] if key in side else before for side in (then, other))
        if other_left and not left:
            value = one
        elif one is None or (left and not other_left):
            value = two
        else:
            value = either(it, test, one, two)
        if value is not None and value is not before:
            hold(it, owner, key[1], value)


def output(value: Value, i: int, count: int) -> tuple[frozenset[int], str]:
    """The marks and the range of one of a network's outputs; each may be a number for the log."""
    roots, outputs = value.data.get("roots", frozenset()), value.data.get("outputs", [])
    if len(outputs) != count:
        return roots, "several" if value.data.get("range") == "unseen" else ""
    return roots - frozenset().union(*(tokens for _, tokens in outputs)) | outputs[i][1], outputs[i][0]


def owner_class(it: Interpreter) -> ast.ClassDef | None:
    owner = it.selves[-1]
    return owner.data.get("class") if owner is not None else None


def element(it: Interpreter, node: ast.expr, over: Value) -> Value:
    """What one turn of a loop over a value binds."""
    if over.kind == "params":
        param = Value("param", data=dict(over.data))
        return several([Value("number", data={"value": "name"}), param]) if over.data.get("named") else param
    if over.kind == "groups":
        return Value("group", data=dict(over.data))
    if over.kind == "enumerated":
        inner = over.data["inner"]
        index = Value("index", "i", {"offset": over.data["start"], "turn": True})
        return several([index, Value("unknown", "batch") if inner.kind != "params" else element(it, node, inner)])
    if over.kind == "counted":
        return Value("index", "i", {"offset": 0, "stop": over.data["stop"], "turn": True})
    if over.kind == "list" and over.data["items"]:
        return over.data["items"][0]
    if over.kind in ("optimizer", "scheduler", "scaler") or over.kind == "tensor":
        return over
    if over.kind == "zipped":
        return several([element(it, node, v) for v in over.data["items"]])
    return Value("unknown", "")
