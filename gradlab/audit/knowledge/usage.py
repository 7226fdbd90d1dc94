"""How a function or class uses its names: what nothing else explains may be seen from the methods that are called."""

from __future__ import annotations

import ast
import re
from functools import lru_cache

from gradlab.audit.knowledge.known_names import NAMES
from gradlab.audit.source.syntax import dotted, walk

OF_TENSORS = {"gradient", "retain_graph", "create_graph", "inputs"}
"""Arguments of a tensor's backward()."""
GRADIENT = re.compile(r"grad|ones|zeros|rand|tensor|None|True|False", re.I)
"""What a tensor's backward() is given."""

OF_OPTIMIZERS = {"step", "zero_grad", "state_dict", "load_state_dict", "param_groups", "add_param_group"}


class Usage:
    """Which methods are called on each dotted name inside a function or class, and which calls receive it."""

    def __init__(self, scope: ast.AST):
        self.methods: dict[str, set[str]] = {}
        self.receivers: dict[str, set[str]] = {}
        self.called: set[str] = set()
        self.takes_loss: set[str] = set()  # `engine.backward(loss)`
        self.items: dict[str, set[str]] = {}  # methods called on the items of a list, and on those of one key
        for node in walk(scope):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Subscript):
                holder, key = dotted(node.value.value), node.value.slice
                self.items.setdefault(holder, set()).add(node.attr)
                if isinstance(key, ast.Constant):
                    self.items.setdefault(f"{holder}[{key.value!r}]", set()).add(node.attr)
            if isinstance(node, ast.Attribute) and (name := dotted(node.value)):
                self.methods.setdefault(name, set()).add(node.attr)
            if isinstance(node, ast.Call):
                self.called.add(dotted(node.func))
                if takes_loss(node):
                    self.takes_loss.add(dotted(node.func.value))  # type: ignore[attr-defined]
                to = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
                for argument in [*node.args, *(k.value for k in node.keywords)]:
                    if name := dotted(argument):
                        self.receivers.setdefault(name, set()).add(to)

    def kind(self, name: str) -> str:
        methods, receivers = self.methods.get(name, set()), self.receivers.get(name, set())
        if methods & {"unscale_", "get_scale"} or {"scale", "update"} <= methods or {"scale", "step"} <= methods:
            return "scaler"
        if {"backward", "step"} <= methods and not NAMES["optimizer"].search(name.split(".")[-1]):
            return "engine"
        if (
            ({"zero_grad", "step"} <= methods)
            or {"first_step", "second_step"} <= methods
            or "param_groups" in methods
            or receivers & {"unscale_", "master_params"}
        ):
            return "optimizer"
        if methods & {"sync_gradients", "accumulate", "prepare", "unwrap_model"}:
            return "accelerator"
        if methods & {"no_backward_sync", "clip_gradients"} and "backward" in methods:
            return "fabric"
        if "no_sync" in methods:
            return "ddp"
        if methods & {"parameters", "named_parameters"}:
            return "model"
        optimizer = NAMES["optimizer"].search(name.split(".")[-1]) and not NAMES["scheduler"].search(name)
        if methods & {"get_last_lr", "get_lr"} and "step" in methods and not optimizer:
            return "scheduler"
        if "step" in methods and not methods & {"reset", "render", "action_space"}:
            if NAMES["scheduler"].search(name):
                return "scheduler"
            if NAMES["optimizer"].search(name.split(".")[-1]):
                return "optimizer"
        if "zero_grad" in methods:
            return "model" if methods & {"train", "eval"} or name in self.called else "optimizer"
        holder = name.split(".")[-2] if "." in name else ""  # `optims.discriminator.step()`
        if "step" in methods and methods <= OF_OPTIMIZERS and NAMES["optimizer"].search(holder):
            return "optimizer"
        return "model" if methods & {"train", "eval"} and name in self.called else ""


def takes_loss(call: ast.Call) -> bool:
    """Whether it is the backward() of an engine that is given a loss; a tensor's own takes a gradient and flags."""
    if not isinstance(call.func, ast.Attribute) or call.func.attr != "backward":
        return False
    foreign = {keyword.arg for keyword in call.keywords} - OF_TENSORS
    return bool(foreign) or any(not GRADIENT.search(ast.unparse(argument)) for argument in call.args[:1])


@lru_cache(maxsize=1000)
def usage(node: ast.AST) -> Usage:
    return Usage(node)


@lru_cache(maxsize=300)
def updated_attributes(node: ast.ClassDef) -> frozenset[str]:
    """Attributes of self whose update() a class's methods call."""
    calls = (part.func for part in walk(node) if isinstance(part, ast.Call))
    owners = (f.value for f in calls if isinstance(f, ast.Attribute) and f.attr == "update")
    return frozenset(o.attr for o in owners if isinstance(o, ast.Attribute) and dotted(o.value) == "self")
