"""What the parameters of a function are bound to: arguments, defaults, what annotations and use show."""

from __future__ import annotations

import ast

from gradlab.audit.knowledge.known_names import kind_by_name
from gradlab.audit.knowledge.usage import Usage, usage
from gradlab.audit.source.project import Function
from gradlab.audit.source.syntax import defaults_of, walk
from gradlab.audit.trace.engine import Engine
from gradlab.audit.trace.iterables import dictionary, number, several
from gradlab.audit.trace.values import Value

ANNOTATIONS = (
    ("GradScaler", "scaler"),
    ("cheduler", "scheduler"),
    ("Optimizer", "optimizer"),
    ("Accelerator", "accelerator"),
    ("Fabric", "fabric"),
    ("DistributedDataParallel", "ddp"),
    ("DDP", "ddp"),
    ("nn.Module", "model"),
    ("DataLoader", "loader"),
)
"""A part of an annotation, and the kind that it names."""


def parameters(
    engine: Engine, node: Function, args: list[Value], keywords: dict[str, Value], called: bool
) -> dict[str, Value]:
    """The names that a function begins with. called: by a call that is seen, so that defaults are known to be used."""
    names = [a.arg for a in [*node.args.posonlyargs, *node.args.args]]
    annotations = {a.arg: a.annotation for a in [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]}
    defaults = defaults_of(node)
    uses = usage(node)
    bound: dict[str, Value] = {}
    for name, annotation in annotations.items():
        position = names.index(name) if name in names else len(args)
        value = args[position] if position < len(args) else keywords.get(name)
        received = value is not None
        default = defaults.get(name)
        if value is None and default is not None and called:
            value = constant(default)
        if value is None:
            value = Value("unknown", name, given=True, traced=is_number(default))
        if value.kind == "unknown" and not value.choice:
            refine(engine, value, "" if received and value.name else name, uses, annotation, name)
        elif value.kind == "unknown":
            value.kind = uses.kind(name) or "unknown"
        bound[name] = value
    if node.args.vararg:
        bound[node.args.vararg.arg] = several(args[len(names) :])
    if node.args.kwarg:
        bound[node.args.kwarg.arg] = dictionary({k: v for k, v in keywords.items() if k not in annotations})
    return bound


def is_number(default: ast.expr | None) -> bool:
    """Whether a parameter's default is a number, so that what is given for it has no graph."""
    return isinstance(default, ast.Constant) and type(default.value) in (int, float)


def constant(node: ast.expr) -> Value:
    if isinstance(node, ast.Constant):
        made = Value("none", "None") if node.value is None else number(node.value)
        made.birth = 0  # as if it were written in the call
        return made
    return Value("unknown", "default")


def adopt_class(engine: Engine, value: Value, annotation: ast.AST) -> bool:
    """Make a value an object of the project's class that its annotation names; returns whether it names one."""
    text = annotation.value if isinstance(annotation, ast.Constant) else ""
    names = [text] if isinstance(text, str) and text else [n.id for n in walk(annotation) if isinstance(n, ast.Name)]
    classes = [one for one in (engine.named(name) for name in names) if one.kind == "class"]
    if len(classes) != 1 or len(engine.stack) > 3 or not isinstance(annotation, (ast.Name, ast.Constant, ast.BinOp)):
        return False
    made = engine.instance(classes[0], [], {}, annotation)
    if made.kind != "instance" or made.framework or value.attributes:
        return False  # an object that a caller gave may be of a class that is made after this one
    value.update(
        kind=made.kind,
        attributes=made.attributes,
        lineage=made.lineage,
        modules=made.modules,
        framework=made.framework,
        lightning=made.lightning,
        loss_method=made.loss_method,
        received_training=made.received_training,
        annotated=True,
        given=isinstance(annotation, ast.BinOp),
    )
    return True


def refine(
    engine: Engine,
    value: Value,
    name: str,
    uses: Usage,
    annotation: ast.AST | None = None,
    parameter: str = "",
) -> None:
    """Give an unknown value the kind that an annotation, its use or, if nothing else does, its name shows.

    parameter: the name of a parameter, which shows nothing of the value that a caller gave.
    """
    if annotation is not None:
        text = ast.unparse(annotation)
        for word, kind in ANNOTATIONS:
            if word in text:
                loss = kind == "model" and kind_by_name(parameter or name) == "criterion"
                value.kind = "criterion" if loss else kind
                value.given = "None" in text or "Optional" in text
                value.annotated = True
                return
        if name and adopt_class(engine, value, annotation):
            return
    value.kind = uses.kind(parameter or name) or kind_by_name(name) or value.kind
