"""What a name or an attribute stands for: bound, of the project, of an installed package, or told by its use."""

from __future__ import annotations

import ast
import builtins
from typing import TYPE_CHECKING

from gradlab.audit.interpreter.classes import method_of
from gradlab.audit.interpreter.instances import member
from gradlab.audit.knowledge import known_names
from gradlab.audit.knowledge import losses as effects
from gradlab.audit.knowledge.manual_updates import descending, optimized, plain
from gradlab.audit.source.project import Module
from gradlab.audit.source.syntax import dotted
from gradlab.audit.trace.scope import usage
from gradlab.audit.trace.values import Value

if TYPE_CHECKING:
    from gradlab.audit.interpreter.interpreter import Interpreter


BOUND = {
    "optimizer": ("step", "zero_grad"),
    "scaler": ("scale", "step", "unscale_", "update"),
    "scheduler": ("step",),
    "model": ("zero_grad", "parameters"),
    "ddp": ("zero_grad", "parameters", "no_sync"),
    "tensor": ("backward",),
}
"""Methods that are followed under another name, too: `zero = optimizer.zero_grad`."""


PLAIN = {*("shape", "dtype", "device", "grad", "grad_fn", "requires_grad", "is_leaf", "ndim", "is_cuda", "layout")}
"""What a tensor has, and a network's output of several parts as a rule has not."""


def named(it: Interpreter, name: str) -> Value:
    """What a name is bound to; the first look-up binds it at the top of its module."""
    if (held := it.scope.find(name)) is not None:
        return held
    module = it.module
    value = top_level(it, module, name)
    if value is None and name in module.imports:
        value = imported(it, *module.imports[name], module)
    if value is None and module.stars and (found := it.project.starred(name, module)) is not None:
        value = top_level(it, found[0], getattr(found[1], "name", ""))
    if value is None and module.stars:
        value = handed_on(it, name, module)
    if value is None and hasattr(builtins, name):
        value = Value("external", name, birth=0)
    if value is None:
        value = Value("unknown", name, {"given": True}, birth=0)
        value.kind = usage(it.scope.node).kind(name) or known_names.by_name(name) or "unknown"
    it.world(module).names[name] = value
    return value


USUAL = {"torch": "torch", "nn": "torch.nn", "F": "torch.nn.functional", "optim": "torch.optim"}
"""What these names mean to everybody, where they come with `from x import *` from a package that is not read."""


def handed_on(it: Interpreter, name: str, module: Module) -> Value | None:
    """What another file imports and `from x import *` takes from it."""
    if (found := it.project.handed_on(name, module)) is not None:
        return imported(it, *found)
    return Value("external", USUAL[name], birth=0) if name in USUAL else None


def top_level(it: Interpreter, module: Module, name: str) -> Value | None:
    found = module.names.get(name)
    if isinstance(found, ast.ClassDef):
        return Value("class", name, {"node": found, "module": module})
    if found is not None:
        return Value("function", name, {"node": found, "module": module, "scope": it.world(module)})
    return None


def imported(it: Interpreter, name: str, level: int, module: Module) -> Value:
    if level or "." in name:
        found = it.project.resolve(name, level, module)
        if found is not None:
            there, node = found
            value = top_level(it, there, getattr(node, "name", ""))
            if value is not None:
                return value
    return Value("external", name, birth=0)


def attribute(it: Interpreter, value: Value, name: str, node: ast.Attribute) -> Value:
    if name in value.attributes and (value.kind != "ddp" or name != "module" or "raw" in value.attributes[name].data):
        held = value.attributes[name]
        if held.kind == "unknown" and held.data.get("given") and "class" in value.data:
            held.kind = class_usage(it, value, name, dotted(node)) or "unknown"
        return held
    made = known_attribute(it, value, name, node)
    if made is None:
        made = Value("unknown", f"{value.name}.{name}", {"given": True}, birth=value.birth)
        text = dotted(node)
        owner = value.data.get("class")
        if owner is not None and text:
            made.kind = class_usage(it, value, name, text) or known_names.by_name(name) or "unknown"
        elif text and value.kind in ("model", "ddp"):
            made.kind = usage(it.scope.node).kind(text) or "unknown"
            made.data["within"] = value
        elif text and value.kind in ("unknown", "instance", "accelerator", "arguments"):
            made.kind = usage(it.scope.node).kind(text) or known_names.by_name(name) or "unknown"
        elif text and value.kind == "optimizer" and "step" in usage(it.scope.node).methods.get(text, ()):
            made.kind, made.data["held_by"] = "optimizer", value
        if value.data.get("framework"):
            made.data["framework"] = True
    if value.kind not in ("external", "number", "none"):
        value.attributes[name] = made
    return made


def class_usage(it: Interpreter, value: Value, name: str, text: str) -> str:
    for owner in value.data.get("lineage", [value.data.get("class")]):
        if kind := usage(owner).kind(f"self.{name}"):
            return kind
    return usage(it.scope.node).kind(text)


def known_attribute(it: Interpreter, value: Value, name: str, node: ast.Attribute) -> Value | None:
    own = value.kind in ("model", "ddp") and method_of(value, name) is not None
    if name in BOUND.get(value.kind, ()) and not own:
        return Value("bound", name, {"owner": value, "name": name}, birth=value.birth)
    if value.kind == "external":
        dotted_name = f"{value.name}.{name}"
        found = it.project.resolve(dotted_name, 0, it.module) if "." in dotted_name else None
        if found is not None and (top := top_level(it, found[0], getattr(found[1], "name", ""))) is not None:
            return top
        return Value("external", dotted_name, birth=0)
    if name == "grad" and plain(node.value) in descending(it.scope.node) | optimized(it.scope.node):
        return Value("gradient", data={"of": value}, birth=value.birth)
    if value.kind == "unknown" and name == "grad":
        return Value("gradient", data={"of": value, "guess": True}, birth=value.birth)
    if value.kind == "param" and name == "grad":
        return Value("gradient", data={"of": value}, birth=value.birth)
    if value.kind in ("gradient", "param") and name == "data":
        return value
    if value.kind == "ddp" and name == "module":
        return Value("model", f"{value.name}.module", {"raw": value, "of": value.data.get("of")}, birth=value.birth)
    if value.kind == "optimizer" and name == "param_groups":
        return Value("groups", data={"of": value})
    if value.kind == "tensor" and name in ("loss", "data", "values", "logits"):
        return Value("tensor", name, {**value.data}) if name in ("loss", "logits") else Value("detached")
    if value.kind == "tensor" and "backward" in usage(it.scope.node).methods.get(dotted(node), ()):
        return Value("tensor", name, {**value.data})
    if value.kind == "tensor" and value.data.get("forward") is not None and name not in PLAIN:
        told = {"range": "", "outputs": [], "made_of": (), "unsure": True}
        return Value("tensor", name, {**value.data, **told}) if value.data.get("source") == "model" else None
    if name == "no_sync" and value.kind in ("ddp", "model", "unknown"):
        return Value("maker", name, {"word": name, "model": value})
    if value.kind == "accelerator" and name == "sync_gradients":
        return effects.sync_flag(value)
    return member(it, value, name)
