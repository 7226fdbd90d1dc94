"""Schedules count updates."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

from gradlab.audit.knowledge.schedule_lengths import PER_BATCH
from gradlab.audit.rules.first_rates import alternatives, counts_after, made_at
from gradlab.audit.rules.registry import Hit, loop_rule, scenario_rule
from gradlab.audit.source.project import Module
from gradlab.audit.source.syntax import called_name, walk
from gradlab.audit.trace.conditions import atoms, holds
from gradlab.audit.trace.event_tree import Block, If, Loop, Node, events
from gradlab.audit.trace.event_tree import walk as walk_events
from gradlab.audit.trace.iterables import members
from gradlab.audit.trace.replay import Occurrence
from gradlab.audit.trace.scenarios import Scenario
from gradlab.audit.trace.training_loop import TrainingLoop
from gradlab.audit.trace.values import Event, Value

COUNTED = re.compile(r"len\(")
ALL_RANKS = re.compile(r"(global|total|effective|full|real)_\w*(batch|bs)", re.I)
"""Sizes of the batch of an update."""
SHORTER_WINDOW = re.compile(r"accum|update|micro", re.I)
"""Names of the length of a window."""
SIZE_DIVIDED = re.compile(r"(?<![\w.])(?<!/ )[\w.]*(batch_?size|bsz?)[)\]'\"]* //? [\w.]+", re.I)
"""The size of a micro-batch, as a part of that of an update."""
SHORTER = re.compile(r"//|/|accum|ceil", re.I)


def in_batches(schedule: Value) -> bool:
    """Whether a schedule's length is counted in micro-batches; the warm-up's comes before that of the whole."""
    counted = [text for text in schedule.lengths if COUNTED.search(text)]
    return bool(counted) and not SHORTER.search(counted[-1]) and "update" not in counted[-1].split(" <- ")[-1].lower()


def per_batch(schedule: Value, loop: TrainingLoop, module: Module | None) -> bool:
    """Whether a schedule's length is that of all epochs in samples, divided by the size of a batch and by no window.

    What a name comes from may divide by the window only where that is the size of a batch.
    """
    pairs = zip(schedule.lengths[-1:], schedule.named_lengths[-1:])
    pieces = [pair for text, named in pairs for pair in zip(text.split(" <- "), named.split(" <- "))]
    whole = " ".join(text for text, _ in pieces)
    if not (PER_BATCH.search(whole) and "epoch" in whole.lower()) or ALL_RANKS.search(whole) or not loop.period:
        return False
    divided = [text for text, named in pieces if loop.period in named or SHORTER_WINDOW.search(text)]
    return all(SIZE_DIVIDED.search(piece) for piece in divided) and (
        bool(divided) or not of_update(module, loop.period)
    )


def of_update(module: Module | None, period: str) -> bool:
    """Whether a file divides the size of a batch by the length of a window, or to find it: an update has that size."""
    if module is None:
        return False
    nodes, window = module.source.nodes, {name.split(".")[-1] for name in re.findall(r"([\w.]+)#", period)}
    whole = [ast.unparse(n) for kind in (ast.Assign, ast.AnnAssign, ast.keyword) for n in nodes.of(kind)]
    divided = [one for one in whole if SIZE_DIVIDED.search(one)]
    divided += [found[0] for found in SIZE_DIVIDED.finditer(module.source.text)]  # wherever that is
    return any(SHORTER_WINDOW.search(one) or window & {*re.findall(r"\w+", one)} for one in divided)


def in_micro_batches(schedule: Value, loop: TrainingLoop, step: Event) -> bool:
    """Whether the length of a schedule that is stepped here counts micro-batches."""
    return in_batches(schedule) or as_long(schedule, loop) or per_batch(schedule, loop, step.module)


def said_to_count(schedule: Value) -> bool:
    """Whether the name of a schedule's length says that it counts micro-batches."""
    return any("micro" in text for text in schedule.lengths)


def as_long(schedule: Value, loop: TrainingLoop) -> bool:
    """Whether a schedule's length is the number of the loop's iterations."""
    if loop.nested or loop.statement is None:
        return False
    over = loop.statement.node.iter if isinstance(loop.statement.node, ast.For) else None
    ends = bounds(loop.statement.node)
    if isinstance(over, ast.Call) and called_name(over) in ("range", "trange"):
        ends |= {ast.unparse(end) for end in over.args[:2]}
    return any(text.split(" <- ")[0] in ends for text in schedule.lengths)


def bounds(loop: ast.AST) -> set[str]:
    """What ends a loop when it is reached by a name that each of its iterations counts up."""
    body: list[ast.stmt] = getattr(loop, "body", [])
    counted = {ast.unparse(n.target) for n in body if isinstance(n, ast.AugAssign) and isinstance(n.op, ast.Add)}
    found = set()
    for test in (n.test for n in body if isinstance(n, ast.If) and isinstance(n.body[-1], ast.Break)):
        if isinstance(test, ast.Compare) and isinstance(test.ops[0], (ast.GtE, ast.Eq)):
            found |= {ast.unparse(test.comparators[0])} if ast.unparse(test.left) in counted else set()
    return found


@scenario_rule("GL401", windows=True)
def every_micro_batch(scenario: Scenario) -> Iterator[Hit]:
    for step in scenario.of("schedule"):
        schedule = step.event.value
        if (
            schedule is None
            or step.event.arguments
            or (schedule.prepared is not None and counts_windows(scenario.loop))
        ):
            continue
        if any(map(said_to_count, alternatives(schedule))):
            continue
        if any(in_micro_batches(one, scenario.loop, step.event) for one in alternatives(schedule)):
            continue
        stretched = any(re.search(r"\* *[\w.]*accum", text) for text in schedule.lengths)
        if scenario.partial(step) and not (stretched and step.inside("accumulate")):
            yield Hit(step)


def counts_windows(loop: TrainingLoop) -> bool:
    """Whether an accelerator knows which micro-batches end a window: a schedule that it prepared counts only these."""
    return any(region.kind in ("accumulate", "no_sync", "unknown") for event in loop.events for region in event.regions)


@scenario_rule("GL402")
def before_step(scenario: Scenario) -> Iterator[Hit]:
    loop = scenario.loop
    flags = {a.key for a in loop.atoms if a.kind == "flag" and a.birth > loop.birth and "is not None" not in a.key}
    for step in scenario.of("schedule"):
        if not counts_after(loop, step.event) or once_a_micro_batch(scenario, step) or apart(loop, step.event):
            continue
        backwards = [s for s in scenario.of("backward") if s.k == step.k]
        automatic = any(is_automatic(s.event) for s in backwards)
        steps = [s for s in scenario.of("step") if s.k == step.k]
        steps = [s for s in steps if automatic or sets_rate(step.event.value, s.event.value)]
        at = scenario.steps.index(step)
        earlier = [s for s in steps if scenario.steps.index(s) < at]
        later = [s for s in steps if scenario.steps.index(s) > at]
        if earlier or not later:
            continue
        if any(key in guard for guard, _ in step.guards - later[0].guards for key in flags):
            continue  # not in the first iteration, perhaps
        if loop.statement is not None or automatic or any(scenario.steps.index(s) < at for s in backwards):
            yield Hit(step, (later[0],))


def apart(loop: TrainingLoop, event: Event) -> bool:
    """Whether an event is in a loop of its own inside a training loop, which may have no iteration before the step."""
    inner = [events(item.body) for item in walk_events(loop.body) if isinstance(item, Loop) and not item.once]
    return any(event in one and all(e.kind not in ("backward", "step") for e in one) for one in inner)


def is_automatic(backward: Event) -> bool:
    """Whether Lightning calls it, and the optimizer's step, after a method that it calls once a batch."""
    return backward.through is not None and backward.through.kind == "lightning"


def once_a_micro_batch(scenario: Scenario, step: Occurrence) -> bool:
    """Another mistake: GL401."""
    inside = id(step.event) in scenario.loop.in_window and scenario.partial(step)
    return inside or any(s.event is step.event and not scenario.ends(s.k) for s in scenario.of("schedule"))


def sets_rate(schedule: Value | None, optimizer: Value | None) -> bool:
    """Whether a schedule sets the rate of an optimizer, or of one of several that it may be."""
    if schedule is None or optimizer is None:
        return True
    made = [one.optimizer for one in members(schedule)]
    own = {id(v) for one in made if one is not None for v in (one, *members(one))}
    return not own or any(id(v) in own for v in (optimizer, *members(optimizer)))


@scenario_rule("GL403")
def length_in_micro_batches(scenario: Scenario) -> Iterator[Hit]:
    steps = scenario.of("schedule")
    if not scenario.loop.boundary or not all(scenario.ends(s.k) for s in steps):
        return
    for step in steps:
        schedule = step.event.value
        if (
            schedule is None
            or step.event.arguments
            or not all(in_micro_batches(one, scenario.loop, step.event) for one in alternatives(schedule))
        ):
            continue
        yield Hit(step, (), made_at(schedule, step))


@loop_rule("GL404")
def before_epoch(loop: TrainingLoop) -> Iterator[tuple[str, ast.AST]]:
    for event in heading(loop):
        if event.kind == "schedule" and counts_after(loop, event):
            yield event.path, event.node


def heading(loop: TrainingLoop) -> Iterator[Event]:
    """What happens in an epoch before its loop over batches, and before any step."""
    if loop.statement is None:
        return
    if not loop.outer:
        yield from head_of_function(loop)
        return
    for outer, inner in zip(reversed(loop.outer), (loop.statement, *reversed(loop.outer))):
        for item in leading(outer.body, inner):
            if isinstance(item, Loop) or any(e.kind == "step" for e in events([item])):
                return
            found = first_iteration(item, outer.birth)
            yield from (
                e for e in found if e.value is not None and (e.value.birth < outer.birth or inner is loop.statement)
            )


def head_of_function(loop: TrainingLoop) -> Iterator[Event]:
    """Statements of a function that goes over the batches once, about what it received and does not use again."""
    again = [e.value for e in [*loop.events, *loop.after]]
    for event in loop.before:
        entry, value = event.frames[0].call if event.frames else None, event.value
        if event.kind == "step":
            return
        if not isinstance(entry, ast.FunctionDef) or value is None or value in again:
            continue
        received = value.given or (value.call is not None and all(value.call is not part for part in walk(entry)))
        if received and any(isinstance(one, ast.Expr) and one.value is event.node for one in entry.body):
            yield event


def first_iteration(item: Node, birth: int) -> list[Event]:
    """What happens in the first iteration of a loop that began then: under `if epoch >= 5` nothing does."""
    late: set[int] = set()
    for test in walk_events([item]):
        if isinstance(test, If) and (varying := [a for a in atoms(test.test) if a.birth > birth]):
            known = all(a.at is not None for a in varying)
            now = known and holds(test.test, lambda a: a.at is None or bool(a.at(0)))
            late |= {id(e) for e in events(test.other if now else [test] if not known else test.then)}
    return [event for event in events([item]) if id(event) not in late]


def leading(items: Sequence[Node], loop: Loop) -> Iterator[Node]:
    """What comes before a loop, in the calls that it is in too."""
    for item in items:
        if item is loop:
            return
        if loop in walk_events([item]):
            sides = [item.body] if isinstance(item, Block) else [item.then, item.other] if isinstance(item, If) else []
            yield from leading(next((side for side in sides if loop in walk_events(side)), []), loop)
            return
        yield item
