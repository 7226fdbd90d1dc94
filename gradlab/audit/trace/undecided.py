"""What the audit could not decide, said line by line: for --verbose."""

from __future__ import annotations

import ast

from gradlab.audit.result import Result
from gradlab.audit.source.project import Module
from gradlab.audit.trace.conditions import atoms
from gradlab.audit.trace.events import Event, If, Jump, walk
from gradlab.audit.trace.scenarios import FLAGS
from gradlab.audit.trace.training_loop import ACTIONS, Unit


def doubts(unit: Unit, silent: dict[int, list[str]], path: str) -> list[tuple[int, str]]:
    """Calls that were not followed with the rules that are silent for them, and conditions taken both ways."""
    found: list[tuple[int, str]] = []
    for event in unit.events:
        if event.kind == "opaque" and event.path == path:
            handed = ", ".join(sorted(event.data["receives"] - {"framework"}))
            why = f"it has {handed}" if handed else "it is a framework's"
            codes = ", ".join(silent.get(id(event), [])) or "none"
            text = f"{event.data['name']}() could not be followed ({why}); silent for it: {codes}"
            found.append((getattr(event.node, "lineno", 1), text))
    open_, own = [a for a in unit.atoms if a not in unit.boundary and not unit.timed(a)], lines(unit)
    where: dict[str, list[int]] = {}
    for item in walk(unit.body):
        if isinstance(item, If) and acts(item) and set(atoms(item.test)) & set(open_):
            line = getattr(item.node, "lineno", 0)
            if item.node is not None and line in own and unit.path == path:
                where.setdefault(ast.unparse(getattr(item.node, "test", item.node)), []).append(line)
    for text, at in where.items():
        more = f" (also at {', '.join(str(line) for line in sorted({*at[1:]} - {at[0]}))})" if {*at} - {at[0]} else ""
        found.append((at[0], f"whether `{text}` holds is not known: followed both ways{more}"))
    if len(open_) > FLAGS:
        text = f"{len(open_)} conditions of unknown value: each was tried alone, not every combination of them"
        found.append((min(own, default=1), text))
    return found


def lines(unit: Unit) -> set[int]:
    """Lines of the unit's own file that its events span."""
    at = [getattr(e.node, "lineno", 1) for e in unit.events if e.path == unit.path]
    first = getattr(unit.loop.node, "lineno", 1) if unit.loop is not None else min(at, default=1)
    return set(range(min([first, *at]), max([first, *at]) + 1))


def acts(item: If) -> bool:
    """What depends on it moves gradients, or leaves the loop."""
    return any(
        isinstance(part, Jump) or (isinstance(part, Event) and part.kind in ACTIONS)
        for part in walk([*item.then, *item.other])
    )


def heard(units: list[Unit], module: Module, result: Result) -> None:
    """Which loops were followed, and which backward passes are in none of them."""
    seen = {id(e.node) for unit in units for e in unit.events}
    for unit in units:
        at = unit.loop.node if unit.loop is not None else next((e.node for e in unit.events), None)
        line = getattr(at, "lineno", 1)
        own = unit.path == module.path
        result.loops.append(module.source.place(line) if own else f"{line} of {unit.path}")
    methods = {n.name for n in module.source.nodes.of(ast.FunctionDef)}
    for node in module.source.nodes.of(ast.Call):
        if isinstance(node.func, ast.Attribute) and id(node) not in seen:
            name, owner = node.func.attr, ast.unparse(node.func.value)
            followed = node in result.followed or owner == "super()" or (owner == "self" and name in methods)
            if name in ("backward", "manual_backward") and not followed:
                result.lost.append(node.lineno)
                result.undecided.append((node.lineno, "backward() with no step that could be seen to go with it"))
