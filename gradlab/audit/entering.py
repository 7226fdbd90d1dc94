"""Calls that are followed into the project's own functions and classes, and those that cannot be."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from gradlab.audit import effects, known
from gradlab.audit.known import dotted
from gradlab.audit.objects import method_of, object_of, settle
from gradlab.audit.project import Function, Module
from gradlab.audit.scope import Scope, usage
from gradlab.audit.tree import Block, Event
from gradlab.audit.tree import walk as tree_walk
from gradlab.audit.values import Value, dictionary, every, members, number

if TYPE_CHECKING:
    from gradlab.audit.interpreter import Interpreter

ACTING = {
    "optimizer",
    "scaler",
    "loss_scaler",
    "model",
    "ddp",
    "params",
    "accelerator",
    "fabric",
    "groups",
    "gradients",
}
"""What a call must be handed to be able to do something to gradients."""


CONTEXTS = {"autocast", "no_grad", "inference_mode"}
"""Contexts that decorate functions, too."""
DEPTH, CALLS = 7, 400
"""How deep calls are entered, and how many from one beginning."""


def follow(it: Interpreter, node: ast.Call, callee: Value, args: list[Value], keywords: dict[str, Value]) -> Value:
    target = callee.data["node"]
    if abstract(target):
        unknown = Value("unknown", "", {"framework": True})
        return opaque(it, node, target.name, callee.data.get("self") and unknown, args, keywords)
    args, keywords = [*callee.data.get("args", []), *args], {**callee.data.get("keywords", {}), **keywords}
    names = {dotted(d.func if isinstance(d, ast.Call) else d).split(".")[-1] for d in target.decorator_list}
    closure = callee.data.get("scope") or it.world(callee.data["module"])
    made: list[Value | None] = []
    owner = callee.data.get("self")
    items = it.collect(
        lambda: made.append(enter(it, target, callee.data["module"], args, keywords, owner, node, closure))
    )
    if made[0] is None:
        return opaque(it, node, target.name, owner, args, keywords)
    if names & {"contextmanager", "asynccontextmanager"}:
        from gradlab.audit.contexts import managed

        return managed(it, items, target.name)
    it.visited.add(node)
    it.out += items
    if made[0].kind in ("number", "bool", "unknown"):
        return answer(target, made[0])
    return made[0]


def answer(node: Function, value: Value) -> Value:
    """Of a function that returns yes or no after a look at what is finite: which one is not known."""
    checks = any(getattr(part, "attr", "") in ("isfinite", "isnan", "isinf") for part in ast.walk(node))
    if not checks or not isinstance(value.data.get("value"), bool):
        return value
    return Value("unknown", "", {"made": True, "finite": True})


def opaque(
    it: Interpreter, node: ast.Call, name: str, owner: Value | None, args: list[Value], keywords: dict[str, Value]
) -> Value:
    """A call that cannot be followed: what it was handed says what it might do."""
    handed = [v for a in [*args, *keywords.values()] for v in members(a)]
    receives = {v.kind for v in handed} & ACTING
    for value in handed:
        if value.kind == "stack" and "region" in value.data:
            value.data["region"].kind = "unknown"  # what it enters is not seen
    if owner is not None and (owner.data.get("framework") or owner.kind in ACTING):
        receives.add("self" if owner.data.get("framework") else owner.kind)
    if any(v.kind == "instance" and any(a.kind in ACTING for a in v.attributes.values()) for v in handed):
        receives.add("self")
    if any(v.kind == "tensor" for v in handed) and receives:
        receives.add("tensor")
    name = name.split(".")[-1]
    if receives and not known.HARMLESS.match(name):
        it.emit("opaque", node, owner, name=name, receives=receives)
    if len(args) == 1 and args[0].kind in ("function", "method"):
        return args[0]  # compiled, or wrapped otherwise
    return Value("unknown", "", {"made": True, "opaque": True})


def member(it: Interpreter, value: Value, name: str) -> Value | None:
    """A method, property or class attribute of an instance of a class of the project."""
    found = method_of(value, name)
    if found is None:
        return None
    node, module_ = found
    made = Value("method", name, {"node": node, "module": module_, "self": value})
    if any(dotted(d).split(".")[-1] in ("property", "cached_property") for d in node.decorator_list):
        result = enter(it, node, module_, [], {}, value, node, it.world(module_))
        return result if result is not None else Value()
    return made


def parent(
    it: Interpreter, node: ast.Call, owner: Value, name: str, args: list[Value], keywords: dict[str, Value]
) -> Value:
    value = owner.data.get("self")
    if value is None or name == "__init__":
        if value is not None and (found := method_of(value, name, above=it.stack[-1] if it.stack else None)):
            enter(it, found[0], found[1], args, keywords, value, node, it.world(found[1]))
        return Value()
    found = method_of(value, name, above=it.stack[-1] if it.stack else None)
    if found is None:
        if value.data.get("framework"):
            it.emit("opaque", node, value, name=name, receives={"self"})
        return Value("unknown", "", {"opaque": True, "made": True})
    result = enter(it, found[0], found[1], args, keywords, value, node, it.world(found[1]))
    return result if result is not None else Value()


def instance(it: Interpreter, callee: Value, args: list[Value], keywords: dict[str, Value], at: ast.AST) -> Value:
    value = object_of(it, callee)
    if value.kind in ("optimizer", "scheduler"):
        params = [v for a in args for v in every(a) if v.kind == "params"]
        value.data["of"] = params[0].root() if params else None
        return value
    if value.kind == "criterion":
        return value
    found = method_of(value, "__init__")
    if found is not None:
        enter(it, found[0], found[1], args, keywords, value, at, it.world(found[1]))
    settle(value)
    return value


def enter(
    it: Interpreter,
    node: Function,
    module: Module,
    args: list[Value],
    keywords: dict[str, Value],
    owner: Value | None,
    at: ast.AST,
    closure: Scope,
) -> Value | None:
    """Follow a function's body; None where it cannot be entered."""
    if node in it.stack or len(it.stack) >= DEPTH or it.calls >= CALLS or (at is not node and abstract(node)):
        return None
    it.calls += 1
    it.visited.add(node)
    scope = Scope(closure, node, module)
    names = [a.arg for a in [*node.args.posonlyargs, *node.args.args]]
    static = any(dotted(d) == "staticmethod" for d in node.decorator_list)
    if owner is not None and names and not static:
        args = [owner, *args]
    uses = usage(node)
    annotations = {a.arg: a.annotation for a in [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]}
    defaults: dict[str, ast.expr | None] = dict(zip(names[len(names) - len(node.args.defaults) :], node.args.defaults))
    defaults |= {a.arg: d for a, d in zip(node.args.kwonlyargs, node.args.kw_defaults)}
    for name, annotation in annotations.items():
        position = names.index(name) if name in names else len(args)
        value = args[position] if position < len(args) else keywords.get(name)
        handed = value is not None
        default = defaults.get(name)
        if value is None and default is not None and at is not node:
            value = constant(it, default)
        if value is None:
            value = Value("unknown", name, {"given": True})
        if value.kind == "unknown" and "choice" not in value.data:
            refine(it, value, "" if handed and value.name else name, uses, annotation, name)
        scope.names[name] = value
    if node.args.vararg:
        scope.names[node.args.vararg.arg] = Value("list", data={"items": args[len(names) :]})
    if node.args.kwarg:
        scope.names[node.args.kwarg.arg] = dictionary({k: v for k, v in keywords.items() if k not in annotations})
    outer, it.scope, regions = it.scope, scope, it.regions
    for decorator in node.decorator_list:
        if dotted(decorator.func if isinstance(decorator, ast.Call) else decorator).split(".")[-1] in CONTEXTS:
            it.regions = [*it.regions, *effects.regions(it, it.value(decorator), decorator)]
    it.stack.append(node)
    it.returned.append([])
    it.selves.append(args[0] if owner is not None and args else it.selves[-1])
    body = it.collect(lambda: it.block(node.body))
    it.selves.pop()
    it.stack.pop()
    it.inner += [v for v in scope.names.values() if v.kind == "function" and v.data.get("scope") is scope]
    it.scope, it.regions = outer, regions
    if any(isinstance(item, Event) for item in tree_walk(body)):
        it.out.append(Block(node, module.path, body, node.name))
    return together(it.returned.pop())


def abstract(node: Function) -> bool:
    """A method that subclasses define: its own body says nothing of what happens."""
    if any(dotted(d).split(".")[-1] == "abstractmethod" for d in node.decorator_list):
        return True
    body = [n for n in node.body if not (isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant))]
    return all(isinstance(n, ast.Raise) and "NotImplemented" in ast.unparse(n) for n in body) and (
        bool(body) or any(isinstance(n, ast.Expr) and ast.unparse(n) == "..." for n in node.body)
    )


def constant(it: Interpreter, node: ast.expr) -> Value:
    if isinstance(node, ast.Constant):
        made = Value("none", "None") if node.value is None else number(node.value)
        made.birth = 0  # as if it were written in the call
        return made
    return Value("unknown", "default")


def refine(
    it: Interpreter,
    value: Value,
    name: str,
    uses: known.Usage,
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
    value.kind = uses.kind(parameter or name) or known.by_name(name) or value.kind


def together(values: list[Value]) -> Value:
    """What a function gives back, of all its returns."""
    telling = [v for v in values if v.kind not in ("none", "unknown")]
    return (telling or values or [Value("none", "None")])[-1]
