"""Classes of the project: what their objects are, by their bases, and what their attributes are between calls."""

from __future__ import annotations

import ast
import re
from functools import lru_cache

from gradlab.audit.knowledge.known_names import HUGGING_FACE, MODULES, OPTIMIZER, SCHEDULE
from gradlab.audit.source.project import Module, Project
from gradlab.audit.source.syntax import dotted, walk
from gradlab.audit.trace.values import Value

PLAIN = {"object", "ABC", "abc.ABC", "Generic", "Protocol", "NamedTuple", "Enum", "Exception"}
"""Bases that add no methods."""
OF_CHOICE = re.compile(r"Optimizer$")
"""Names of classes that are optimizers even where their base is chosen at run time."""
RECORD = re.compile(r"(dataclass|define|attrs|^attr\.s)$")
"""Decorators that make a class's __init__ from its annotations."""
DEEP = 5
"""How deep bases of bases are looked for."""


def new_object(project: Project, callee: Value) -> Value:
    """An object of a class, before its __init__ was followed."""
    nodes, modules, unknown = lineage(project, callee.node, callee.module, 0)
    names = [name.split(".")[-1] for name in unknown]
    kind = "instance"
    if any(name == "Optimizer" or OPTIMIZER.match(name) for name in names) or (names and OF_CHOICE.search(callee.name)):
        kind = "optimizer"
    elif any(name == "_LRScheduler" or SCHEDULE.match(name) for name in names):
        kind = "scheduler"
    elif any(MODULES.search(name) for name in names):
        kind = "criterion" if re.search(r"Loss$|Criterion$", callee.name) else "model"
    lightning = any("Lightning" in name for name in names)
    hugging_face = any(name.endswith("Trainer") for name in names) and HUGGING_FACE.search(callee.module.source.text)
    return Value(
        kind,
        callee.name,
        lineage=tuple(nodes),
        modules=tuple(modules),
        framework=(kind != "model" or lightning)
        and any(n not in PLAIN and n.split("[")[0] not in PLAIN for n in unknown),
        lightning=lightning,
        loss_method="training_step" if lightning else "compute_loss" if hugging_face else "",
    )


def lineage(
    project: Project, node: ast.ClassDef, module: Module, depth: int
) -> tuple[list[ast.ClassDef], list[Module], list[str]]:
    """A class and its bases in the project, the modules that they are in, and the names of all other bases."""
    nodes, modules, unknown = [node], [module], []
    for base in node.bases if depth < DEEP else []:
        name = dotted(base)
        if not name:
            unknown += [dotted(base.value)] if isinstance(base, ast.Subscript) else ["?"]
            continue
        found = definition(project, name, module)
        if found is None or not isinstance(found[1], ast.ClassDef) or found[1] in nodes:
            unknown.append(name)
            continue
        more = lineage(project, found[1], found[0], depth + 1)
        nodes, modules, unknown = [*nodes, *more[0]], [*modules, *more[1]], [*unknown, *more[2]]
    return nodes, modules, unknown


def definition(project: Project, name: str, module: Module) -> tuple[Module, ast.AST] | None:
    """Where a name of a module is defined."""
    if name in module.names:
        return module, module.names[name]
    first, *rest = name.split(".")
    if first not in module.imports:
        return None
    imported, level = module.imports[first]
    return project.resolve(".".join([imported, *rest]), level, module)


def fields(value: Value) -> list[str]:
    """The annotated names that an object of a dataclass, or of a class like it, is made with, in order."""
    found = [part for node in reversed(value.lineage) if is_record(node) for part in node.body]
    return list(dict.fromkeys(name for part in found if (name := field_name(part))))


def is_record(node: ast.ClassDef) -> bool:
    """Whether the annotations of a class say what its objects are made with."""
    decorators = [one.func if isinstance(one, ast.Call) else one for one in node.decorator_list]
    named = any(dotted(base).split(".")[-1] == "NamedTuple" for base in node.bases)
    return named or any(RECORD.search(dotted(one)) for one in decorators)


def field_name(part: ast.stmt) -> str:
    """The name that an annotation of a class gives to what is made with it; empty if that is not given."""
    if not isinstance(part, ast.AnnAssign) or re.search(r"\b(ClassVar|KW_ONLY)\b", ast.unparse(part.annotation)):
        return ""
    given = part.value.keywords if isinstance(part.value, ast.Call) else []
    unset = any(one.arg == "init" and ast.unparse(one.value) == "False" for one in given)
    return "" if unset or not isinstance(part.target, ast.Name) else part.target.id


def forget_assigned(value: Value) -> None:
    """After __init__: attributes that methods count up are indices, flags that they assign are not known."""
    for node in value.lineage:
        for name, counted in assigned(node):
            old = value.attributes.get(name)
            if old is None or old.kind not in ("number", "bool", "none"):
                continue
            if counted:
                value.attributes[name] = Value("index", name)
            elif old.kind != "none":
                value.attributes[name] = Value("unknown", f"self.{name}")


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
            counted = isinstance(part, ast.AugAssign) and isinstance(part.value, ast.Constant)
            for target in targets:
                if isinstance(target, ast.Attribute) and dotted(target.value) == "self":
                    found[(target.attr, counted)] = None
    return sorted(found, key=lambda one: not one[1])  # what one method resumes another may count up
