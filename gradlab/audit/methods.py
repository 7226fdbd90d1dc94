"""Methods that act on gradients, by the kind of the value that they are called on."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from gradlab.audit import ranges
from gradlab.audit.effects import combined, descended, forward, kept
from gradlab.audit.formulas import canonical, formula
from gradlab.audit.frameworks import accelerator, fabric, lightning
from gradlab.audit.language import engine, entered, of_dictionary
from gradlab.audit.objects import method_of
from gradlab.audit.opaque import ACTING
from gradlab.audit.tree import If
from gradlab.audit.values import CALLED, Value, births, several, tensor

if TYPE_CHECKING:
    from gradlab.audit.interpreter import Interpreter

DETACHED = {"item", "detach", "tolist", "numpy", "detach_", "data_ptr"} | {
    *("argmax", "argmin", "argsort", "eq", "ne", "gt", "lt", "ge", "le", "bool", "int", "long", "byte"),
    *("size", "dim", "numel", "isnan", "isinf", "isfinite"),
}  # and what has no gradient
PARAMS = {"parameters", "named_parameters", "trainable_parameters"}
KEEPING = {
    "train",
    "eval",
    "to",
    "cuda",
    "cpu",
    "float",
    "half",
    "bfloat16",
    "double",
    "compile",
    "requires_grad_",
    "apply",
}


def method(
    it: Interpreter, node: ast.Call, owner: Value, name: str, args: list[Value], keywords: dict[str, Value]
) -> Value | None:
    """A call of a method on a value whose kind is known; None where the callee itself must be looked up."""
    kind = owner.kind
    own = kind in ("optimizer", "scheduler") and name in ("step", "zero_grad")  # followed, it would be arithmetic
    if "class" in owner.data and method_of(owner, name) is not None and not own:
        return None
    if kind == "engine" and name in ("backward", "step"):
        return engine(it, node, owner, name, args)
    if kind == "stack" and name == "enter_context":
        return entered(it, node, owner, args)
    if kind == "dict":
        return of_dictionary(it, owner, name, args)
    if kind == "unknown" and name == "zero_grad":
        it.emit("zero", node, None, whose="unknown")
        return Value()
    if name == "backward":
        return backward(it, node, owner, args)
    if kind == "optimizer":
        return optimizer(it, node, owner, name, args, keywords)
    if kind == "optimizers" or (
        owner.data.get("class") and name in ("optimizers", "manual_backward", "clip_gradients")
    ):
        return lightning(it, node, owner, name, args, keywords)
    if kind == "scaler":
        return scaler(it, node, owner, name, args)
    if kind == "scheduler":
        if name in ("step", "step_update", "batch_step"):
            it.emit("schedule", node, owner, arguments=len(args) + len(keywords))
        return Value()
    if kind in ("model", "ddp", "instance", "criterion", "engine"):
        return module(it, node, owner, name, args, keywords)
    if kind == "accelerator":
        return accelerator(it, node, owner, name, args, keywords)
    if kind == "fabric":
        return fabric(it, node, owner, name, args, keywords)
    if kind == "tensor":
        return of_tensor(it, node, owner, name, args)
    if kind in ("gradient", "gradients", "param"):
        return gradient(it, node, owner, name, args)
    if kind == "params":
        return owner
    if name in ("append", "extend") and args:
        if kind in ("list", "unknown"):
            mark = kept(it, node, node.func.value, owner, args[0])  # type: ignore[attr-defined]
            if mark is not None:
                owner.data["marks"] = owner.data.get("marks", frozenset()) | {mark}
        if kind == "list" and name == "append" and args[0].kind in ACTING:
            owner.data["items"] = [*owner.data["items"], args[0]]
        return Value()
    return None


def backward(it: Interpreter, node: ast.Call, owner: Value, args: list[Value]) -> Value:
    if owner.kind in ("accelerator", "fabric"):
        it.emit("backward", node, args[0] if args else None, through=owner)
    elif owner.kind in ("tensor", "detached") or not any(v.kind == "tensor" or v.data.get("opaque") for v in args):
        if "choice" in owner.data:
            for when, value in owner.data["choice"]:
                events = it.collect(
                    lambda value=value: it.emit(
                        "backward", node, value, perhaps=owner.data.get("perhaps"), text=ast.unparse(node.func)
                    )
                )
                it.out.append(If(when, events, []))
        else:
            it.emit("backward", node, owner, text=ast.unparse(node.func))
    else:
        it.emit("opaque", node, owner, name="backward", receives={"framework"})
    return Value()


def optimizer(
    it: Interpreter, node: ast.Call, owner: Value, name: str, args: list[Value], keywords: dict[str, Value]
) -> Value:
    if name == "step":
        for closure in [*args, *keywords.values()]:
            if closure.kind in CALLED:
                it.apply(node, closure, [])
        for hook in owner.data.get("before", []):
            it.apply(node, hook, [owner])
        it.emit("step", node, owner)
        for hook in owner.data.get("behind", []):
            it.apply(node, hook, [owner])
        return tensor() if args else Value()
    if name in ("register_step_pre_hook", "register_step_post_hook") and args:
        owner.data.setdefault("before" if "pre" in name else "behind", []).append(args[0])
        return Value()
    if name in ("zero_grad", "clear_grad"):
        it.emit("zero", node, owner)
    elif name in ("first_step", "second_step", "clip_grad_norm", "clip_master_grads", "synchronize", "consolidate"):
        it.emit("opaque", node, owner, name=name, receives={"framework"})
    return Value()


def scaler(it: Interpreter, node: ast.Call, owner: Value, name: str, args: list[Value]) -> Value:
    if name == "scale" and args:
        if args[0].kind == "list":
            return several([Value("tensor", "", {**v.data, "scaled": owner}) for v in args[0].data["items"]])
        data = {k: v for k, v in args[0].data.items() if k != "choice"}
        if args[0].kind != "tensor":
            data["opaque"] = True
        return Value("tensor", "", {**data, "scaled": owner})
    if name == "step":
        it.emit("step", node, args[0] if args else None, scaler=owner)
    elif name == "unscale_":
        it.emit("unscale", node, args[0] if args else None, scaler=owner)
    elif name == "update":
        it.emit("update", node, owner)
    return Value()


def loss_scaler(it: Interpreter, node: ast.Call, owner: Value, args: list[Value], keywords: dict[str, Value]) -> Value:
    """timm's: scale, backward, and where an update is due unscale, clip, step, update."""
    names = {k.arg: k.value for k in node.keywords}
    opt = args[1] if len(args) > 1 else keywords.get("optimizer")
    value = args[0] if args else keywords.get("loss", Value())
    it.emit("backward", node, Value("tensor", "", {**value.data, "scaled": owner}))

    def rest() -> None:
        it.emit("unscale", node, opt, scaler=owner)
        if keywords.get("clip_grad", keywords.get("max_norm")) is not None:
            it.emit("clip", node, keywords.get("parameters"), call=node)
        it.emit("step", node, opt, scaler=owner)
        it.emit("update", node, owner)

    due = names.get("need_update", names.get("update_grad"))
    if due is None:
        rest()
    else:
        it.out.append(If(formula(it, due), it.collect(rest), []))
    return Value()


def module(
    it: Interpreter, node: ast.Call, owner: Value, name: str, args: list[Value], keywords: dict[str, Value]
) -> Value | None:
    if name == "module":
        return None
    if name == "zero_grad":
        it.emit("zero", node, owner)
    elif name in PARAMS:
        return Value("params", data={"of": owner, "named": name.startswith("named")})
    elif name in ("no_sync", "join"):
        return Value("context", data={"word": name, "model": owner})
    elif name == "clip_grad_norm_":
        it.emit("clip", node, owner, call=node)
    elif name in KEEPING:
        text = ast.unparse(node)
        if name == "half" or (name == "to" and re.search(r"float16|\bhalf\b", text) and "bfloat16" not in text):
            owner.data["half"] = node
        return owner
    elif name in ("modules", "named_modules", "children", "named_children"):
        return Value("modules", data={"of": owner})
    elif name in ("forward", "forward_features") or (name == "loss" and owner.kind == "model"):
        return forward(it, node, owner, args)
    elif owner.data.get("class") is None and owner.kind in ("model", "ddp"):
        if name == "step":
            it.emit("opaque", node, owner, name=name, receives={"framework"})
        if name in ("training_step", "compute_loss", "log_prob", "evaluate_actions"):
            return tensor(roots=frozenset([next(births)]), factors=[], opaque=True)
        return Value("unknown", "", {"made": True, "opaque": True})
    else:
        return None
    return Value()


def of_tensor(it: Interpreter, node: ast.Call, owner: Value, name: str, args: list[Value]) -> Value:
    if name in DETACHED:
        return Value("detached")
    if name in ("div", "div_", "mul", "mul_", "true_divide", "multiply", "divide") and args:
        op: ast.operator = ast.Div() if "div" in name else ast.Mult()
        made = combined(it, op, owner, args[0], node.args[0])
        if name.endswith("_"):
            owner.data.update(made.data)
        return made
    data = {**owner.data}
    if name in ("sum", "nansum"):
        data["reduction"] = "sum"
    if name in ("mean", "sum") and not args and not node.keywords:
        data["one"] = True  # a number for the log
    data |= ranges.applied(it, node, name, owner, bool(args) or bool(node.keywords))
    return Value("tensor", "", data)


def gradient(it: Interpreter, node: ast.Call, owner: Value, name: str, args: list[Value]) -> Value:
    if owner.kind == "gradient":
        if owner.data.get("guess") and name in ("zero_", "detach_", "clamp_", "clip_"):
            return Value()  # of an input, perhaps
        if name in ("zero_", "detach_"):
            it.emit("zero", node, owner, by_hand=True)
        elif name in ("div_", "mul_") and args:
            it.emit("scale", node, owner, by=canonical(it, node.args[0]), factor=args[0], op=name)
        elif name in ("clamp_", "clip_"):
            it.emit("clip", node, owner, by_value=True, call=node)
        elif name in ("norm", "abs", "pow", "isnan", "isinf", "isfinite", "max", "mean", "std"):
            it.emit("look", node, owner)
        if name in ("detach", "data", "float", "view", "flatten", "clone"):
            return owner
    elif owner.kind == "param" and name in ("add_", "sub_"):
        descended(it, node, owner, [*node.args, *(k.value for k in node.keywords)], name == "sub_")
    elif owner.kind == "param" and name == "copy_" and node.args and isinstance(node.args[0], ast.BinOp):
        descended(it, node, owner, node.args, isinstance(node.args[0].op, ast.Sub))
    elif owner.kind == "param" and name in ("detach", "view", "flatten"):
        return owner
    return Value("measured")
