"""Methods of what updates weights: optimizers and loss scalers."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from gradlab.audit.interpreter.branch_conditions import formula
from gradlab.audit.interpreter.classes import updated
from gradlab.audit.source.syntax import dotted
from gradlab.audit.trace.events import If, events
from gradlab.audit.trace.values import CALLED, Value, several, tensor

if TYPE_CHECKING:
    from gradlab.audit.interpreter.interpreter import Interpreter


def optimizer(
    it: Interpreter, node: ast.Call, owner: Value, name: str, args: list[Value], keywords: dict[str, Value]
) -> Value:
    if name == "step" and "precondition" in dotted(node.func).lower():
        return Value()  # of K-FAC: it changes gradients, and no weights
    if name == "step":
        before = len(it.out)
        for closure in [*args, *keywords.values()]:
            if closure.kind in CALLED:
                it.apply(node, closure, [])
        inside = events(it.out[before:])
        for hook in owner.data.get("before", []):
            it.apply(node, hook, [owner])
        it.emit("step", node, owner, closure=inside)
        for hook in owner.data.get("behind", []):
            it.apply(node, hook, [owner])
        return tensor() if args else Value()
    if name in ("register_step_pre_hook", "register_step_post_hook") and args:
        owner.data.setdefault("before" if "pre" in name else "behind", []).append(args[0])
        return Value()
    if name in ("zero_grad", "clear_grad"):
        it.emit("zero", node, owner)
    elif name in ("first_step", "second_step"):  # SAM's: up to where the loss is worse, and the update from there
        if name == "second_step":
            it.emit("step", node, owner)
        if any(v.data.get("value") is True for v in [*args, *keywords.values()]):
            it.emit("zero", node, owner)
    elif name in ("clip_grad_norm", "clip_master_grads", "consolidate"):
        it.emit("opaque", node, owner, name=name, receives={"framework"})
    elif name.startswith("step_") or name.endswith("_step") or "hessian" in name:
        # `step_and_update_lr`, `fuse_step`; `update_hessian` uses the gradients up as a step does
        it.emit("step", node, owner)
    return Value()


def scaler(it: Interpreter, node: ast.Call, owner: Value, name: str, args: list[Value]) -> Value:
    if name == "scale" and args:
        if args[0].kind == "list":
            return several([Value("tensor", "", {**v.data, "scaled": owner}) for v in args[0].data["items"]])
        data = {k: v for k, v in args[0].data.items() if k != "choice"}
        if args[0].kind != "tensor":
            data["opaque"] = True
        return Value("tensor", "", {**data, "scaled": owner, "made_of": (args[0],)})
    given = isinstance(next(iter(node.args), None), ast.Name) and args[0].data.get("given")
    if name in ("step", "unscale_") and given and args[0].kind == "unknown":
        args[0].kind = "optimizer"
    if name == "step":
        myself, held = it.selves[-1] if it.selves else None, dotted(node.func).split(".")[1:-1]
        classes = myself.data.get("lineage", []) if myself is not None else []
        elsewhere = any(name in updated(made) for made in classes for name in held)
        it.emit("step", node, args[0] if args else None, scaler=owner, elsewhere=elsewhere)
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
