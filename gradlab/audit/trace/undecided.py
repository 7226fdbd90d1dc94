"""What the audit could not decide, line by line, for --verbose."""

from __future__ import annotations

import ast

from gradlab.audit.result import FileResult
from gradlab.audit.source.project import Module
from gradlab.audit.trace.conditions import atoms
from gradlab.audit.trace.event_tree import If, walk
from gradlab.audit.trace.replay import ALONE
from gradlab.audit.trace.scenarios import FLAGS
from gradlab.audit.trace.training_loop import TrainingLoop, acts


def undecided(loop: TrainingLoop, silent: dict[int, list[str]], path: str) -> list[tuple[int, str]]:
    """Calls that were not followed, with the rules that are silent because of them, and conditions of unknown truth.

    silent: codes of rules by the id of the event.
    """
    found: list[tuple[int, str]] = []
    for event in loop.events:
        if event.kind == "opaque" and event.path == path:
            received = ", ".join(sorted(event.receives - {"framework"}))
            why = f"it receives {received}" if received else "it belongs to a framework"
            codes = ", ".join(silent.get(id(event), [])) or "none"
            text = f"{event.name}() could not be followed ({why}); rules silenced: {codes}"
            found.append((getattr(event.node, "lineno", 1), text))
    open_atoms, own = loop.open_atoms(), lines(loop)
    where: dict[str, list[int]] = {}
    for item in walk(loop.body):
        if isinstance(item, If) and acts(item) and set(atoms(item.test)) & set(open_atoms):
            line = getattr(item.node, "lineno", 0)
            if item.node is not None and line in own and loop.path == path:
                where.setdefault(ast.unparse(getattr(item.node, "test", item.node)), []).append(line)
    for text, at in where.items():
        more = f" (also at {', '.join(str(line) for line in sorted({*at[1:]} - {at[0]}))})" if {*at} - {at[0]} else ""
        found.append((at[0], f"whether `{text}` holds is not known: followed both ways{more}"))
    if len(open_atoms) > FLAGS:
        which = "each" if len(open_atoms) <= ALONE else f"each of the first {ALONE}"
        text = f"{len(open_atoms)} conditions of unknown truth: {which} was tried alone, not every combination of them"
        found.append((min(own, default=1), text))
    return found


def lines(loop: TrainingLoop) -> set[int]:
    """Lines of the loop's own file that its events span."""
    at = [getattr(e.node, "lineno", 1) for e in loop.events if e.path == loop.path]
    first = loop.statement.node.lineno if loop.statement is not None else min(at, default=1)
    return set(range(min([first, *at]), max([first, *at]) + 1))


def record_coverage(loops: list[TrainingLoop], module: Module, followed: set[ast.AST], result: FileResult) -> None:
    """Record which loops were followed, and which backward passes are in none of them."""
    seen = {id(e.node) for loop in loops for e in loop.events}
    for loop in loops:
        at = loop.statement.node if loop.statement is not None else next((e.node for e in loop.events), None)
        line = getattr(at, "lineno", 1)
        own = loop.path == module.path
        result.loops.append(module.source.place(line) if own else f"{line} of {loop.path}")
    methods = {n.name for n in module.source.nodes.of(ast.FunctionDef)}
    for node in module.source.nodes.of(ast.Call):
        if isinstance(node.func, ast.Attribute) and id(node) not in seen:
            name, owner = node.func.attr, ast.unparse(node.func.value)
            known = node in followed or owner == "super()" or (owner == "self" and name in methods)
            if name in ("backward", "manual_backward") and not known:
                result.lost.append(node.lineno)
                result.undecided.append((node.lineno, "backward() with no step that could be seen to go with it"))
