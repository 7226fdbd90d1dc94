"""Optimizers that are zeroed and never step, and weights that two optimizers step on."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import islice

from gradlab.audit.rules.namesakes import whole_network
from gradlab.audit.rules.ownership import is_part
from gradlab.audit.rules.reach import known, overlap, put_into_train
from gradlab.audit.rules.registry import Hit, loop_rule, scenario_rule, text_rule
from gradlab.audit.rules.reporting import uncertain
from gradlab.audit.source.project import Module
from gradlab.audit.source.syntax import dotted, walk
from gradlab.audit.trace.provenance import is_traced, sources
from gradlab.audit.trace.scenarios import Scenario
from gradlab.audit.trace.training_loop import TrainingLoop, anonymous, differentiable, same
from gradlab.audit.trace.values import Event, Value

SIGNATURE = re.compile(r"\bdef \w+\([^()]*\)")
"""What a function receives, where that shows no more than names."""


@loop_rule("GL713")
def step_missing(loop: TrainingLoop) -> Iterator[tuple[str, ast.AST]]:
    """An optimizer's gradients are zeroed, a backward pass follows, and another optimizer steps instead, or none."""
    if uncertain(loop, "optimizer", "self", "scaler", "accelerator", "groups"):
        return
    if not loop.optimizers():
        yield from never_stepped(loop)
        return
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
            own = next((one for one in ahead if reaches(one, optimizer)), ahead[0])
            yield own.path, own.node


def reaches(backward: Event, optimizer: Value) -> bool:
    """Whether a loss is known to come from a network of an optimizer."""
    passes = sources(backward.value) if backward.value is not None else []
    return any(e.value is not None and overlap(e.value, model) for e in passes for model in optimizer.trained)


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
    trains = any(e.kind in ("clip", "schedule") for e in loop.events)
    kinds = ("optimizer", "model", "ddp", "engine") if trains else ("optimizer",)
    zeros = [e for e in loop.events if e.kind == "zero" and e.value is not None and e.value.kind in kinds]
    used = any(e.kind in ("given", "taken", "look", "scale", "reduce") for e in loop.events)
    if not zeros or used or any(map(stepped_in_text, zeros)):
        return
    if uncertain(loop, "model", "ddp", "params", "gradients", unused=True):
        return
    if loop.statement is None or any(getattr(part, "attr", "") == "grad" for part in walk(loop.statement.node)):
        return
    backward = next(e for e in loop.events if e.kind == "backward")
    if backward.value is not None and backward.value.kind == "tensor" and differentiable(backward):
        yield backward.path, backward.node


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
    if (item := getattr(getattr(zero.node, "func", None), "value", None)) and isinstance(item, ast.Subscript):
        return item_never_used(zero, item)
    if not (name := zeroed_name(zero)) or zero.module is None or zero.value is None:
        return False
    given = rf"[=(\[,:]\s*{re.escape(name)}\b(?![.\w]|\s*=)"
    each = rf"\bfor\b[^\n:]*\b{re.escape(name)}\b[^\n:]*\bin\b"  # of several, each of which may step by its own name
    known = zero.value.call is not None and not zero.value.shared
    text = SIGNATURE.sub("", zero.module.source.text)
    return not stepped_in_text(zero) and (known or re.search(f"{given}|{each}", text) is None)


def item_never_used(zero: Event, item: ast.Subscript) -> bool:
    """The same of `optimizers["D"]`, where the text only makes the dictionary and uses its items by their names."""
    base, key = re.escape(dotted(item.value)), re.escape(ast.unparse(item.slice).strip("'\""))
    if not base or zero.module is None or zero.value is None or zero.value.call is None or zero.value.shared:
        return False
    own = rf"\b{base}\[['\"]{key}['\"]\](\.\w*step|(?!\.))"
    return re.search(rf"{own}|\b{base}\b(?!\[['\"]|\s*=)", zero.module.source.text) is None


@scenario_rule("GL702")
def weights_twice(scenario: Scenario) -> Iterator[Hit]:
    steps = [s for s in scenario.of("step") if whole(s.event.value)]
    for i, first in enumerate(steps):
        for second in steps[i + 1 :]:
            one, two = first.event.value, second.event.value
            if (
                first.k != second.k
                or one is None
                or two is None
                or same(one, two)
                or not shared(whole(one), whole(two))
            ):
                continue
            at = scenario.places
            between = scenario.steps[at[id(first)] + 1 : at[id(second)]]
            one_gradient = all(s.kind not in ("backward", "zero", "opaque", "given") for s in between)
            if one_gradient or (whole(one) == whole(two) and left_out(scenario)):
                made = [o.call for o in (one, two) if o is not None and o.path == second.event.path]
                yield Hit(second, (first,), max(made, key=line, default=None))


def fresh(model: Value) -> bool:
    """Whether a network is made here and nothing freezes it, or could load its weights."""
    root = model.root()
    return known((root,)) and bool(root.lineage) and not root.shared and not root.frozen


def line(node: ast.AST) -> int:
    return getattr(node, "lineno", 0)


def whole(optimizer: Value | None) -> frozenset[Value]:
    """The models of which an optimizer holds all parameters; of one of several optimizers, those that each holds."""
    if optimizer is not None and optimizer.choice:
        return frozenset.intersection(*(whole(one) for _, one in optimizer.choice))
    if optimizer is None or optimizer.kind != "optimizer" or optimizer.some or optimizer.call is None:
        return frozenset()
    return frozenset(model for model in optimizer.trained if model.kind in ("model", "ddp"))


def shared(some: frozenset[Value], others: frozenset[Value]) -> bool:
    """Whether a model of some is one of others, or in one of them, or the other way round."""
    pairs = ((one, other) for one in some for other in others)
    return any(one is other or is_part(one, other) or is_part(other, one) for one, other in pairs)


def learning(root: Value) -> bool:
    """Whether nothing freezes a network, or something may unfreeze it."""
    return not root.frozen or root.thawed


def left_out(scenario: Scenario) -> bool:
    """Whether a loss comes from a network that is to be trained, and none of the optimizers holds.

    It is made or put into train() here, or a loss goes backward that comes from nothing else.
    """
    loop = scenario.loop
    held = [model for optimizer in loop.optimizers() for model in optimizer.trained]
    if any(optimizer.some or not optimizer.trained for optimizer in loop.optimizers()):
        return False
    modes = {model.root() for model in put_into_train(loop)}
    for loss in (s.event.value for s in scenario.of("backward") if s.event.value is not None):
        models = [event.value for event in sources(loss) if event.value is not None]
        others = [model for model in models if not any(overlap(model, one) for one in held)]
        if any(model.root() in modes or fresh(model) for model in others):
            return True
        if others and others == models and is_traced(loss) and all(learning(model.root()) for model in models):
            return True
    return False
