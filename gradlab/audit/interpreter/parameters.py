"""What the parameters of a function are bound to: arguments, defaults, what annotations and use tell."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from gradlab.audit.knowledge import known_names
from gradlab.audit.source.project import Function
from gradlab.audit.source.syntax import walk
from gradlab.audit.trace.scope import usage
from gradlab.audit.trace.values import Value, dictionary, number

if TYPE_CHECKING:
    from gradlab.audit.interpreter.interpreter import Interpreter


def parameters(
    it: Interpreter, node: Function, args: list[Value], keywords: dict[str, Value], called: bool
) -> dict[str, Value]:
    """The names that a function begins with; `called`: by a call that is seen, so that what it leaves out is known."""
    names = [a.arg for a in [*node.args.posonlyargs, *node.args.args]]
    annotations = {a.arg: a.annotation for a in [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]}
    defaults: dict[str, ast.expr | None] = dict(zip(names[len(names) - len(node.args.defaults) :], node.args.defaults))
    defaults |= {a.arg: d for a, d in zip(node.args.kwonlyargs, node.args.kw_defaults)}
    uses = usage(node)
    bound: dict[str, Value] = {}
    for name, annotation in annotations.items():
        position = names.index(name) if name in names else len(args)
        value = args[position] if position < len(args) else keywords.get(name)
        handed = value is not None
        default = defaults.get(name)
        if value is None and default is not None and called:
            value = constant(it, default)
        if value is None:
            value = Value("unknown", name, {"given": True})
        if value.kind == "unknown" and "choice" not in value.data:
            refine(it, value, "" if handed and value.name else name, uses, annotation, name)
        bound[name] = value
    if node.args.vararg:
        bound[node.args.vararg.arg] = Value("list", data={"items": args[len(names) :]})
    if node.args.kwarg:
        bound[node.args.kwarg.arg] = dictionary({k: v for k, v in keywords.items() if k not in annotations})
    return bound


def constant(it: Interpreter, node: ast.expr) -> Value:
    if isinstance(node, ast.Constant):
        made = Value("none", "None") if node.value is None else number(node.value)
        made.birth = 0  # as if it were written in the call
        return made
    return Value("unknown", "default")


def told(it: Interpreter, value: Value, annotation: ast.AST) -> bool:
    """Whether an annotation names a class of the project, of which the value then is an object."""
    from gradlab.audit.interpreter.instances import instance
    from gradlab.audit.interpreter.name_lookup import named

    text = annotation.value if isinstance(annotation, ast.Constant) else ""
    names = [text] if isinstance(text, str) and text else [n.id for n in walk(annotation) if isinstance(n, ast.Name)]
    classes = [one for one in (named(it, name) for name in names) if one.kind == "class"]
    if len(classes) != 1 or len(it.stack) > 3 or not isinstance(annotation, (ast.Name, ast.Constant, ast.BinOp)):
        return False
    made = instance(it, classes[0], [], {}, annotation)
    if made.kind != "instance" or made.data.get("framework") or value.attributes:
        return False  # an object that a caller handed in may be of a class that is made after this one
    value.kind, value.attributes = made.kind, made.attributes
    value.data |= {**made.data, "given": isinstance(annotation, ast.BinOp)}
    return True


def refine(
    it: Interpreter,
    value: Value,
    name: str,
    uses: known_names.Usage,
    annotation: ast.AST | None = None,
    parameter: str = "",
) -> None:
    """`name` tells what a value is if nothing else does; a parameter's name says nothing of what it is handed."""
    if annotation is not None:
        text = ast.unparse(annotation)
        for word, kind in (
            ("GradScaler", "scaler"),
            ("Scheduler", "scheduler"),
            ("Optimizer", "optimizer"),
            ("Accelerator", "accelerator"),
            ("Fabric", "fabric"),
            ("DistributedDataParallel", "ddp"),
            ("DDP", "ddp"),
            ("nn.Module", "model"),
            ("DataLoader", "loader"),
        ):
            if word in text:
                value.kind = kind
                value.data["given"] = "None" in text or "Optional" in text
                return
        if name and told(it, value, annotation):
            return
    value.kind = uses.kind(parameter or name) or known_names.by_name(name) or value.kind
