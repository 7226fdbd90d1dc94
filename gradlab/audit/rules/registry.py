"""The registry of rules. A module of this package is found by itself; there is no list to add a rule to."""

from __future__ import annotations

import ast
import importlib
import pkgutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from gradlab.audit import rules
from gradlab.audit.source.project import Module
from gradlab.audit.trace.conditions import TRUE, Formula
from gradlab.audit.trace.replay import Occurrence
from gradlab.audit.trace.scenarios import Scenario
from gradlab.audit.trace.training_loop import TrainingLoop
from gradlab.audit.trace.values import Region, Value
from gradlab.codes import CODES, Code


@dataclass(frozen=True)
class Hit:
    """Something wrong because of other things. It is reported only if it is wrong wherever all of them happen."""

    step: Occurrence
    others: tuple[Occurrence, ...] = ()
    node: ast.AST | None = None  # where it is reported, if not at the step
    path: str = ""  # of the file of `node`, if not that of the step
    loose: bool = False  # flags of two features may both be on, unless one is for something missing
    flows: bool = False  # one is computed from the other, whatever flags both depend on
    region: Region | None = None  # the `with` block without which it is no mistake
    when: Formula = TRUE  # the flags without which it is none
    made: bool = False  # at `node` the value is made that is used at the step
    fault: Callable[[Value], bool] | None = None  # whether a value is the one that makes it wrong, whoever gave it


ScenarioFinder = Callable[[Scenario], Iterable[Hit]]
LoopFinder = Callable[[TrainingLoop], Iterable[tuple[str, ast.AST]]]
TextFinder = Callable[[Module], Iterable[ast.AST]]
S = TypeVar("S", bound=ScenarioFinder)
L = TypeVar("L", bound=LoopFinder)
T = TypeVar("T", bound=TextFinder)


@dataclass(frozen=True)
class Rule(Code):
    """A code with the functions that find its mistake: in scenarios of a loop, in a loop, in the text of a module."""

    scenario: ScenarioFinder | None = None
    loop: LoopFinder | None = None
    text: TextFinder | None = None
    windows: bool = False  # only about scenarios in which micro-batches add up


RULES: dict[str, Rule] = {}


def register(code: str, **finders: Any) -> None:
    known = RULES.get(code) or Rule(**vars(CODES[code]))
    RULES[code] = replace(known, **finders)


def scenario_rule(code: str, windows: bool = False) -> Callable[[S], S]:
    """Register a function that yields what is wrong in a scenario; windows: in which micro-batches add up."""

    def decorated(function: S) -> S:
        register(code, scenario=function, windows=windows)
        return function

    return decorated


def loop_rule(code: str) -> Callable[[L], L]:
    """Register a function that yields the path and node of what is wrong in a training loop, whatever its flags."""

    def decorated(function: L) -> L:
        register(code, loop=function)
        return function

    return decorated


def text_rule(code: str) -> Callable[[T], T]:
    """Register a function that yields the nodes that are wrong in a module."""

    def decorated(function: T) -> T:
        register(code, text=function)
        return function

    return decorated


def load_rules() -> dict[str, Rule]:
    """All rules, in the order of their codes."""
    for module in pkgutil.iter_modules(rules.__path__):
        importlib.import_module(f"{rules.__name__}.{module.name}")
    return dict(sorted(RULES.items()))
