"""Methods that act on gradients, by the kind of the value that they are called on."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from gradlab.audit.interpreter.classes import method_of
from gradlab.audit.interpreter.forward_passes import passed
from gradlab.audit.knowledge.framework_methods import accelerator, fabric, lightning
from gradlab.audit.knowledge.losses import descended, forward, kept
from gradlab.audit.knowledge.manual_updates import descending, plain, weights
from gradlab.audit.knowledge.opaque_calls import ACTING, blind
from gradlab.audit.knowledge.optimizer_methods import optimizer, scaler
from gradlab.audit.knowledge.python_functions import engine, entered, of_dictionary
from gradlab.audit.knowledge.tensor_methods import gradient, of_tensor
from gradlab.audit.trace.events import If
from gradlab.audit.trace.values import Value, births, tensor

if TYPE_CHECKING:
    from gradlab.audit.interpreter.interpreter import Interpreter

PARAMS = {"parameters", "named_parameters", "trainable_parameters"}
STEPS = ("step", "zero_grad", "first_step", "second_step")
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
    own = kind in ("optimizer", "scheduler") and name in STEPS  # followed, it would be arithmetic
    if "class" in owner.data and method_of(owner, name) is not None and not own:
        return None
    if name in ("sub_", "add_") and kind in ("tensor", "unknown", "detached") and by_hand(it, node):
        by = [*node.args, *(k.value for k in node.keywords)]
        descended(it, node, it.value(weights(node.func.value)), by, name == "sub_")  # type: ignore[attr-defined]
        return owner
    if kind == "engine" and name in ("backward", "step"):
        return engine(it, node, owner, name, args)
    if kind == "stack" and name == "enter_context":
        return entered(it, node, owner, args)
    if kind == "dict":
        return of_dictionary(it, owner, name, args)
    if kind == "unknown" and name in KEEPING and owner.data.get("given"):
        if name == "half":
            owner.data["half"] = node
        return owner
    if kind == "unknown" and name == "zero_grad":
        it.emit("zero", node, None, whose="unknown", given=owner)
        return Value()
    if name == "backward":
        return backward(it, node, owner, args)
    if kind == "optimizer":
        return optimizer(it, node, owner, name, args, keywords)
    if kind == "optimizers" or (
        owner.data.get("class") and name in ("optimizers", "lr_schedulers", "manual_backward", "clip_gradients")
    ):
        return lightning(it, node, owner, name, args, keywords)
    if kind == "scaler":
        return scaler(it, node, owner, name, [*args, *keywords.values()])
    if kind == "scheduler":
        if name in ("step", "step_update", "batch_step"):
            it.emit("schedule", node, owner, arguments=len(args) + len(keywords), speaks=it.module.source.text)
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
        if args[0].kind == "gradient":
            it.emit("taken", node, args[0])
        if kind in ("list", "unknown"):
            mark = kept(it, node, node.func.value, owner, args[0])  # type: ignore[attr-defined]
            if mark is not None:
                owner.data["marks"] = owner.data.get("marks", frozenset()) | {mark}
        if kind == "list" and name == "append" and args[0].kind in ACTING:
            owner.data["items"] = [*owner.data["items"], args[0]]
        return Value()
    return None


def by_hand(it: Interpreter, node: ast.Call) -> bool:
    """Whether what a method is called on goes down its own gradient."""
    return isinstance(node.func, ast.Attribute) and plain(node.func.value) in descending(it.scope.node)


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
            if owner.kind == "unknown" and not args and not owner.data.get("framework"):
                owner.kind = "tensor"
                owner.data |= {"opaque": True, "roots": frozenset([next(births)]), "factors": []}
            it.emit("backward", node, owner, text=ast.unparse(node.func))
    else:
        it.emit("opaque", node, owner, name="backward", receives={"framework"})
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
        made = forward(it, node, owner, args)
        return passed(it, node, owner, args, made) if name == "forward" else made
    elif owner.data.get("class") is None and owner.kind in ("model", "ddp"):
        if name == "step":
            it.emit("opaque", node, owner, name=name, receives={"framework"})
        if name in ("training_step", "compute_loss", "log_prob", "evaluate_actions"):
            return tensor(roots=frozenset([next(births)]), factors=[], opaque=True, inside=tuple(it.regions))
        told = {"blind": blind(owner, [*args, *keywords.values()]), "inside": tuple(it.regions)}
        return Value("unknown", "", {"made": True, "opaque": True, **told})
    else:
        return None
    return Value()
