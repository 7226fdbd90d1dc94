"""What following a program remembers, and the operations by which its parts call each other."""

from __future__ import annotations

import ast
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from gradlab.audit.source.project import Function, Module, Project
from gradlab.audit.trace.conditions import Formula
from gradlab.audit.trace.event_tree import Node
from gradlab.audit.trace.iterables import spend
from gradlab.audit.trace.values import UNSET, Event, Frame, Graph, Region, Scope, Value


class Engine(ABC):
    """The state of the interpreter. The parts of `knowledge` and `interpreter` are functions of it."""

    def __init__(self, project: Project, visited: set[ast.AST]):
        self.project = project
        self.visited = visited  # functions and calls that were followed
        self.out: list[Node] = []  # the events so far, of the innermost block
        self.scope = Scope(None, ast.Pass(), UNSET)
        self.regions: list[Region] = []  # the `with` blocks around this point
        self.frames: list[Frame] = []  # the calls that were entered
        self.stack: list[ast.AST] = []  # and their functions
        self.selves: list[Value | None] = [None]  # and the objects whose methods they are
        self.returned: list[list[Value]] = []  # and what they return
        self.conditions: list[Formula] = []  # of the branches around this point
        self.entered = 0  # birth of the innermost loop
        self.depth = 0  # how many forward passes are around this point
        self.audited: Module | None = None  # the file whose loops are looked for
        self.calls = 0  # entered since the entry point
        self.total = 0  # entered in all
        self.evaluated = 0  # expressions, in all
        self.exhausted: ast.AST | None = None  # the first call that was not entered because there were too many
        self.statement_call: ast.AST | None = None  # the call whose result nothing uses
        self.skipped: list[ast.AST] = []  # statements that nest too deeply
        self.written: list[tuple[Value, str, Value | None]] = []  # attributes that were set, and what they were before
        self.assigned: dict[tuple[int, str], int] = {}  # birth of the last assignment of a name in a function
        self.origins: dict[int, tuple[ast.expr, Scope]] = {}  # of a value by its number: the expression that made it
        self.results: dict[str, Value] = {}  # the same of the same is the same value
        self.frozen = False  # calls have been followed already: their results are remembered
        self.memo: dict[int, Value] = {}  # result of each call by the id of its node
        self.tokens: set[int] = set()  # roots that stand for unstable operations
        self.passes: dict[tuple[Any, ...], Value | None] = {}  # results of forward passes that were followed
        self.graphs: dict[tuple[Any, ...], dict[object, Graph]] = {}  # of each part of what forward passes return
        self.samples: dict[ast.AST, Value] = {}  # what stands for the sums that draw from networks' distributions
        self.clearing: dict[tuple[Any, ...], list[Value | None]] = {}  # whose gradients they set to zero
        self.frozen_models: list[Value] = []  # whose weights were set to need no gradient
        self.thawing = False  # weights that are not known were set to need one
        self.closures: list[Value] = []  # functions defined in those that were entered
        self.tops: dict[int, Scope] = {}  # the names at the top of each module
        self.answers: list[Value] = []  # what the last function that was left may return

    @property
    def module(self) -> Module:
        return self.scope.module

    def emit(self, kind: str, node: ast.AST, value: Value | None = None, **facts: Any) -> Event:
        """Something happens to gradients here; `facts` are fields of the event."""
        if kind == "clip" and value is not None:
            facts |= {"empty": value.spent}
            spend(self.branches, value)
        facts |= {"module": self.module}
        event = Event(kind, node, self.module.path, value, tuple(self.regions), tuple(self.frames), **facts)
        self.out.append(event)
        return event

    def remember(self, value: Value, node: ast.expr) -> None:
        """Of what expression a value is the result; another name of it is none."""
        if not isinstance(node, (ast.Name, ast.Attribute, ast.Constant)):
            self.origins.setdefault(value.number, (node, self.scope))

    def word(self, node: ast.expr) -> str | None:
        """The word that an expression is in the text, or in a call or at a default, such as `reduction="mean"`."""
        value = self.value(node)
        return value.value if isinstance(value.value, str) and value.birth == 0 and not value.choice else None

    def collect(self, work: Callable[[], object]) -> list[Node]:
        """What happens in some work, apart from everything else."""
        outer, self.out = self.out, []
        try:
            work()
            return self.out
        finally:
            self.out = outer

    @property
    def branches(self) -> int:
        """How many `if` are around this point."""
        return len(self.conditions)

    @property
    def without_gradient(self) -> bool:
        return any(region.kind == "no_grad" for region in self.regions)

    @abstractmethod
    def value(self, node: ast.expr | None) -> Value:
        """What an expression stands for; what its calls do has happened then."""

    @abstractmethod
    def block(self, body: list[ast.stmt]) -> None:
        """Follow statements."""

    @abstractmethod
    def formula(self, node: ast.expr) -> Formula:
        """The condition under which an expression is true; its calls were followed before."""

    @abstractmethod
    def canonical(self, node: ast.AST) -> str:
        """The text of an expression with names replaced by their values, so that aliases agree."""

    @abstractmethod
    def named(self, name: str) -> Value:
        """What a name is bound to."""

    @abstractmethod
    def attribute(self, value: Value, name: str, node: ast.Attribute) -> Value:
        """What an attribute of a value stands for."""

    @abstractmethod
    def top(self, module: Module) -> Scope:
        """The names at the top of a module."""

    @abstractmethod
    def apply(self, node: ast.Call, callee: Value, args: list[Value]) -> Value:
        """A value called as another call demands: a closure, a hook, what map() receives."""

    @abstractmethod
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
        """Follow a function's body and return what it returns; None where it cannot be entered.

        owner: the object whose method it is; at: the call; closure: the scope that the function is defined in.
        """

    @abstractmethod
    def instance(self, callee: Value, args: list[Value], keywords: dict[str, Value], at: ast.AST) -> Value:
        """An object of a class of the project."""

    @abstractmethod
    def forward_pass(self, node: ast.Call, owner: Value, args: list[Value], made: Value) -> Value:
        """`made`, the result of a forward pass, with what the text of that pass shows of it."""
