"""Where in a tree of events the training loops are."""

from __future__ import annotations

from collections.abc import Sequence

from gradlab.audit.trace.event_tree import Block, If, Loop, Node, events, walk
from gradlab.audit.trace.training_loop import TrainingLoop, differentiable, updates
from gradlab.audit.trace.values import Event


def training_loops(items: list[Node], path: str, birth: int, whole: bool) -> list[TrainingLoop]:
    """The innermost loops with a backward pass and a step; with `whole`, also the function if they are in no loop."""
    found: list[TrainingLoop] = []
    search(items, [], [], [], path, found)
    covered = {id(event) for loop in found for event in loop.events}
    if whole and updates([event for event in events(items) if id(event) not in covered]):
        found.append(TrainingLoop(items, None, path, birth))
    return found


def stepless_loops(items: list[Node]) -> list[TrainingLoop]:
    """The innermost loops with a backward pass and zeroing, where there is no step in any of all that happens."""
    kinds = {event.kind for event in events(items)}
    loops = [item for item in walk(items) if isinstance(item, Loop) and not item.once]
    if "step" in kinds or not {"backward", "zero"} <= kinds:
        return []
    found = [one for one in loops if {"backward", "zero"} <= {event.kind for event in events(one.body)}]
    inner = [one for one in found if not any(two is not one and two in walk(one.body) for two in found)]
    return [TrainingLoop(one.body, one, one.path, one.birth) for one in inner]


def search(
    items: Sequence[Node],
    outer: list[Loop],
    before: list[Event],
    after: list[Event],
    path: str,
    found: list[TrainingLoop],
) -> None:
    own = [events([item]) for item in items]
    for i, item in enumerate(items):
        inside = own[i]
        if isinstance(item, Event) or not updates(inside):
            continue
        earlier = before + [e for one in own[:i] for e in one]
        later = [e for one in own[i + 1 :] for e in one] + after
        if isinstance(item, Loop) and not item.once:
            count = len(found)
            search(item.body, [*outer, item], earlier, later, path, found)
            covered = {id(e) for loop in found[count:] for e in loop.events}
            if updates([e for e in inside if id(e) not in covered]):
                found.append(TrainingLoop(item.body, item, item.path, item.birth, list(outer), earlier, later))
        elif isinstance(item, If):
            search(item.then, outer, earlier, later, path, found)
            search(item.other, outer, earlier, later, path, found)
        elif isinstance(item, Block):
            search(item.body, outer, earlier, later, path, found)


def with_graph(loops: list[TrainingLoop]) -> list[TrainingLoop]:
    """Without those that only evaluate: each of their backward passes is in no_grad, and elsewhere it is not."""
    passes = {loop: [e for e in loop.events if e.kind == "backward"] for loop in loops}
    training = {id(e.node) for own in passes.values() for e in own if differentiable(e)}
    return [loop for loop, own in passes.items() if any(differentiable(e) or id(e.node) not in training for e in own)]
