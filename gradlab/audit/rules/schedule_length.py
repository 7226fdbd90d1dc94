"""Schedules whose length counts other things than their steps."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from gradlab.audit.rules.registry import loop_rule
from gradlab.audit.rules.schedule import ENDING, LOADER, alternatives, of_one_epoch
from gradlab.audit.trace.event_tree import Block, If, Node, events
from gradlab.audit.trace.training_loop import TrainingLoop
from gradlab.audit.trace.values import Event, Value

BATCHES = re.compile(r"len\([\w.\[\]'\"]*(load|dl\b|data|batch|iter)", re.I)
"""The number of the batches of an epoch."""


@loop_rule("GL409")
def updates_in_epochs(loop: TrainingLoop) -> Iterator[tuple[str, ast.AST]]:
    """A schedule as long as all updates is stepped once in each iteration of the loop around that over batches."""
    if not loop.outer or loop.statement is None or any(e.kind == "schedule" for e in loop.events):
        return
    own = {id(e) for e in loop.events}
    if any(e.kind == "step" and id(e) not in own for e in events(loop.outer[-1].body)):
        return  # that loop is over batches too
    for event in each(loop.outer[-1].body):
        schedule = event.value
        if event.kind == "schedule" and schedule is not None and not event.arguments and not schedule.prepared:
            made = alternatives(schedule)
            if made and (
                all(map(of_all_updates, made)) or (over_epochs(loop) and all(of_one_epoch(one, ENDING) for one in made))
            ):
                yield event.path, event.node


def each(items: list[Node]) -> Iterator[Event]:
    """The events that are in no loop."""
    for item in items:
        if isinstance(item, Event):
            yield item
        elif isinstance(item, If):
            yield from each([*item.then, *item.other])
        elif isinstance(item, Block):
            yield from each(item.body)


def over_epochs(loop: TrainingLoop) -> bool:
    """Whether a loop over batches is in one that is not."""
    inner, outer = (getattr(one.node, "iter", None) for one in (loop.statement, loop.outer[-1]) if one is not None)
    return all(one is not None and bool(LOADER.search(ast.unparse(one))) == (one is inner) for one in (inner, outer))


def of_all_updates(schedule: Value) -> bool:
    """Whether a schedule's length is the number of batches of all epochs."""
    keywords = {k.arg for k in schedule.call.keywords} if schedule.call is not None else set()
    whole = schedule.lengths[-1] if schedule.lengths else ""
    product = "steps_per_epoch" in keywords or ("*" in whole and "epoch" in whole.lower())
    return product and BATCHES.search(" ".join(schedule.lengths)) is not None
