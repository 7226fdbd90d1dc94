"""Gradients that no optimizer uses: it is zeroed and never steps, or in one branch alone."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from itertools import islice

from gradlab.audit.knowledge.known_names import OPTIMIZER
from gradlab.audit.rules.namesakes import whole_network
from gradlab.audit.rules.reach import overlap
from gradlab.audit.rules.registry import loop_rule, text_rule
from gradlab.audit.rules.reporting import uncertain
from gradlab.audit.source.project import Module
from gradlab.audit.source.syntax import called_name, dotted, walk
from gradlab.audit.trace.conditions import atoms, literals
from gradlab.audit.trace.event_tree import If, events
from gradlab.audit.trace.event_tree import walk as walk_tree
from gradlab.audit.trace.provenance import sources
from gradlab.audit.trace.training_loop import TrainingLoop, anonymous, differentiable, same
from gradlab.audit.trace.values import Event, Value

SIGNATURE = re.compile(r"\bdef \w+\([^()]*\)")
"""What a function receives, where that shows no more than names."""
USING = ("given", "taken", "look", "scale", "reduce")
"""Kinds of events that use gradients in another way than a step."""


@loop_rule("GL713")
def step_missing(loop: TrainingLoop) -> Iterator[tuple[str, ast.AST]]:
    """An optimizer's gradients are zeroed, a backward pass follows, and another optimizer steps instead, or none."""
    if uncertain(loop, "optimizer", "self", "scaler", "accelerator", "groups"):
        return
    if not loop.optimizers():
        yield from never_stepped(loop)
        return
    yield from in_one_branch(loop)
    for i, event in enumerate(loop.events):
        optimizer = event.value
        if event.kind != "zero" or optimizer is None or optimizer.kind != "optimizer":
            continue
        if any(one.kind != "optimizer" or one.call is None for _, one in optimizer.choice):
            continue
        if anonymous(optimizer):
            continue
        stepped = any(same(optimizer, one) for one in loop.optimizers())
        ahead = [later for later in loop.events[i:] if later.kind == "backward"]
        if not stepped and ahead and never_used(event):
            own = next((one for one in ahead if reaches(one, optimizer.trained)), ahead[0])
            yield own.path, own.node


def reaches(backward: Event, models: Iterable[Value]) -> bool:
    """Whether a loss is known to come from one of some networks."""
    passes = sources(backward.value) if backward.value is not None else []
    return any(e.value is not None and overlap(e.value, model) for e in passes for model in models)


def in_one_branch(loop: TrainingLoop) -> Iterator[tuple[str, ast.AST]]:
    """Both sides of a setting have a backward pass, and nothing but the one steps the only optimizer."""
    sides: dict[tuple[tuple[str, bool], ...], tuple[list[Event], list[Event]]] = {}
    for item in walk_tree(loop.body):
        if isinstance(item, If) and all(a.kind == "flag" and a.birth <= loop.birth for a in atoms(item.test)):
            negative = item.test[0] == "not"
            key = tuple(literals(item.test[1] if negative else item.test))
            then, other = sides.setdefault(key, ([], []))
            then += events(item.other if negative else item.then)
            other += events(item.then if negative else item.other)
    steps = {id(e) for e in [*loop.events, *loop.after] if e.kind == "step"}
    for one, two in (pair for found in sides.values() for pair in (found, found[::-1])):
        kinds = {e.kind for e in two}
        stepping = {id(e) for e in one if e.kind == "step"}
        if stepping and stepping == steps and any(e.kind == "backward" for e in one) and "backward" in kinds:
            if len(loop.optimizers()) == 1 and not kinds & {*USING, "opaque"}:
                last = [e for e in two if e.kind == "backward"][-1]
                yield last.path, last.node


def used(loop: TrainingLoop) -> bool:
    """Whether gradients of a loop go elsewhere than into a step."""
    text = loop.statement is not None and any(getattr(part, "attr", "") == "grad" for part in walk(loop.statement.node))
    return text or any(e.kind in USING for e in loop.events)


@text_rule("GL713")
def made_and_forgotten(module: Module) -> Iterator[ast.AST]:
    """An optimizer that nothing reads, of a network whose gradients are set to zero before a backward pass."""
    text, nodes = module.source.text, module.source.nodes
    if text.count("backward(") < 2:
        return
    for made in nodes.of(ast.Assign):
        target, network = made.targets[0], whole_network(made.value)
        tail = getattr(target, "attr", getattr(target, "id", ""))
        if not network or not tail or len(re.findall(rf"\b{tail}\b", text)) > 1:
            continue
        calls = sorted(nodes.of(ast.Call), key=lambda call: call.lineno)
        zero = next((c for c in calls if dotted(c.func) == f"{network}.zero_grad"), None)
        ahead = (c for c in calls if zero is not None and c.lineno > zero.lineno)
        yield from islice((c for c in ahead if getattr(c.func, "attr", "") == "backward"), 1)


def never_stepped(loop: TrainingLoop) -> Iterator[tuple[str, ast.AST]]:
    """Backward passes whose gradients an optimizer sets to zero, and that nothing else looks at."""
    trains = any(e.kind in ("clip", "schedule") for e in loop.events) or optimizer_left(loop)
    kinds = ("optimizer", "model", "ddp", "engine", "gradient") if trains else ("optimizer",)
    zeros = [e for e in loop.events if e.kind == "zero" and e.value is not None and e.value.kind in kinds]
    own = any(event.value is not None and event.value.kind == "optimizer" for event in zeros)
    others = {*USING} - ({"look"} if own else set())  # a norm of the gradients that is only logged
    if not zeros or any(e.kind in others for e in loop.events) or any(map(stepped_in_text, zeros)):
        return
    if uncertain(loop, "model", "ddp", "params", "gradients", unused=True):
        return
    by_hand = any(zero.by_hand for zero in zeros)  # `param.grad = None`
    if loop.statement is None or (not by_hand and used(loop)):
        return
    backward = next(e for e in loop.events if e.kind == "backward")
    if backward.value is not None and backward.value.kind == "tensor" and differentiable(backward):
        yield backward.path, backward.node


def optimizer_left(loop: TrainingLoop) -> bool:
    """Whether the file of a backward pass makes optimizers, and steps nothing."""
    zeros = [e.module for e in loop.events if e.kind == "zero" and e.module is not None]
    calls = [call for one in zeros[:1] for call in one.source.nodes.of(ast.Call)]
    names = [getattr(call.func, "attr", "") or called_name(call) for call in calls]
    return any(map(OPTIMIZER.match, names)) and not any("step" in name for name in names)


def stepped_in_text(zero: Event) -> bool:
    """Whether the file steps an optimizer of this name, wherever it does so."""
    if not (name := zeroed_name(zero)) or zero.module is None:
        return False
    *owner, tail = name.removeprefix("self.").split(".")
    tail = re.escape(".".join([*owner[-1:], tail]))
    used = rf"\b{tail}\b(\[[^\]]*\])?\.\w*step|step\w*\([^)]*\b{tail}\b"
    if owner:
        used += rf"|\bself\.{re.escape(name.split('.')[-1])}\.step"
    return re.search(used, SIGNATURE.sub("", zero.module.source.text)) is not None


def zeroed_name(zero: Event) -> str:
    func = getattr(zero.node, "func", None)
    return dotted(func.value) if isinstance(func, ast.Attribute) else ""


def never_used(zero: Event) -> bool:
    """Whether the text of the file neither steps an optimizer nor gives it to anything that is not followed."""
    if not (name := zeroed_name(zero)) or zero.module is None or zero.value is None:
        return False
    given = rf"[=(\[,:]\s*{re.escape(name)}\b(?![.\w]|\s*=)"
    each = rf"\bfor\b[^\n:]*\b{re.escape(name)}\b[^\n:]*\bin\b"  # of several, each of which may step by its own name
    known = zero.value.call is not None and not zero.value.shared
    text = SIGNATURE.sub("", zero.module.source.text)
    return not stepped_in_text(zero) and (known or re.search(f"{given}|{each}", text) is None)
