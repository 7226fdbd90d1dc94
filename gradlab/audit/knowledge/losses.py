"""Effects that are no call of a method: forward passes, losses, context managers, gradients assigned."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from gradlab.audit.interpreter.canonical_text import canonical
from gradlab.audit.knowledge import value_ranges
from gradlab.audit.knowledge.loss_normalization import divisible
from gradlab.audit.knowledge.manual_updates import descending, optimized, plain
from gradlab.audit.source.syntax import dotted, walk
from gradlab.audit.trace.conditions import TRUE, Atom, Formula, joined
from gradlab.audit.trace.events import Event, Region
from gradlab.audit.trace.values import Value, births, members, tensor

if TYPE_CHECKING:
    from gradlab.audit.interpreter.interpreter import Interpreter


def forward(it: Interpreter, node: ast.Call, model: Value, args: list[Value]) -> Value:
    event = it.emit("forward", node, model, wrapped=bool(model.data.get("wrapped")), casts=it.module.casts)
    through = frozenset().union(*(v.data.get("roots", frozenset()) for v in args if v.kind == "tensor")) & it.tokens
    made = tensor(roots=through | {next(births)}, factors=[], source="model", forward=event, linear=True)
    made.data["chain"] = (*chained(args), event)
    made.data["range"] = value_ranges.of_model(model)
    return divisible(node, made)


def chained(values: list[Value]) -> tuple[Event, ...]:
    """The forward passes that values come from."""
    return tuple(dict.fromkeys(e for v in values if v.kind == "tensor" for e in v.data.get("chain", ())))[-8:]


def loss(it: Interpreter, data: dict, args: list[Value]) -> Value:
    from_tensors = [v for a in args for v in members(a) if v.kind == "tensor"]
    roots = frozenset().union(*(v.data.get("roots", frozenset()) for v in from_tensors)) | {next(births)}
    made = tensor(roots=roots, factors=[], source="criterion", reduction=data.get("reduction", "mean"))
    others = [v for v in args if v.kind == "unknown"]
    if others and not any("[" in v.name for v in others):  # a part of it is another in each turn
        made.data["target"] = max(v.birth for v in others)
    made.data["forward"] = next((v.data["forward"] for v in from_tensors if v.data.get("forward")), None)
    made.data["chain"] = chained(from_tensors)
    made.data["inside"] = tuple(it.regions)
    made.data["ignoring"] = data.get("ignoring", False) and made.data["reduction"] == "mean"
    if re.search(r"mse", str(data.get("type", "")), re.I):
        made.data["range"] = "square" if made.data["reduction"] == "none" else "error"
    return made


BARS = {"tqdm", "trange", "record_function", "profile"}
"""Contexts that change nothing in their blocks."""


def regions(it: Interpreter, value: Value, node: ast.expr, when: Formula = TRUE) -> list[Region]:
    if "choice" in value.data:
        return [
            region
            for test, item in value.data["choice"]
            for region in regions(it, item, node, joined("and", [when, test]))
        ]
    if value.kind == "autocast":
        return [Region("autocast", joined("and", [when, value.data.get("when", TRUE)]), node, value, value.data)]
    if value.kind == "context" and value.data["word"] == "followed":
        return [Region(r.kind, joined("and", [when, r.when]), r.node, r.value, r.data) for r in value.data["regions"]]
    if value.kind == "context":
        there = joined("and", [when, value.data.get("when", TRUE)])
        return [Region(value.data["word"], there, node, value.data.get("model"), value.data)]
    if value.kind == "stack":
        return [Region("null", when, node, value)]
    if value.kind == "unknown" and dotted(getattr(node, "func", node)).split(".")[-1] in BARS:
        return []
    if value.kind in ("unknown", "instance"):
        return [Region("unknown", when, node, value)]
    if value.kind == "method" and value.data["node"].name in ("no_sync", "accumulate"):
        return [Region(value.data["node"].name, when, node)]
    return []


def sync_flag(owner: Value) -> Value:
    return Value("bool", data={"formula": ("atom", sync_atom(owner))})


def sync_atom(owner: Value) -> Atom:
    return Atom(f"sync_gradients#{owner.number}", 1 << 60, "sync")


def assign_gradient(
    it: Interpreter, node: ast.stmt, target: ast.expr, right: ast.expr, op: ast.operator | None
) -> bool:
    """`p.grad = None`, `p.grad /= n` and their like."""
    if not isinstance(target, ast.Attribute):
        return False
    grad = target.value if target.attr == "data" else target
    if not (isinstance(grad, ast.Attribute) and grad.attr == "grad"):
        return False
    owner = it.value(grad.value)
    value = Value("gradient", data={"of": owner})
    nothing = isinstance(right, ast.Constant) and right.value in (None, 0)
    if op is None and (nothing or "zeros" in ast.unparse(right)):
        known = plain(grad.value) in descending(it.scope.node) | optimized(it.scope.node)
        if not known and owner.kind not in ("param", "instance", "list") and owner.name:
            return True  # of an input, perhaps
        it.emit("zero", node, value, by_hand=True)
    elif isinstance(op, (ast.Div, ast.Mult)):
        it.emit(
            "scale",
            node,
            value,
            by=canonical(it, right),
            factor=it.value(right),
            op="div_" if isinstance(op, ast.Div) else "mul_",
        )
    elif op is None and isinstance(right, ast.BinOp) and isinstance(right.op, (ast.Div, ast.Mult)):
        if "grad" in ast.unparse(right.left):
            name = "div_" if isinstance(right.op, ast.Div) else "mul_"
            it.emit("scale", node, value, by=canonical(it, right.right), factor=it.value(right.right), op=name)
    else:
        it.value(right)
        it.emit("given", node, value)
    return True


def descended(it: Interpreter, node: ast.AST, param: Value, by: list[ast.expr], down: bool) -> None:
    """`p -= lr * p.grad`: an update by hand; upwards it is an attack on the weights, and taken back."""
    parts = [part for expression in by for part in walk(expression)]
    if not any(isinstance(part, ast.Attribute) and part.attr in ("grad", "_grad") for part in parts):
        return
    if param.kind == "instance" or param.data.get("foreign"):
        return  # no tensor of PyTorch's: whether its gradients add up is not known
    if down or any(isinstance(part, ast.USub) for part in parts):
        root = param.root()
        birth = root.birth if root.kind != "unknown" or root.name else 0
        whole = it.results.setdefault(f"by hand#{root.number}", Value("optimizer", "by hand", {"of": root}, birth))
        whole.data["roots"] = [root]
        it.emit("step", node, whole)


def kept(
    it: Interpreter, node: ast.Assign | ast.AugAssign | ast.Call, target: ast.expr, old: Value, value: Value
) -> int | None:
    """A tensor with its graph is added to what outlives the turn of the loop; the mark of the sum is given back."""
    parts = [value, *members(value)]
    grads = all(v.kind == "tensor" and v.data.get("roots") and not v.data.get("unsure") for v in parts)
    if old.kind not in ("number", "unknown", "list", "tensor") or not grads:
        return None
    since = max(
        it.bound.get((id(it.scope.node), dotted(target)), 0),
        0 if old.kind == "tensor" else old.data.get("before", old.birth),
    )
    if any(region.kind == "no_grad" for region in it.regions):
        return None
    base = target.value if isinstance(target, ast.Subscript) else target
    mark = next(births)
    event = it.emit("keep", node, value, into=dotted(base), since=since, mark=mark)
    owner = it.selves[-1]
    event.data["classes"] = owner.data.get("lineage", []) if owner is not None else []
    event.node, event.path = handed(it, event, value)
    return mark


def handed(it: Interpreter, event: Event, value: Value) -> tuple[ast.AST, str]:
    """The call that gave a tensor to another object which keeps it, as it would keep a number."""
    found: tuple[ast.AST, str] = event.node, event.path
    for i in range(len(it.frames) - 1, -1, -1):
        at, module, args, _ = it.frames[i]
        own = it.selves[i - len(it.frames)]
        before = it.selves[i - len(it.frames) - 1] if len(it.selves) > len(it.frames) - i else None
        if own is None or own is before or not isinstance(at, ast.Call) or not any(a in made_of(value) for a in args):
            break
        found = at, module.path  # type: ignore[attr-defined]
    return found


def made_of(value: Value | None) -> list[Value]:
    """A tensor and what it is made of by arithmetic: if it is a single number, so is each of them."""
    found: list[Value] = []
    left = [value]
    while left and len(found) < 50:
        one = left.pop()
        if one is not None and one.kind == "tensor" and one not in found:
            found.append(one)
            left += [*one.data.get("made_of", ()), *(v for _, v in one.data.get("choice") or ())]
    return found
