"""Where in a tree of events the training loops are."""

from __future__ import annotations

from collections.abc import Sequence

from gradlab.audit.trace.event_tree import Block, If, Loop, Node, events, walk
from gradlab.audit.trace.training_loop import TrainingLoop, anonymous, differentiable, same, updates
from gradlab.audit.trace.values import Event, Value


def training_loops(items: list[Node], path: str, birth: int, whole: bool) -> list[TrainingLoop]:
    """The innermost loops with a backward pass and a step; with `whole`, also the function if they are in no loop."""
    found: list[TrainingLoop] = []
    search(items, [], [], [], path, found)
    covered = {id(event) for loop in found for event in loop.events}
    if whole and updates([event for event in events(items) if id(event) not in covered]):
        found.append(TrainingLoop(items, None, path, birth))
    return found


def stepless_loops(items: list[Node]) -> list[TrainingLoop]:
    """The innermost loops with a backward pass and zeroing of what no step in all that happens is of."""
    steps = [event.value for event in events(items) if event.kind == "step"]
    loops = [item for item in walk(items) if isinstance(item, Loop) and not item.once]
    found = []
    for one in loops:
        trained = [item for item in walk(one.body) if isinstance(item, Loop) and updates(events(item.body))]
        apart = {id(event) for loop in trained for event in events(loop.body)}
        inside = [event for event in events(one.body) if id(event) not in apart]
        zeroed = [event.value for event in inside if event.kind == "zero"]
        if (
            zeroed
            and any(e.kind == "backward" for e in inside)
            and not any(may_be(a, b) for a in zeroed for b in steps)
        ):
            found.append(one)
    inner = [one for one in found if not any(two is not one and two in walk(one.body) for two in found)]
    return [TrainingLoop(one.body, one, one.path, one.birth) for one in inner]


def may_be(zeroed: Value | None, stepped: Value | None) -> bool:
    """Whether what is zeroed may be the optimizer that steps, or of its weights."""
    optimizers = zeroed is not None and stepped is not None and zeroed.kind == stepped.kind == "optimizer"
    if zeroed is None or stepped is None or not optimizers or anonymous(zeroed) or anonymous(stepped):
        return True
    return same(zeroed, stepped)


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
