"""Optimizers that are zeroed and never step, and weights that two optimizers step on."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from gradlab.audit.knowledge.known_names import OPTIMIZER, SCHEDULE
from gradlab.audit.rules.reach import overlap
from gradlab.audit.rules.registry import Hit, loop_rule, scenario_rule, text_rule
from gradlab.audit.rules.reporting import uncertain
from gradlab.audit.source.project import Module
from gradlab.audit.source.syntax import called_name, dotted, walk
from gradlab.audit.trace.provenance import sources
from gradlab.audit.trace.scenarios import Scenario
from gradlab.audit.trace.training_loop import TrainingLoop, same
from gradlab.audit.trace.values import Event, Value

PLAIN = {"zero_grad", "param_groups", "state_dict", "load_state_dict", "state", "defaults"}
"""Attributes of an optimizer that change no weights."""


@loop_rule("GL713")
def step_missing(loop: TrainingLoop) -> Iterator[tuple[str, ast.AST]]:
    """An optimizer's gradients are zeroed, a backward pass follows, and another optimizer steps instead."""
    if uncertain(loop, "optimizer", "self", "scaler", "accelerator", "groups"):
        return
    kinds = [event.kind for event in loop.events]
    for i, event in enumerate(loop.events):
        optimizer = event.value
        if event.kind != "zero" or optimizer is None or optimizer.kind != "optimizer" or optimizer.choice:
            continue
        stepped = any(same(optimizer, one) for one in loop.optimizers())
        if not stepped and kinds[i:].count("backward") and "step" in kinds[i:] and never_used(event):
            yield event.path, event.node


def never_used(zero: Event) -> bool:
    """Whether the text of the file neither steps an optimizer nor gives it to anything."""
    func = getattr(zero.node, "func", None)
    name = dotted(func.value) if isinstance(func, ast.Attribute) else ""
    if not name or zero.module is None:
        return False
    tail, text = re.escape(name.split(".")[-1]), zero.module.source.text
    used = rf"\b{tail}\b(\[[^\]]*\])?\.\w*step|step\w*\([^)]*\b{tail}\b"
    given = rf"[=(\[,:]\s*{re.escape(name)}\b(?![.\w]|\s*=)"
    return re.search(used, text) is None and re.search(given, text) is None


@text_rule("GL713")
def never_stepped(module: Module) -> Iterator[ast.AST]:
    """A loop zeroes the gradients of an optimizer around its backward pass, and all that has the optimizer is seen."""
    scopes: list[ast.FunctionDef | ast.Module] = [*module.source.nodes.of(ast.FunctionDef)]
    for scope in [*scopes, *module.source.nodes.of(ast.Module)]:
        made = [n for n in scope.body if isinstance(n, ast.Assign) and OPTIMIZER.match(called_name(n.value))]
        names = [n.targets[0].id for n in made if isinstance(n.targets[0], ast.Name)]
        if not names or any(getattr(part, "attr", "") == "grad" for part in walk(scope)):
            continue
        for name in names:
            if not stepped(scope, name):
                yield from zeroed_in_loops(scope, name)


def stepped(scope: ast.AST, name: str) -> bool:
    """Whether an optimizer may step in a function: anything but a schedule has it, or a method that is no plain one."""
    harmless: set[int] = set()
    for node in walk(scope):
        if isinstance(node, ast.Attribute) and node.attr in PLAIN:
            harmless.add(id(node.value))
        elif isinstance(node, ast.Call) and (SCHEDULE.match(called_name(node)) or called_name(node) == "print"):
            harmless |= {id(given) for given in [*node.args, *(k.value for k in node.keywords)]}
        elif isinstance(node, ast.Assign):
            harmless |= {id(target) for target in node.targets}
    return any(isinstance(node, ast.Name) and node.id == name and id(node) not in harmless for node in walk(scope))


def zeroed_in_loops(scope: ast.AST, name: str) -> Iterator[ast.AST]:
    """The calls that set an optimizer's gradients to zero in loops with a backward pass."""
    for loop in walk(scope):
        if isinstance(loop, (ast.For, ast.While)):
            calls = [part for part in walk(loop) if isinstance(part, ast.Call) and isinstance(part.func, ast.Attribute)]
            if any(getattr(call.func, "attr", "") == "backward" for call in calls):
                yield from (call for call in calls if dotted(call.func) == f"{name}.zero_grad")


@scenario_rule("GL702")
def weights_twice(scenario: Scenario) -> Iterator[Hit]:
    steps = [s for s in scenario.of("step") if whole(s.event.value) is not None]
    for i, first in enumerate(steps):
        for second in steps[i + 1 :]:
            one, two = first.event.value, second.event.value
            if first.k != second.k or one is None or two is None or same(one, two) or whole(one) is not whole(two):
                continue
            at = scenario.places
            between = scenario.steps[at[id(first)] + 1 : at[id(second)]]
            if all(s.kind not in ("backward", "zero", "opaque", "given") for s in between):
                yield Hit(second, (first,))
            elif left_out(scenario):
                made = [o.call for o in (one, two) if o is not None and o.path == second.event.path]
                yield Hit(second, (first,), max(made, key=line, default=None))


def line(node: ast.AST) -> int:
    return getattr(node, "lineno", 0)


def whole(optimizer: Value | None) -> Value | None:
    """The one model whose parameters an optimizer holds, all of them."""
    if optimizer is None or optimizer.kind != "optimizer" or optimizer.some or len(optimizer.trained) != 1:
        return None
    return (
        optimizer.trained[0] if optimizer.call is not None and optimizer.trained[0].kind in ("model", "ddp") else None
    )


def left_out(scenario: Scenario) -> bool:
    """Whether a loss comes from a network that is put into train() here, and that none of the optimizers holds."""
    loop = scenario.loop
    held = [model for optimizer in loop.optimizers() for model in optimizer.trained]
    if any(optimizer.some or not optimizer.trained for optimizer in loop.optimizers()):
        return False
    modes = [e.value for e in [*loop.before, *loop.events] if e.kind == "mode" and e.name == "train" and e.value]
    models = [event.value for s in scenario.of("backward") if s.event.value for event in sources(s.event.value)]
    return any(
        model is not None and model.root() in [m.root() for m in modes] and not any(overlap(model, h) for h in held)
        for model in models
    )
