"""Where in a tree of events the training loops are."""

from __future__ import annotations

from gradlab.audit.trace.events import Block, Event, If, Loop, events
from gradlab.audit.trace.training_loop import Unit


def units(items: list, path: str, birth: int, whole: bool) -> list[Unit]:
    """The innermost loops that hold a backward pass and a step; `whole`: else the function itself."""
    found: list[Unit] = []
    search(items, [], [], [], path, found)
    covered = {id(event) for unit in found for event in unit.events}
    if whole and trains([event for event in events(items) if id(event) not in covered]):
        found.append(Unit(items, None, path, birth))
    return found


def trains(found: list[Event]) -> bool:
    kinds = {event.kind for event in found}
    return "backward" in kinds and "step" in kinds


def search(
    items: list, outer: list[Loop], before: list[Event], after: list[Event], path: str, found: list[Unit]
) -> None:
    own = [events([item]) for item in items]
    for i, item in enumerate(items):
        inside = own[i]
        if isinstance(item, Event) or not trains(inside):
            continue
        earlier = before + [e for one in own[:i] for e in one]
        later = [e for one in own[i + 1 :] for e in one] + after
        if isinstance(item, Loop) and not item.once:
            count = len(found)
            search(item.body, [*outer, item], earlier, later, path, found)
            covered = {id(e) for unit in found[count:] for e in unit.events}
            if trains([e for e in inside if id(e) not in covered]):
                found.append(Unit(item.body, item, item.path, item.birth, list(outer), earlier, later))
        elif isinstance(item, If):
            search(item.then, outer, earlier, later, path, found)
            search(item.other, outer, earlier, later, path, found)
        elif isinstance(item, Block):
            search(item.body, outer, earlier, later, path, found)
