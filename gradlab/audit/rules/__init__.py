"""The rules, one registry: a rule looks at the runs of a training loop, or at the text of a file."""

from __future__ import annotations

import ast
import importlib
import pkgutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from gradlab.audit.source.project import Module
from gradlab.audit.trace.conditions import TRUE, Formula, holds
from gradlab.audit.trace.events import Event, Region
from gradlab.audit.trace.replay import Step
from gradlab.audit.trace.scenarios import Run
from gradlab.audit.trace.training_loop import Unit
from gradlab.codes import CODES, Code


@dataclass(frozen=True)
class Rule(Code):
    """How a mistake is found in the text."""

    runs: Callable[[Run], Iterable[Hit]] | None = None
    unit: Callable[[Unit], Iterable[tuple[str, ast.AST]]] | None = None
    text: Callable[[Module], Iterable[ast.AST]] | None = None
    windows: bool = False  # about runs alone in which micro-batches add up


@dataclass(frozen=True)
class Hit:
    """A step that is wrong because of others; it is said only if it is so wherever all of them happen."""

    step: Step
    others: tuple[Step, ...] = ()
    node: ast.AST | None = None
    loose: bool = False  # flags of two features may both be on, unless one says what is not there
    region: Region | None = None  # the `with` block without which it is no mistake
    when: Formula = TRUE  # the flags without which it is none


RULES: dict[str, Rule] = {}
ACTIONS = {"backward", "step", "zero", "clip", "unscale", "update", "schedule", "scale", "forward", "opaque"}
PLACED = ("zero", "clip", "unscale", "schedule", "update")


def rule(code: str, on: str = "runs", windows: bool = False):
    """Register a function as a rule over runs, units or the text of a module; a code may have one of each.

    What the rule says is in `gradlab.codes`. windows: about runs alone in which micro-batches add up.
    """

    def register(function):
        known = RULES.get(code) or Rule(**vars(CODES[code]))
        RULES[code] = replace(known, **{on: function, "windows": windows or known.windows})
        return function

    return register


def load() -> dict[str, Rule]:
    """All rules, in the order of their codes; every module of this package is one of rules."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    return dict(sorted(RULES.items()))


def shown(rule: Rule, unit: Unit, runs: list[Run]) -> Iterator[tuple[str, ast.AST]]:
    """Where a rule speaks: in every run in which the steps of a hit happen, under guards that imply each other."""
    hits: dict[tuple, tuple[Hit, int]] = {}
    varying = {a.key for a in unit.atoms if a.kind == "flag" and a.birth > unit.birth and a not in unit.boundary}
    varying |= {a.key for a in unit.atoms if a.kind == "period" and a not in unit.boundary and not unit.timed(a)}
    runs = [run for run in runs if run.accumulating] if rule.windows else runs
    for run in runs:
        seen = set()
        for hit in rule.runs(run) if rule.runs else ():
            key = (id(hit.node or hit.step.event), tuple(id(o.event) for o in hit.others))
            if rule.windows and hit.step.kind in PLACED and any(v in g for g, _ in hit.step.guards for v in varying):
                continue  # where in the window it happens is not known
            if key not in seen and nested(unit, [hit.step, *hit.others], hit.loose):
                seen.add(key)
                hits[key] = (hit, hits.get(key, (hit, 0))[1] + 1)
    for hit, count in hits.values():
        needed = {id(s.event) for s in [hit.step, *hit.others]}
        possible = sum(
            needed <= {id(s.event) for s in run.steps}
            and (hit.region is None or any(hit.region in s.active for s in run.steps))
            and under(run, hit.when)
            for run in runs
        )
        if count >= possible:
            if hit.node is None and hit.step.kind in (*PLACED, "step"):
                yield called_at(unit, hit.step.event)
            else:
                yield hit.step.event.path, hit.node or hit.step.event.node


def under(run: Run, when: Formula) -> bool:
    """Whether flags are so in a run; of those that decide nothing in it each may be."""
    return holds(when, lambda atom: run.values.get(atom.key, True))


def called_at(unit: Unit, event: Event) -> tuple[str, ast.AST]:
    """Where an order is decided: where a helper that does nothing else is called, of the same object or of none."""
    path, node = event.path, event.node
    for at, module, own in reversed(event.frames):
        inside = {e.kind for e in unit.events if any(frame[0] is at for frame in e.frames)}
        own = own or event.kind == "step"  # of an optimizer that is wrapped
        if not own or not isinstance(at, ast.Call) or inside & ACTIONS != {event.kind}:
            break
        path, node = module.path, at
    return path, node


def nested(unit: Unit, steps: list[Step], loose: bool = False) -> bool:
    """One's conditions are among the other's, so that no unknown relation between flags decides that both happen."""
    timed = {a.key for a in unit.atoms if a in unit.boundary or unit.timed(a) or a.kind in ("finite", "last")}
    guards = [frozenset(g for g in step.guards if not any(t in g[0] for t in timed)) for step in steps]
    return all(a <= b or b <= a or (loose and all(positive for _, positive in a ^ b)) for a in guards for b in guards)


def uncertain(unit: Unit, *kinds: str, but: str = "") -> bool:
    """Whether a call that could not be followed was handed one of these, or the program belongs to a framework."""
    what = {*kinds, "framework"}
    found = [event for event in unit.events if event.kind == "opaque" and event.data["receives"] & what]
    found = [event for event in found if not event.data.get(but)]
    unit.doubts += found
    return bool(found)
