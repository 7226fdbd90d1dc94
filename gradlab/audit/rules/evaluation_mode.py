"""Networks that an evaluation leaves in eval()."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

from gradlab.audit.rules.reach import NETWORKS, moved, overlap, put_into_train, related
from gradlab.audit.rules.registry import loop_rule
from gradlab.audit.source.syntax import walk as walk_text
from gradlab.audit.trace.conditions import TRUE, Formula, atoms, joined, may_both_hold, negation
from gradlab.audit.trace.event_tree import Block, If, Jump, Loop, Node, events, walk
from gradlab.audit.trace.training_loop import TrainingLoop, differentiable
from gradlab.audit.trace.values import Event, Value

TRAINS = re.compile(r"train|mode|fit|run|epoch|loop|main|step|^[a-z_]{1,3}$", re.I)
"""Names of calls that may put the model that they receive into train()."""


@loop_rule("GL707")
def left_in_eval(loop: TrainingLoop) -> Iterator[tuple[str, ast.AST]]:
    """A model is put into eval() to be evaluated, and nothing takes it back before the next batches."""
    yield from evaluated_inside(loop)
    if not loop.outer:
        return
    own, inside = {id(e) for e in loop.events}, events(loop.outer[-1].body)
    at = max((i for i, e in enumerate(inside) if id(e) in own), default=len(inside))
    if any(may_set_mode(e) for e in inside):
        return
    modes = [e for e in inside if e.kind == "mode"]
    for i, event in enumerate(inside):
        if event.kind != "mode" or event.name != "eval" or event.value is None or id(event) in own:
            continue
        model = event.value
        if taken_back(model, modes) or not passed(loop, model) or any(e.name == "eval" and id(e) in own for e in modes):
            continue
        if in_another_phase(loop, event):
            yield event.path, event.node
            return
        if intended(model, inside, own):
            return
        if i > at or evaluated(model, inside[i + 1 :], own, set()):
            backward = next(e for e in loop.events if e.kind == "backward")
            yield place(loop, event if event.frames == backward.frames else backward, model)
            return


def in_another_phase(loop: TrainingLoop, mode: Event) -> bool:
    """Whether the iterations of the loop around that set a mode are not those that train: `for phase in phases`."""
    around = loop.outer[-1]
    backward = next(e for e in loop.events if e.kind == "backward")
    one, two = (joined("and", guards(around.body, event) or []) for event in (mode, backward))
    changing = any(atom.birth > around.birth for atom in atoms(one))
    return changing and not may_both_hold(one, two)


def guards(items: Sequence[Node], event: Event) -> list[Formula] | None:
    """The tests under which an event happens."""
    for item in items:
        if item is event:
            return []
        sides = [(TRUE, item.body)] if isinstance(item, (Loop, Block)) else []
        if isinstance(item, If):
            sides = [(item.test, item.then), (negation(item.test), item.other)]
        for test, side in sides:
            if (found := guards(side, event)) is not None:
                return [test, *found]
    return None


def place(loop: TrainingLoop, event: Event, model: Value) -> tuple[str, ast.AST]:
    """An eval(); or, of a backward pass, the loop in which the network is called: there train() belongs."""
    passes = (e for e in loop.events if e.kind == "forward" and e.value is not None and differentiable(e))
    beside = (e for e in passes if event.kind == "backward" and e.frames == event.frames[: len(e.frames)])
    called = (e for e in beside if overlap(e.value, model))  # type: ignore[arg-type]
    at = next(called, event)
    around = loop.statement
    if event.kind != "backward" or around is None or all(part is not at.node for part in walk_text(around.node)):
        return at.path, at.node
    return around.path, around.node


def may_set_mode(event: Event) -> bool:
    """Whether a call that could not be followed may put a model into train(): by its name, if it receives no more."""
    if event.kind != "opaque" or not event.receives & {*NETWORKS, "self", "framework"}:
        return False
    return not event.receives <= {*NETWORKS, "tensor"} or TRAINS.search(event.name) is not None


def intended(model: Value, inside: list[Event], own: set[int]) -> bool:
    """Whether the batches of a loop begin in eval(), which nothing is evaluated in: what is under a head is frozen."""
    first = next((i for i, event in enumerate(inside) if id(event) in own), len(inside))
    modes = [i for i, e in enumerate(inside[:first]) if e.kind == "mode" and e.value and related(e.value, model)]
    return bool(modes) and not evaluated(model, inside[modes[-1] + 1 :], own, set())


def evaluated_inside(loop: TrainingLoop) -> Iterator[tuple[str, ast.AST]]:
    """An evaluation between the batches of a loop, in a function of its own or from time to time."""
    backward = next((e for e in loop.events if e.kind == "backward"), None)
    if backward is None or loop.statement is None:
        return
    loop.unresolved += (found := [e for e in loop.events if may_set_mode(e)])
    if found:
        return
    modes = [e for e in loop.events if e.kind == "mode"]
    conditional, apart = from_time_to_time(loop), other_data(loop)
    for event in modes:
        model = event.value
        if event.name != "eval" or model is None or taken_back(model, modes):
            continue
        if not passed(loop, model):
            continue
        if model.root().birth > loop.birth:
            continue  # a copy that is made anew
        later, here = loop.events[loop.events.index(event) + 1 :], event.frames == backward.frames
        goes_on, periodic = conditional.get(id(event), (not here, False))
        if here and id(event) not in conditional and loop.events.index(event) > loop.events.index(backward):
            if any(overlap(one, model) for one in put_into_train(loop)):
                yield event.path, event.node  # at the end of the first iteration
                return
        if here and id(event) not in conditional and (trained := pass_behind(loop, event, later)) is not None:
            yield trained.path, trained.node
            return
        if goes_on and (periodic or evaluated(model, later, {id(backward)}, apart if here else set())):
            again = [e for e in modes if e.name == "eval" and e.value is not None and overlap(e.value, model)]
            yield place(loop, event if here and len(again) == 1 else backward, model)
            return


def pass_behind(loop: TrainingLoop, mode: Event, later: list[Event]) -> Event | None:
    """The pass that trains a network, behind an eval() for a pass without gradients in the same iteration."""
    passes = [e for e in later if e.kind == "forward" and e.value and mode.value and overlap(e.value, mode.value)]
    meant = not differentiable(mode) or any(mode.value and overlap(one, mode.value) for one in put_into_train(loop))
    if not meant or not passes or differentiable(passes[0]):
        return None
    return next((e for e in passes if differentiable(e)), None)


def taken_back(model: Value, modes: list[Event]) -> bool:
    return any(e.name != "eval" and (e.value is None or related(e.value, model)) for e in modes)


def from_time_to_time(loop: TrainingLoop) -> dict[int, tuple[bool, bool]]:
    """Of events under conditions that change from iteration to iteration, by id.

    Whether the loop goes on behind them, and whether they happen again and again.
    """
    found: dict[int, tuple[bool, bool]] = {}
    for item in walk(loop.body):
        if isinstance(item, If) and any(a.birth > loop.birth for a in atoms(item.test)):
            periodic = any(a.kind == "period" for a in atoms(item.test))
            for side in (item.then, item.other):
                goes_on = not any(isinstance(part, Jump) and part.kind in ("break", "return") for part in side)
                for event in events(side):
                    known = found.get(id(event), (True, False))
                    found[id(event)] = (goes_on and known[0], periodic or known[1])
    return found


def other_data(loop: TrainingLoop) -> set[int]:
    """Ids of the events in loops inside a training loop that have no backward pass."""
    inner = [events(item.body) for item in walk(loop.body) if isinstance(item, Loop)]
    return {id(e) for one in inner if all(e.kind != "backward" for e in one) for e in one}


def evaluated(model: Value, after: list[Event], own: set[int], apart: set[int]) -> bool:
    """Whether a model is called in no_grad(), or in one of the events `apart`, before the loop begins."""
    first = next((i for i, event in enumerate(after) if id(event) in own), len(after))
    passes = [e for e in after[:first] if e.kind == "forward" and (id(e) in apart or not differentiable(e))]
    return any(event.value is not None and overlap(event.value, model) for event in passes)


def passed(loop: TrainingLoop, model: Value) -> bool:
    """Whether a loss of the loop comes from a forward pass of this model, or one of unknown making trains it."""
    return leads_to_loss(loop, model) and not under_another(loop, model)


def under_another(loop: TrainingLoop, model: Value) -> bool:
    """Whether another network is called behind a model that nothing is seen to train: frozen features, perhaps."""
    passes = [e for e in loop.events if e.kind == "forward" and e.value is not None and differentiable(e)]
    own = [i for i, e in enumerate(passes) if e.value.root() is model.root()]  # type: ignore[union-attr]
    if not own or len(own) == len(passes) or own[-1] == len(passes) - 1:
        return False
    return not any(overlap(one, model) for one in [*moved(loop), *put_into_train(loop)])


def leads_to_loss(loop: TrainingLoop, model: Value) -> bool:
    losses = [e.value for e in loop.events if e.kind == "backward" and e.value is not None and e.value.kind == "tensor"]
    found = [e for loss in losses for e in (loss.forward, *loss.chain) if e is not None]
    if any(not loss.chain for loss in losses):
        found += [event for event in loop.events if event.kind == "forward"]
        if any(one.root() is model.root() for one in moved(loop)):
            return True
    return any(e.value is not None and differentiable(e) and e.value.root() is model.root() for e in found)
