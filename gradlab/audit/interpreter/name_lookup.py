"""What a name or an attribute stands for: bound, of the project, of an installed package, or shown by its use."""

from __future__ import annotations

import ast
import builtins
from typing import Any

from gradlab.audit.interpreter.instances import member
from gradlab.audit.knowledge.known_names import kind_by_name
from gradlab.audit.knowledge.manual_updates import descending, optimized, weight_name
from gradlab.audit.knowledge.tensor_methods import without_graph
from gradlab.audit.knowledge.usage import usage
from gradlab.audit.source.project import Module
from gradlab.audit.source.syntax import dotted
from gradlab.audit.trace.conditions import sync_atom
from gradlab.audit.trace.engine import Engine
from gradlab.audit.trace.iterables import members
from gradlab.audit.trace.provenance import is_traced, take_apart
from gradlab.audit.trace.values import Value

BOUND = {
    "optimizer": ("step", "zero_grad"),
    "scaler": ("scale", "step", "unscale_", "update"),
    "scheduler": ("step",),
    "model": ("zero_grad", "parameters"),
    "ddp": ("zero_grad", "parameters", "no_sync"),
    "tensor": ("backward",),
}
"""Methods that are followed under another name, too: `zero = optimizer.zero_grad`."""
PLAIN = {"shape", "dtype", "device", "grad", "grad_fn", "requires_grad", "is_leaf", "ndim", "is_cuda", "layout"}
"""Attributes of a tensor that a network's result of several parts does not usually have."""
USUAL = {"torch": "torch", "nn": "torch.nn", "F": "torch.nn.functional", "optim": "torch.optim"}
"""What these names usually are, where they come with `from x import *` from a package that is not read."""


def named(engine: Engine, name: str) -> Value:
    """What a name is bound to; the first look-up binds it at the top of its module."""
    module = engine.module
    if (known := engine.scope.find(name)) is not None:
        top = engine.top(module)
        set_elsewhere = known.kind == "none" and name in module.declared and engine.scope is not top
        if not set_elsewhere or top.names.get(name) is not known:
            return known
    value = top_level(engine, module, name)
    if value is None and name in module.imports:
        value = imported(engine, *module.imports[name], module)
    if value is None and module.stars and (found := engine.project.starred(name, module)) is not None:
        value = top_level(engine, found[0], getattr(found[1], "name", ""))
    if value is None and module.stars:
        value = imported_by_star(engine, name, module)
    if value is None and hasattr(builtins, name):
        value = Value("external", name, birth=0)
    if value is None:
        value = Value("unknown", name, given=True, birth=0)
        value.kind = usage(engine.scope.node).kind(name) or kind_by_name(name) or "unknown"
    engine.top(module).names[name] = value
    return value


def imported_by_star(engine: Engine, name: str, module: Module) -> Value | None:
    """What another file imports and `from x import *` takes from it."""
    if (found := engine.project.reexported(name, module)) is not None:
        return imported(engine, *found)
    return Value("external", USUAL[name], birth=0) if name in USUAL else None


def top_level(engine: Engine, module: Module, name: str) -> Value | None:
    """A function or class that a module defines."""
    found = module.names.get(name)
    if isinstance(found, ast.ClassDef):
        return Value("class", name, node=found, module=module)
    if found is not None:
        return Value("function", name, node=found, module=module, scope=engine.top(module))
    return None


def imported(engine: Engine, name: str, level: int, module: Module) -> Value:
    if level or "." in name:
        found = engine.project.resolve(name, level, module)
        value = top_level(engine, found[0], getattr(found[1], "name", "")) if found is not None else None
        if value is not None:
            return value
    return Value("external", name, birth=0)


def attribute(engine: Engine, value: Value, name: str, node: ast.Attribute) -> Value:
    if name in value.attributes and (value.kind != "ddp" or name != "module" or value.attributes[name].raw):
        known = value.attributes[name]
        for one in (known, *(v for _, v in known.choice)):
            if one.kind == "unknown" and one.given and value.lineage:
                one.kind = class_usage(engine, value, name, dotted(node)) or kind_by_name(name) or "unknown"
        return known
    if name == "module" and value.kind == "model" and not value.choice:
        return value  # of DataParallel, or wrapped where that is not seen
    made = known_attribute(engine, value, name, node)
    if made is None:
        made = unknown_attribute(engine, value, name, dotted(node))
    if value.kind not in ("external", "number", "none"):
        value.attributes[name] = made
    return made


def unknown_attribute(engine: Engine, value: Value, name: str, text: str) -> Value:
    """An attribute that only its use and its name explain; `text`: the dotted expression."""
    made = Value("unknown", f"{value.name}.{name}", given=True, birth=value.birth, framework=value.framework)
    if value.kind in ("unknown", "detached") and is_traced(value):
        made.update(traced=True, cut=None if name in PLAIN else value.cut, cut_path=value.cut_path)
    uses = usage(engine.scope.node)
    if value.lineage and text:
        made.kind = class_usage(engine, value, name, text) or kind_by_name(name) or "unknown"
    elif text and value.kind in ("model", "ddp"):
        made.kind = uses.kind(text) or "unknown"
        made.within = value
    elif text and value.kind in ("unknown", "instance", "accelerator", "arguments"):
        made.kind = uses.kind(text) or kind_by_name(name) or "unknown"
        made.within = value if value.within is not None else None  # a part of a model's part
    elif text and value.kind == "optimizer" and "step" in uses.methods.get(text, ()):
        made.kind, made.held_by = "optimizer", value
    return made


def class_usage(engine: Engine, value: Value, name: str, text: str) -> str:
    for owner in value.lineage:
        if kind := usage(owner).kind(f"self.{name}"):
            return kind
    return usage(engine.scope.node).kind(text)


def known_attribute(engine: Engine, value: Value, name: str, node: ast.Attribute) -> Value | None:
    own = value.kind in ("model", "ddp") and value.method(name) is not None
    if name in BOUND.get(value.kind, ()) and not own:
        return Value("bound", name, owner=value, birth=value.birth)
    if value.kind == "external":
        return external_attribute(engine, f"{value.name}.{name}")
    if name == "grad":
        weight = weight_name(node.value) in descending(engine.scope.node) | optimized(engine.scope.node)
        if weight or value.kind in ("unknown", "param"):
            return Value("gradient", of=value, guess=not weight and value.kind == "unknown", birth=value.birth)
    if value.kind in ("gradient", "param") and name == "data":
        return value
    wrapper = next((v for v in (value, *members(value)) if v.kind == "ddp"), None) if name == "module" else None
    if wrapper is not None:
        return Value("model", f"{value.name}.module", raw=wrapper, of=wrapper.of, birth=value.birth)
    if value.kind == "optimizer" and name == "param_groups":
        return Value("groups", of=value)
    if value.kind == "optimizer" and name == "defaults":
        return Value("dict")  # of settings
    if value.kind == "tensor" and name == "data":
        return without_graph(engine, node, value, name)
    if value.kind == "tensor" and (name in ("loss", "logits", "values") or is_loss(engine, node)):
        return value.derived("tensor", name, traced=value.traced)
    if value.kind == "tensor" and value.forward is not None and name not in PLAIN:
        piece = take_apart(value, name)
        unknown: dict[str, Any] = {
            "pieces": piece,
            "range": "",
            "outputs": (),
            "made_of": (),
            "unsure": True,
            "traced": value.traced,
        }
        return value.derived("tensor", name, **unknown) if value.source == "model" else None
    if name == "no_sync" and value.kind in ("ddp", "model", "unknown"):
        return Value("maker", name, word=name, model=value)
    if value.kind == "accelerator" and name == "sync_gradients":
        return Value("bool", formula=("atom", sync_atom(value.number)))
    return member(engine, value, name)


def external_attribute(engine: Engine, dotted_name: str) -> Value:
    found = engine.project.resolve(dotted_name, 0, engine.module)
    top = top_level(engine, found[0], getattr(found[1], "name", "")) if found is not None else None
    return top if top is not None else Value("external", dotted_name, birth=0)


def is_loss(engine: Engine, node: ast.Attribute) -> bool:
    """Whether `.backward()` is called on an attribute."""
    return "backward" in usage(engine.scope.node).methods.get(dotted(node), ())
