"""Follows a program's text without running it: statements become a tree of events, calls into the project entered."""

from __future__ import annotations

import ast

from gradlab.audit.interpreter import branch_conditions, canonical_text, forward_passes, function_calls, name_lookup
from gradlab.audit.interpreter.calls import applied
from gradlab.audit.interpreter.expressions import EXPRESSIONS
from gradlab.audit.interpreter.instances import instance
from gradlab.audit.interpreter.statements import STATEMENTS, left_for_sure
from gradlab.audit.knowledge.call_site import CallSite
from gradlab.audit.source.project import Function, Module, Project
from gradlab.audit.trace.conditions import Formula
from gradlab.audit.trace.engine import Engine
from gradlab.audit.trace.event_tree import Node
from gradlab.audit.trace.training_loop import TrainingLoop
from gradlab.audit.trace.values import Scope, Value, births


class Interpreter(Engine):
    """Binds the parts of the interpreter together: each calls the others through the engine."""

    def __init__(self, project: Project, visited: set[ast.AST]):
        super().__init__(project, visited)
        self.stepless: list[TrainingLoop] = []  # loops with backward passes, where nothing steps

    # -- entry points

    def start(self, owner: Value | None, module: Module) -> None:
        """Begin at the top of a module, or in a method of `owner`."""
        self.selves, self.stack, self.regions, self.returned = [owner], [], [], []
        self.scope, self.calls = self.top(module), 0

    def run_module(self, module: Module) -> list[Node]:
        self.scope = self.top(module)
        assert module.source.tree is not None
        body = module.source.tree.body
        return self.collect(lambda: self.block(body))

    def run_function(
        self,
        node: Function,
        module: Module,
        owner: Value | None,
        closure: Scope | None = None,
        keywords: dict[str, Value] | None = None,
    ) -> list[Node]:
        self.start(owner, module)
        self.passes = {}
        self.entered = next(births)
        self.answers = []
        return self.collect(lambda: self.enter(node, module, [], keywords or {}, owner, node, closure))

    # -- dispatch

    def block(self, body: list[ast.stmt]) -> None:
        answers: int | None = None
        for node in body:
            if (work := STATEMENTS.get(type(node))) is None:
                continue
            state = self.scope, self.regions, len(self.stack), len(self.returned), len(self.selves), len(self.frames)
            try:
                work(self, node)
            except RecursionError:  # an expression of a thousand parts: the statement is passed over
                self.scope, self.regions = state[:2]
                del self.stack[state[2] :], self.returned[state[3] :], self.selves[state[4] :], self.frames[state[5] :]
                self.skipped.append(node)
            if answers is None and self.returned and isinstance(node, ast.If) and left_for_sure(self.out[-1:]):
                answers = len(self.returned[-1])  # by a test whose truth is known: what comes then is not returned
        if answers is not None:
            del self.returned[-1][answers:]

    def value(self, node: ast.expr | None) -> Value:
        if node is None:
            return Value("none", "None", birth=0)
        self.evaluated += 1
        if (work := EXPRESSIONS.get(type(node))) is not None:
            return work(self, node)
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self.value(child)
        return Value()

    # -- what the parts ask of each other

    def formula(self, node: ast.expr) -> Formula:
        return branch_conditions.formula(self, node)

    def canonical(self, node: ast.AST) -> str:
        return canonical_text.canonical(self, node)

    def named(self, name: str) -> Value:
        return name_lookup.named(self, name)

    def attribute(self, value: Value, name: str, node: ast.Attribute) -> Value:
        return name_lookup.attribute(self, value, name, node)

    def top(self, module: Module) -> Scope:
        if id(module) not in self.tops:
            self.tops[id(module)] = Scope(None, module.source.tree or ast.Pass(), module)
        return self.tops[id(module)]

    def apply(self, node: ast.Call, callee: Value, args: list[Value]) -> Value:
        return applied(CallSite.of(self, node, args, {}), callee, None)

    def enter(
        self,
        function: Function,
        module: Module,
        args: list[Value],
        keywords: dict[str, Value],
        owner: Value | None,
        at: ast.AST,
        closure: Scope | None = None,
    ) -> Value | None:
        return function_calls.enter(self, function, module, args, keywords, owner, at, closure or self.top(module))

    def instance(self, callee: Value, args: list[Value], keywords: dict[str, Value], at: ast.AST) -> Value:
        return instance(self, callee, args, keywords, at)

    def forward_pass(self, node: ast.Call, owner: Value, args: list[Value], made: Value) -> Value:
        return forward_passes.forward_pass(self, node, owner, args, made)
