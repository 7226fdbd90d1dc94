"""Instances of the project's classes: where their methods are, and what their attributes hold between calls."""

from __future__ import annotations

import ast
import re
from functools import lru_cache
from typing import TYPE_CHECKING

from gradlab.audit.source.project import Function, Module
from gradlab.audit.source.syntax import dotted, walk
from gradlab.audit.trace.values import Value

if TYPE_CHECKING:
    from gradlab.audit.interpreter.interpreter import Interpreter


MODULES = re.compile(r"^(nn\.|torch\.nn\.)?(Module|Sequential)$|Model$|Module$|ModelMixin$")
HUGGING = re.compile(r"^\s*(?:from|import)\s+(?:transformers|trl)\b", re.M)
PLAIN = {"object", "ABC", "abc.ABC", "Generic", "Protocol", "NamedTuple", "Enum", "Exception"}


def method_of(value: Value, name: str, above: ast.AST | None = None) -> tuple[Function, Module] | None:
    """The method in the class or in its bases; with `above` only in bases of the class that holds that function."""
    lineage = value.data.get("lineage", [])
    modules = value.data.get("modules", [])
    if above is not None:
        at = next((i for i, node in enumerate(lineage) if above in node.body), len(lineage))
        lineage, modules = lineage[at + 1 :], modules[at + 1 :]
    for node, module in zip(lineage, modules):
        for item in node.body:
            if isinstance(item, (ast.FunctionDef, ast.AsyncFunctionDef)) and item.name == name:
                return item, module
    return None


def object_of(it: Interpreter, callee: Value) -> Value:
    nodes, modules, unknown = lineage(it, callee.data["node"], callee.data["module"], 0)
    names = [name.split(".")[-1] for name in unknown]
    kind = "instance"
    if any(name == "Optimizer" for name in names):
        kind = "optimizer"
    elif any(name in ("_LRScheduler", "LRScheduler") for name in names):
        kind = "scheduler"
    elif any(MODULES.search(name) for name in names):
        kind = "criterion" if re.search(r"Loss$|Criterion$", callee.name) else "model"
    value = Value(kind, callee.name, {"class": callee.data["node"], "lineage": nodes, "modules": modules})
    value.data["framework"] = bool([n for n in unknown if n not in PLAIN and n.split("[")[0] not in PLAIN])
    if kind == "model" and not any("Lightning" in name for name in names):
        value.data["framework"] = False
    value.data["lightning"] = any("Lightning" in name for name in names)
    hugging = any(name.endswith("Trainer") for name in names) and HUGGING.search(callee.data["module"].source.text)
    value.data["asked"] = "training_step" if value.data["lightning"] else "compute_loss" if hugging else None
    return value


def lineage(
    it: Interpreter, node: ast.ClassDef, module: Module, depth: int
) -> tuple[list[ast.ClassDef], list[Module], list[str]]:
    nodes, modules, unknown = [node], [module], []
    for base in node.bases if depth < 5 else []:
        name = dotted(base)
        if not name:
            unknown += [dotted(base.value)] if isinstance(base, ast.Subscript) else ["?"]
            continue
        found: tuple[Module, ast.AST] | None = None
        if name in module.names:
            found = module, module.names[name]
        elif name.split(".")[0] in module.imports:
            first, *rest = name.split(".")
            dotted_name, level = module.imports[first]
            found = it.project.resolve(".".join([dotted_name, *rest]), level, module)
        if found is None or not isinstance(found[1], ast.ClassDef) or found[1] in nodes:
            unknown.append(name)
            continue
        more = lineage(it, found[1], found[0], depth + 1)
        nodes, modules, unknown = [*nodes, *more[0]], [*modules, *more[1]], [*unknown, *more[2]]
    return nodes, modules, unknown


def settle(value: Value) -> None:
    """After __init__: attributes that methods count up are indices, flags that they set anew are not known."""
    for node in value.data.get("lineage", []):
        for name, counted in assigned(node):
            old = value.attributes.get(name)
            if old is None or old.kind not in ("number", "bool", "none"):
                continue
            if counted:
                value.attributes[name] = Value("index", name, {"offset": 0})
            elif old.kind != "none":
                value.attributes[name] = Value("unknown", f"self.{name}")


@lru_cache(maxsize=300)
def updated(node: ast.ClassDef) -> frozenset[str]:
    """Attributes of self whose update() a class's methods call."""
    calls = (part.func for part in walk(node) if isinstance(part, ast.Call))
    owners = (f.value for f in calls if isinstance(f, ast.Attribute) and f.attr == "update")
    return frozenset(o.attr for o in owners if isinstance(o, ast.Attribute) and dotted(o.value) == "self")


@lru_cache(maxsize=300)
def assigned(node: ast.ClassDef) -> list[tuple[str, bool]]:
    """Attributes of self that a class's methods assign, and whether they are counted up."""
    found: dict[tuple[str, bool], None] = {}
    for function in node.body:
        if not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)) or function.name == "__init__":
            continue
        for part in walk(function):
            targets = part.targets if isinstance(part, ast.Assign) else []
            if isinstance(part, ast.AugAssign):
                targets = [part.target]
            for target in targets:
                if isinstance(target, ast.Attribute) and dotted(target.value) == "self":
                    found[(target.attr, isinstance(part, ast.AugAssign) and isinstance(part.value, ast.Constant))] = (
                        None
                    )
    return list(found)
