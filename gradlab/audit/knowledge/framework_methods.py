"""Methods of Lightning's modules, of Accelerate's accelerator and of Fabric."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from gradlab.audit.interpreter.branch_conditions import formula
from gradlab.audit.trace.conditions import TRUE
from gradlab.audit.trace.values import Value, several

if TYPE_CHECKING:
    from gradlab.audit.interpreter.interpreter import Interpreter


def lightning(
    it: Interpreter, node: ast.Call, owner: Value, name: str, args: list[Value], keywords: dict[str, Value]
) -> Value | None:
    if name == "optimizers":
        made = owner.attributes.get("configured")
        return made if made is not None else Value("optimizer", "optimizers", {"of": None, "given": True})
    if name == "lr_schedulers":
        made = owner.attributes.get("scheduled")
        return made if made is not None else Value("scheduler", "lr_schedulers", {"given": True})
    if name == "manual_backward":
        it.emit("backward", node, args[0] if args else None, through=owner)
    elif name == "clip_gradients":
        it.emit("clip", node, args[0] if args else keywords.get("optimizer"), call=node, through=owner)
    else:
        return None
    return Value()


def single(owner: Value) -> bool:
    """An accelerator made here without a word of a window: each batch is an update."""
    call = owner.data.get("call")
    if call is None or call.args or "gradient_accumulation_steps" in owner.attributes:
        return False
    return not any(k.arg is None or "accumulation" in k.arg or "plugin" in k.arg for k in call.keywords)


def accelerator(
    it: Interpreter, node: ast.Call, owner: Value, name: str, args: list[Value], keywords: dict[str, Value]
) -> Value:
    if name in ("clip_grad_norm_", "clip_grad_value_"):
        it.emit("clip", node, args[0] if args else None, call=node, through=owner)
    elif name == "unscale_gradients":
        it.emit("unscale", node, args[0] if args else None, scaler=owner)
    elif name == "prepare":
        for value in args:
            value.data["prepared"] = owner
        return args[0] if len(args) == 1 else several(args)
    elif name == "accumulate" and single(owner):
        return Value("null")
    elif name in ("accumulate", "no_sync"):
        return Value("context", data={"word": name, "model": args[0] if args else None, "of": owner})
    elif name == "autocast":
        return Value("autocast", "autocast", {"through": owner})
    elif name == "unwrap_model":
        inner = args[0] if args else None
        return Value(
            "model", "", {"of": inner, "raw": inner if inner is not None and inner.data.get("prepared") else None}
        )
    elif name.startswith("prepare"):
        for value in args[:1]:
            value.data["prepared"] = owner
        return args[0] if args else Value()
    return Value("unknown", "", {"made": True})


def fabric(
    it: Interpreter, node: ast.Call, owner: Value, name: str, args: list[Value], keywords: dict[str, Value]
) -> Value:
    if name == "clip_gradients":
        it.emit("clip", node, args[0] if args else None, call=node, through=owner)
    elif name in ("setup", "setup_module", "setup_optimizers", "setup_dataloaders"):
        if name == "setup_optimizers":
            args = [a if a.kind == "optimizer" else Value("optimizer", a.name, {"given": True}) for a in args]
        for value in args:
            value.data["prepared"] = owner
        return args[0] if len(args) == 1 else several(args)
    elif name == "no_backward_sync":
        flag = next(
            (k.value for k in node.keywords if k.arg == "enabled"), node.args[1] if len(node.args) > 1 else None
        )
        when = formula(it, flag) if flag is not None else TRUE
        return Value("context", data={"word": "no_sync", "model": args[0] if args else None, "when": when})
    elif name == "autocast":
        return Value("autocast", "autocast", {"through": owner})
    return Value("unknown", "", {"made": True})
