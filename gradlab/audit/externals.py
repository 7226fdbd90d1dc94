"""Calls of installed packages: clips, losses, and what constructors make."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from gradlab.audit import known, ranges
from gradlab.audit.binding import element
from gradlab.audit.conditions import TRUE
from gradlab.audit.effects import loss
from gradlab.audit.formulas import formula, truthy
from gradlab.audit.language import language
from gradlab.audit.opaque import opaque
from gradlab.audit.values import CALLED, Value, every, members, several, tensor

if TYPE_CHECKING:
    from gradlab.audit.interpreter import Interpreter

SAME = {
    "list",
    "tuple",
    "iter",
    "tqdm",
    "sorted",
    "reversed",
    "set",
    "chain",
    "track",
    "tqdm_notebook",
    "itertools.chain",
}


def external(it: Interpreter, node: ast.Call, name: str, args: list[Value], keywords: dict[str, Value]) -> Value:
    if (value := language(it, node, name, args, keywords)) is not None:
        return value
    tail = name.split(".")[-1]
    if tail in known.CLIPS:
        params = args[0] if args else keywords.get("parameters")
        it.emit("clip", node, params, call=node, by_value="value" in tail)
        return Value("measured", "grad_norm")
    if tail in ("scale_loss",) and args:
        data = {**args[0].data, "scaled_by": "apex"}
        made = Value("tensor", "", data)
        return Value("context", data={"word": "scale_loss", "as": made})
    if tail == "master_params":
        return Value("params", data={"of": args[0].data.get("of") if args else None, "master": True})
    if name.endswith("amp.initialize") and args:
        return several(args) if args[1:] else args[0]
    kind = known.made(name)
    if kind:
        return construct(it, node, kind, name, args, keywords)
    if tail in ("all_reduce", "all_reduce_coalesced"):
        if any(v.kind in ("gradient", "gradients") for v in args):
            it.emit("reduce", node, args[0])
        return Value()
    if tail in ("clamp_", "clip_") and args and args[0].kind == "gradient":
        it.emit("clip", node, args[0], by_value=True, call=node)
        return Value()
    if tail == "enumerate" and args:
        start = keywords.get("start", args[1] if len(args) > 1 else None)
        first = start.data.get("value") if start is not None and start.kind == "number" else 0
        return Value("enumerated", data={"inner": args[0], "start": first if isinstance(first, int) else 0})
    if tail == "partial" and args and args[0].kind in ("function", "method"):
        return Value(args[0].kind, args[0].name, {**args[0].data, "args": args[1:], "keywords": keywords})
    if tail in ("range", "trange", "count"):
        return Value("counted")
    if tail == "zip":
        return Value("zipped", data={"items": args})
    if tail == "super":
        return Value("super", data={"self": it.selves[-1]})
    if name == "map" and len(args) == 2 and args[0].kind in CALLED:
        items = args[1].data["items"] if args[1].kind == "list" else [element(it, node.args[1], args[1])]
        return several([it.apply(node, args[0], [item]) for item in items[:4]])
    if tail in SAME or tail in ("filter", "map", "deepcopy", "copy"):
        return next((a for a in args if a.kind in ("params", "list", "enumerated")), args[-1] if args else Value())
    if tail in ("foreach_zero_", "_foreach_zero_"):
        it.emit("zero", node, args[0] if args else None, by_hand=True)
        return Value()
    if tail in ("get_total_norm", "global_norm", "check_gradients", "diagnose_gradients"):
        it.emit("look", node)
        return Value("measured")
    if known.LOSS_FUNCTION.match(tail) and args:
        reduction = keywords.get("reduction")
        kind_of_mean = reduction.data.get("value", "mean") if reduction else "mean"
        return loss(it, {"reduction": kind_of_mean, "ignoring": "ignore_index" in keywords, "type": name}, args)
    if name.startswith("torch.") or tail in ("sum", "max", "min", "abs"):
        if "autograd" in name:
            if tail == "backward":
                it.emit("backward", node, args[0] if args else None)
            return derivatives() if tail == "grad" else Value()
        if "norm" in tail and any(v.kind in ("gradient", "gradients") for v in args):
            it.emit("look", node)
            return Value("measured")
        if marks := frozenset().union(*(a.data.get("marks", frozenset()) for a in args)):
            return tensor(roots=marks, factors=[], opaque=True)
        inner = [v for a in args for v in members(a) if v.kind == "tensor"]
        if inner and not re.match(r"is|argmax|arg|eq|ne|no_grad", tail):
            data = {**inner[0].data}
            data["roots"] = frozenset().union(*(v.data.get("roots", frozenset()) for v in inner))
            if tail == "sum":
                data["reduction"] = "sum"
            partial = len(args) > 1 or "dim" in keywords
            first = inner[0] if inner[0] is args[0] else Value("tensor", "", {**data, "range": ""})
            changed = ranges.applied(it, node, tail, first, partial)
            data |= {**changed, "roots": data["roots"] | changed.get("roots", frozenset())}
            return Value("tensor", "", data)
        if tail in ("no_grad", "inference_mode"):
            return Value("context", data={"word": "no_grad"})
        return Value("unknown", "", {"made": True})
    if hasattr(__builtins__, tail) and "." not in name:
        return Value("unknown", "", {"made": True})
    return opaque(it, node, name, None, args, keywords)


def derivatives() -> Value:
    """Of a network with respect to its inputs, say: all of them zero at once in no practice."""
    return tensor(opaque=True, derivative=True)


def construct(
    it: Interpreter, node: ast.Call, kind: str, name: str, args: list[Value], keywords: dict[str, Value]
) -> Value:
    data: dict = {"call": node, "type": name, "path": it.module.path}
    if kind == "wrapper":
        made = args[0] if args else Value("model")
        if made.kind in ("function", "method", "lambda"):
            return made
        if made.kind in ("model", "ddp"):
            return made
        return Value("model", name, {**data, "type": made.data.get("type", ""), "unseen": True})  # what it wraps
    if kind == "ddp":
        inner = args[0] if args else keywords.get("module")
        if inner is not None:
            inner.kind = "model" if inner.kind == "unknown" else inner.kind
            inner.data["wrapped"] = True
        return Value("ddp", name, {**data, "of": inner})
    if kind == "optimizer":
        params = [v for a in [*args[:1], *keywords.values()] for v in every(a) if v.kind in ("params", "model", "ddp")]
        data["of"] = params[0].root() if params else None
        data["roots"] = [p.root() for p in params]
        inner = next((a for a in args if a.kind == "optimizer"), None)
        return inner if inner is not None and not params else Value("optimizer", name, data)
    if kind == "scheduler":
        data["optimizer"] = next((a for a in [*args, *keywords.values()] if a.kind == "optimizer"), None)
        data["length"] = lengths(it, node)
        return Value("scheduler", name, data)
    if kind == "criterion":
        reduction = keywords.get("reduction")
        data["reduction"] = reduction.data.get("value", "unknown") if reduction else "mean"
        data["ignoring"] = "ignore_index" in keywords
        return Value("criterion", name, data)
    if kind == "accelerator":
        steps = keywords.get("gradient_accumulation_steps")
        data["steps"] = steps
        data["fp16"] = "mixed_precision" in keywords and keywords["mixed_precision"].data.get("value") == "fp16"
        return Value("accelerator", name, data)
    if kind == "fabric":
        data["fp16"] = "precision" in keywords and keywords["precision"].data.get("value") in (16, "16", "16-mixed")
    if kind == "scaler":
        flag = keywords.get("enabled")
        data["enabled"] = truthy(flag, "enabled") if flag is not None else TRUE
        return Value("scaler", name, data)
    if kind == "autocast":
        names = {k.arg: k.value for k in node.keywords}
        given, dtype = names.get("enabled"), names.get("dtype")
        data["when"] = formula(it, given) if given is not None else TRUE
        meant = keywords.get("dtype")
        named = meant is not None and meant.kind == "external" and meant.name.startswith("torch.")
        data["dtype"] = meant.name if meant is not None and named else ast.unparse(dtype) if dtype is not None else ""
        data["device"] = node.args[0].value if node.args and isinstance(node.args[0], ast.Constant) else ""
        if "torch.cuda" in name:
            data["device"] = "cuda"
        return Value("autocast", name, data)
    if name.endswith("Sequential") and args:
        data["last"] = args[-1].data.get("last") or args[-1].data.get("type", "")
    return Value(kind, name, data)


def lengths(it: Interpreter, node: ast.Call) -> list[str]:
    """The expressions that say how long a schedule is, names followed to what they were assigned."""
    named = {"T_max", "total_steps", "num_training_steps", "total_iters", "steps_per_epoch", "T_0", "num_warmup_steps"}
    found = [k.value for k in node.keywords if k.arg in named] or node.args[1:3]
    return [it.traced(part) for part in found]
