"""Follows a program's text without running it: statements become a tree of events, calls into the project entered."""

from __future__ import annotations

import ast
from typing import Any

from gradlab.audit.interpreter import calls, expressions, statements
from gradlab.audit.interpreter.function_calls import enter
from gradlab.audit.source.project import Function, Module, Project
from gradlab.audit.source.syntax import dotted, walk
from gradlab.audit.trace.events import Event, Region
from gradlab.audit.trace.scope import Scope
from gradlab.audit.trace.values import Value, births


def objects(node: ast.expr) -> bool:
    """Whether an expression makes an object of a class, which is no number: `DataLoader(...)`."""
    return isinstance(node, ast.Call) and dotted(node.func).split(".")[-1][:1].isupper()


class Interpreter:
    def __init__(self, project: Project, visited: set[ast.AST]):
        self.project, self.visited = project, visited
        self.out: list = []
        self.regions: list[Region] = []
        self.stack: list[ast.AST] = []
        self.returned: list[list[Value]] = []
        self.entered = 0
        self.calls = 0
        self.total = 0
        self.cut: list[ast.AST] = []
        self.branches = 0
        self.written: list[tuple[Value, str, Value | None]] = []  # attributes that were set, and what they were before
        self.result: Value | None = None  # of the function that was begun with
        self.results: dict[str, Value] = {}
        self.bound: dict[tuple[int, str], int] = {}
        self.frozen = False
        self.origins: dict[tuple[int, str], ast.expr] = {}
        self.memo: dict[int, Value] = {}
        self.tokens: set[int] = set()
        self.seen_inside: dict[tuple, Value | None] = {}  # forward passes that were followed
        self.alone: ast.AST | None = None  # a call whose result nothing takes
        self.within = 0  # how deep in them
        self.inner: list[Value] = []  # functions defined in those that were entered
        self.selves: list[Value | None] = [None]
        self.frames: list[tuple[ast.AST, object, list[Value], bool]] = []  # the calls that were entered: see enter()
        self.globals: dict[int, Scope] = {}
        self.scope: Scope = Scope(None, ast.Pass(), None)

    # -- emitting

    def emit(self, kind: str, node: ast.AST, value: Value | None = None, **data: Any) -> Event:
        event = Event(kind, node, self.module.path, value, tuple(self.regions), data)
        event.frames = tuple((at, module, own) for at, module, _, own in self.frames)
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

    def run_function(
        self, node: Function, module: Module, owner: Value | None = None, closure: Scope | None = None
    ) -> list:
        self.scope, self.calls, self.seen_inside = self.world(module), 0, {}
        self.entered = next(births)
        made: list[Value | None] = []
        outer = closure or self.world(module)
        items = self.collect(lambda: made.append(enter(self, node, module, [], {}, owner, node, outer)))
        self.result = made[0]
        return items

    def traced(self, node: ast.expr, depth: int = 0) -> str:
        """An expression's text with local names replaced by the numbers that they were assigned."""
        text = ast.unparse(node)
        if depth < 4:
            for part in walk(node):
                origin = self.origins.get((id(self.scope), part.id)) if isinstance(part, ast.Name) else None
                if origin is not None and not objects(origin):
                    text += " <- " + self.traced(origin, depth + 1)
        return text

    # -- following

    def apply(self, node: ast.Call, callee: Value, args: list[Value]) -> Value:
        """A value called as another call demands: a closure, a hook, what map() is given."""
        return calls.applied(self, node, callee, None, args, {})

    def block(self, body: list[ast.stmt]) -> None:
        for node in body:
            if (work := statements.WORK.get(type(node).__name__)) is None:
                continue
            state = self.scope, self.regions, len(self.stack), len(self.returned), len(self.selves)
            try:
                work(self, node)
            except RecursionError:  # an expression of a thousand parts: the statement is passed over
                self.scope, self.regions = state[:2]
                del self.stack[state[2] :], self.returned[state[3] :], self.selves[state[4] :]
                self.cut.append(node)

    def value(self, node: ast.expr | None) -> Value:
        if node is None:
            return Value("none", "None", birth=0)
        if (work := expressions.WORK.get(type(node).__name__)) is not None:
            return work(self, node)
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self.value(child)
        return Value()
