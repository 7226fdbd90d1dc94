"""Follows a program's text without running it: statements become a tree of events, calls into the project entered."""

from __future__ import annotations

import ast
from typing import Any

from gradlab.audit import calls, known
from gradlab.audit.conditions import TRUE, Formula, negation
from gradlab.audit.expressions import Expressions
from gradlab.audit.known import dotted
from gradlab.audit.objects import Objects
from gradlab.audit.project import Function, Module, Project
from gradlab.audit.scope import Scope, usage
from gradlab.audit.testing import formula
from gradlab.audit.tree import Block, Event, If, Jump, Loop, Region, events
from gradlab.audit.values import Value, births, members, number

DEPTH, CALLS = 7, 400
"""How deep calls are entered, and how many from one beginning."""


class Interpreter(Expressions, Objects):
    def __init__(self, project: Project, visited: set[ast.AST]):
        self.project, self.visited = project, visited
        self.out: list = []
        self.regions: list[Region] = []
        self.stack: list[ast.AST] = []
        self.returned: list[list[Value]] = []
        self.entered = 0
        self.calls = 0
        self.frozen = False
        self.origins: dict[tuple[int, str], ast.expr] = {}
        self.memo: dict[int, Value] = {}
        self.selves: list[Value | None] = [None]
        self.classes: dict[ast.ClassDef, Value] = {}
        self.globals: dict[int, Scope] = {}
        self.scope: Scope = Scope(None, ast.Pass(), None)

    # -- emitting

    def emit(self, kind: str, node: ast.AST, value: Value | None = None, **data: Any) -> Event:
        event = Event(kind, node, self.module.path, value, tuple(self.regions), data)
        self.out.append(event)
        return event

    @property
    def module(self) -> Module:
        assert isinstance(self.scope.module, Module)
        return self.scope.module

    def collect(self, work) -> list:
        outer, self.out = self.out, []
        try:
            work()
            return self.out
        finally:
            self.out = outer

    # -- beginnings

    def world(self, module: Module) -> Scope:
        """The names at the top of a module; those of the audited one are bound when its statements are followed."""
        if id(module) not in self.globals:
            self.globals[id(module)] = Scope(None, module.source.tree or ast.Pass(), module)
        return self.globals[id(module)]

    def run_module(self, module: Module) -> list:
        self.scope = self.world(module)
        assert module.source.tree is not None
        body = module.source.tree.body
        return self.collect(lambda: self.block(body))

    def run_function(self, node: Function, module: Module, owner: Value | None = None) -> list:
        self.scope, self.calls = self.world(module), 0
        self.entered = next(births)
        return self.collect(lambda: self.enter(node, module, [], {}, owner, node, self.world(module)))

    def traced(self, node: ast.expr, depth: int = 0) -> str:
        """An expression's text with local names replaced by what they were assigned."""
        text = ast.unparse(node)
        if depth < 4:
            for part in ast.walk(node):
                if isinstance(part, ast.Name) and (origin := self.origins.get((id(self.scope), part.id))) is not None:
                    text += " <- " + self.traced(origin, depth + 1)
        return text

    # -- calls into the project

    def enter(
        self,
        node: Function,
        module: Module,
        args: list[Value],
        keywords: dict[str, Value],
        owner: Value | None,
        at: ast.AST,
        closure: Scope,
    ) -> Value | None:
        """Follow a function's body; None where it cannot be entered."""
        if node in self.stack or len(self.stack) >= DEPTH or self.calls >= CALLS:
            return None
        self.calls += 1
        self.visited.add(node)
        scope = Scope(closure, node, module)
        names = [a.arg for a in [*node.args.posonlyargs, *node.args.args]]
        static = any(dotted(d) == "staticmethod" for d in node.decorator_list)
        if owner is not None and names and not static:
            args = [owner, *args]
        uses = usage(node)
        annotations = {a.arg: a.annotation for a in [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]}
        defaults: dict[str, ast.expr | None] = dict(
            zip(names[len(names) - len(node.args.defaults) :], node.args.defaults)
        )
        defaults |= {a.arg: d for a, d in zip(node.args.kwonlyargs, node.args.kw_defaults)}
        for name, annotation in annotations.items():
            position = names.index(name) if name in names else len(args)
            value = args[position] if position < len(args) else keywords.get(name)
            default = defaults.get(name)
            if value is None and default is not None and at is not node:
                value = self.constant(default)
            if value is None:
                value = Value("unknown", name, {"given": True})
            if value.kind == "unknown" and "choice" not in value.data:
                self.refine(value, name, uses, annotation)
            scope.names[name] = value
        if node.args.vararg:
            scope.names[node.args.vararg.arg] = Value("list", data={"items": args[len(names) :]})
        outer, self.scope, regions = self.scope, scope, self.regions
        self.stack.append(node)
        self.returned.append([])
        self.selves.append(args[0] if owner is not None and args else self.selves[-1])
        body = self.collect(lambda: self.block(node.body))
        self.selves.pop()
        self.stack.pop()
        self.scope, self.regions = outer, regions
        self.out.append(Block(node, module.path, body, node.name))
        return self.together(self.returned.pop())

    def constant(self, node: ast.expr) -> Value:
        if isinstance(node, ast.Constant):
            return Value("none", "None", birth=0) if node.value is None else number(node.value)
        return Value("unknown", "default")

    def refine(self, value: Value, name: str, uses: known.Usage, annotation: ast.AST | None = None) -> None:
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
        value.kind = uses.kind(name) or known.by_name(name) or value.kind

    def together(self, values: list[Value]) -> Value:
        """What a function gives back, of all its returns."""
        telling = [v for v in values if v.kind not in ("none", "unknown")]
        return (telling or values or [Value("none", "None")])[-1]

    # -- statements

    def block(self, body: list[ast.stmt]) -> None:
        for node in body:
            self.statement(node)

    def statement(self, node: ast.stmt) -> None:
        work = getattr(self, f"do_{type(node).__name__}", None)
        if work is not None:
            work(node)

    def do_Expr(self, node: ast.Expr) -> None:
        self.value(node.value)

    def do_Return(self, node: ast.Return) -> None:
        value = self.value(node.value) if node.value else Value("none", "None")
        if self.returned:
            self.returned[-1].append(value)
        self.out.append(Jump("return", node))

    def do_Raise(self, node: ast.Raise) -> None:
        self.out.append(Jump("raise", node))

    def do_Continue(self, node: ast.Continue) -> None:
        self.out.append(Jump("continue", node))

    def do_Break(self, node: ast.Break) -> None:
        self.out.append(Jump("break", node))

    def do_FunctionDef(self, node: Function) -> None:
        self.scope.names[node.name] = Value(
            "function", node.name, {"node": node, "module": self.module, "scope": self.scope}
        )

    do_AsyncFunctionDef = do_FunctionDef

    def do_ClassDef(self, node: ast.ClassDef) -> None:
        self.scope.names[node.name] = Value("class", node.name, {"node": node, "module": self.module})

    def do_If(self, node: ast.If) -> None:
        if dotted(node.test) == "TYPE_CHECKING":
            return
        self.value(node.test)
        test = formula(self, node.test)
        before = dict(self.scope.names)
        then = self.collect(lambda: self.block(node.body))
        after_then, self.scope.names = self.scope.names, dict(before)
        other = self.collect(lambda: self.block(node.orelse))
        self.out.append(If(test, then, other))
        if leaves(then) and not leaves(other):
            return
        if leaves(other) and not leaves(then):
            self.scope.names = after_then
            return
        for name, value in after_then.items():
            self.scope.names[name] = self.either(test, value, self.scope.names.get(name))

    def either(self, test: Formula, one: Value, two: Value | None) -> Value:
        if two is None or one is two or test == TRUE:
            return one
        if test == ("false",):
            return two
        return self.choice([(test, one), (negation(test), two)])

    def do_For(self, node: ast.For) -> None:
        over = self.value(node.iter)
        if (
            over.kind == "list"
            and 0 < len(over.data["items"]) <= 4
            and all(v.kind in ("optimizer", "scheduler", "model", "ddp", "scaler", "list") for v in over.data["items"])
        ):
            for item in over.data["items"]:
                self.bind(node.target, item)
                self.block(node.body)
            return
        self.loop(node, over)

    do_AsyncFor = do_For

    def do_While(self, node: ast.While) -> None:
        self.value(node.test)
        self.loop(node, None)

    def loop(self, node: ast.For | ast.While | ast.AsyncFor, over: Value | None) -> None:
        entered, self.entered = self.entered, next(births)
        self.carried(node)
        if isinstance(node, (ast.For, ast.AsyncFor)) and over is not None:
            self.bind(node.target, self.element(node.iter, over))
        birth = self.entered
        before = dict(self.scope.names)
        body = self.collect(lambda: self.block(node.body))
        for name, value in before.items():
            if self.scope.names.get(name, value).kind in ("none", "number") and value.kind not in ("unknown", "index"):
                self.scope.names[name] = value
        once = over is not None and over.kind in ("params", "groups", "optimizers", "modules")
        self.out.append(Loop(node, self.module.path, body, birth, over, once))
        self.entered = entered
        self.block(node.orelse)

    def carried(self, node: ast.AST) -> None:
        """Names that the loop counts up are its index; others that it assigns anew are not what they were before it."""
        for part in ast.walk(node):
            if isinstance(part, ast.AugAssign) and isinstance(part.op, ast.Add) and isinstance(part.target, ast.Name):
                old = self.scope.find(part.target.id)
                one = isinstance(part.value, ast.Constant) and part.value.value == 1
                if one and (old is None or old.kind in ("number", "unknown", "index")):
                    self.scope.names[part.target.id] = Value("index", part.target.id, {"offset": 0})
            elif isinstance(part, ast.Assign):
                for target in part.targets:
                    old = self.scope.names.get(target.id) if isinstance(target, ast.Name) else None
                    flag = old is not None and old.kind == "number" and old.data["value"] in (True, False)
                    if isinstance(target, ast.Name) and old is not None and (flag or old.kind in ("bool", "none")):
                        self.scope.names[target.id] = Value("unknown", target.id)

    def do_With(self, node: ast.With) -> None:
        outer = self.regions
        for item in node.items:
            value = self.value(item.context_expr)
            found = calls.regions(self, value, item.context_expr)
            self.regions = [*self.regions, *found]
            if item.optional_vars is not None:
                self.bind(item.optional_vars, value.data.get("as", value))
        self.block(node.body)
        self.regions = outer

    do_AsyncWith = do_With

    def do_Try(self, node: ast.Try) -> None:
        self.block([*node.body, *node.orelse, *node.finalbody])

    do_TryStar = do_Try

    def do_Match(self, node: ast.Match) -> None:
        self.value(node.subject)
        for i, case in enumerate(node.cases):
            from gradlab.audit.conditions import Atom

            test = ("atom", Atom(f"case {i} of {node.lineno}", next(births)))
            self.out.append(If(test, self.collect(lambda case=case: self.block(case.body)), []))

    def do_Assign(self, node: ast.Assign) -> None:
        for target in node.targets:
            if calls.assign_gradient(self, node, target, node.value, None):
                return
        value = self.value(node.value)
        if len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            self.origins[(id(self.scope), node.targets[0].id)] = node.value
        if (
            value.kind == "unknown"
            and value.data.get("made")
            and isinstance(node.targets[0], (ast.Name, ast.Attribute))
        ):
            self.name_result(node.targets[0], value)
        if (
            value.kind in ("unknown", "number")
            and isinstance(node.targets[0], (ast.Name, ast.Attribute))
            and not value.name
        ):
            value.name = dotted(node.targets[0])
        for target in node.targets:
            self.bind(target, value)

    def name_result(self, target: ast.expr, value: Value) -> None:
        """The result of a call that cannot be followed: what its use shows it to be."""
        name = dotted(target)
        scope = self.owner_class() if name.startswith("self.") else self.scope.node
        if scope is not None and name:
            value.kind = usage(scope).kind(name) or known.by_name(name) or value.kind
            value.name = name

    def do_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            value = self.value(node.value)
            if value.kind == "unknown":
                self.refine(value, dotted(node.target), usage(self.scope.node), node.annotation)
            self.bind(node.target, value)

    def do_AugAssign(self, node: ast.AugAssign) -> None:
        if calls.assign_gradient(self, node, node.target, node.value, node.op):
            return
        old, value = self.value(node.target), self.value(node.value)
        if isinstance(node.op, ast.Add):
            if old.kind in ("index", "number", "unknown") and value.kind == "number" and value.data.get("value") == 1:
                offset = old.data.get("offset", 0)
                self.bind(node.target, Value("index", old.name, {"offset": offset + 1}))
                return
            calls.kept(self, node, node.target, old, value)
        self.bind(node.target, self.combined(node.op, old, value, node.value))

    def bind(self, target: ast.expr, value: Value) -> None:
        if isinstance(target, ast.Name):
            self.scope.names[target.id] = value
        elif isinstance(target, ast.Attribute):
            owner = self.value(target.value)
            owner.attributes[target.attr] = value
            if target.attr == "require_backward_grad_sync":
                self.emit("sync", target, owner)
        elif isinstance(target, (ast.Tuple, ast.List)):
            items = value.data["items"] if value.kind == "list" else []
            for i, part in enumerate(target.elts):
                if isinstance(part, ast.Starred):
                    self.bind(part.value, Value("unknown"))
                elif len(items) == len(target.elts):
                    self.bind(part, items[i])
                else:
                    item = Value("unknown", dotted(part), {"made": value.data.get("made")})
                    if value.data.get("made") and item.name:
                        self.name_result(part, item)
                    elif value.kind == "tensor":
                        item = Value("tensor", dotted(part), {**value.data})
                    self.bind(part, item)
        elif isinstance(target, ast.Subscript):
            self.value(target.value)

    def do_Delete(self, node: ast.Delete) -> None:
        pass

    def owner_class(self) -> ast.ClassDef | None:
        owner = self.selves[-1]
        return owner.data.get("class") if owner is not None else None


def leaves(items: list) -> bool:
    return any(isinstance(item, Jump) for item in items)


__all__ = ["Interpreter", "events", "members"]
