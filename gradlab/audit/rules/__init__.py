"""The rules, one registry: a rule looks at the runs of a training loop, or at the text of a file."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from gradlab.audit.project import Module
from gradlab.audit.trace import Run, Step, Unit
from gradlab.audit.tree import Region


@dataclass(frozen=True)
class Rule:
    """`why` names the measured effect; `mend` is a small example."""

    code: str
    name: str
    severity: str
    message: str
    why: str
    mend: str
    runs: Callable[[Run], Iterable[Hit]] | None = None
    unit: Callable[[Unit], Iterable[tuple[str, ast.AST]]] | None = None
    text: Callable[[Module], Iterable[ast.AST]] | None = None
    default: bool = True


@dataclass(frozen=True)
class Hit:
    """A step that is wrong because of others; it is said only if it is so wherever all of them happen."""

    step: Step
    others: tuple[Step, ...] = ()
    node: ast.AST | None = None
    loose: bool = False  # flags of two features may both be on, unless one says what is not there
    region: Region | None = None  # the `with` block without which it is no mistake


RULES: dict[str, Rule] = {}


def rule(
    code: str, name: str, severity: str, message: str, why: str, mend: str, on: str = "runs", default: bool = True
):
    """Register a function as a rule over runs, units or the text of a module."""

    def register(function):
        RULES[code] = Rule(code, name, severity, message, why, mend.strip("\n"), default=default, **{on: function})
        return function

    return register


def also(code: str, on: str = "runs"):
    """Register a second way to see what a rule is about."""

    def register(function):
        RULES[code] = replace(RULES[code], **{on: function})
        return function

    return register


def load() -> dict[str, Rule]:
    from gradlab.audit.rules import (  # noqa: F401
        accumulation,
        advice,
        distributed,
        loss,
        order,
        scaler,
        schedule,
        unstable,
    )

    return dict(sorted(RULES.items()))


def shown(rule: Rule, unit: Unit, runs: list[Run]) -> Iterator[tuple[str, ast.AST]]:
    """Where a rule speaks: in every run in which the steps of a hit happen, under guards that imply each other."""
    hits: dict[tuple, tuple[Hit, int]] = {}
    for run in runs:
        seen = set()
        for hit in rule.runs(run) if rule.runs else ():
            key = (id(hit.node or hit.step.event), tuple(id(o.event) for o in hit.others))
            if key not in seen and nested(unit, [hit.step, *hit.others], hit.loose):
                seen.add(key)
                hits[key] = (hit, hits.get(key, (hit, 0))[1] + 1)
    for hit, count in hits.values():
        needed = {id(s.event) for s in [hit.step, *hit.others]}
        possible = sum(
            needed <= {id(s.event) for s in run.steps}
            and (hit.region is None or any(hit.region in s.active for s in run.steps))
            for run in runs
        )
        if count >= possible:
            yield hit.step.event.path, hit.node or hit.step.event.node


def nested(unit: Unit, steps: list[Step], loose: bool = False) -> bool:
    """One's conditions are among the other's, so that no unknown relation between flags decides that both happen."""
    timed = {a.key for a in unit.atoms if a in unit.boundary or unit.timed(a) or a.kind in ("finite", "last")}
    guards = [frozenset(g for g in step.guards if not any(t in g[0] for t in timed)) for step in steps]
    return all(a <= b or b <= a or (loose and all(positive for _, positive in a ^ b)) for a in guards for b in guards)


def uncertain(unit: Unit, *kinds: str) -> bool:
    """Whether a call that could not be followed was handed one of these, or the program belongs to a framework."""
    what = {*kinds, "framework"}
    return any(event.kind == "opaque" and event.data["receives"] & what for event in unit.events)


def concerns(unit: Unit, step: Step, optimizer) -> bool | None:
    """Whether a step is about this optimizer's parameters; None where that cannot be known."""
    from gradlab.audit.trace import same

    value = step.event.value
    if len(unit.optimizers()) <= 1:
        return True
    if value is None:
        return None
    if value.kind == "optimizer":
        return bool(same(value, optimizer))
    root, roots = value.root(), optimizer.data.get("roots", [])
    if not roots or root.kind not in ("model", "ddp", "instance"):
        return None
    return any(
        root is r or (root.name and root.name == r.name and root.data.get("call") is r.data.get("call")) for r in roots
    )
