"""Schedules whose length counts other things than their steps."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from gradlab.audit.knowledge.schedule_lengths import EPOCHS, PER_BATCH
from gradlab.audit.rules.first_rates import alternatives, made_at
from gradlab.audit.rules.registry import Hit, loop_rule, scenario_rule
from gradlab.audit.source.syntax import called_name, walk
from gradlab.audit.trace.conditions import TRUE, Formula, exclude, joined, negation
from gradlab.audit.trace.event_tree import Block, If, Loop, Node, events
from gradlab.audit.trace.scenarios import Scenario
from gradlab.audit.trace.training_loop import TrainingLoop
from gradlab.audit.trace.values import Event, Value

BATCHES = re.compile(r"len\([\w.\[\]'\"]*(load|dl\b|data|batch|iter)", re.I)
"""The number of the batches of an epoch."""
ENDING = re.compile(r"(CosineAnnealing|Linear|Polynomial)LR$")
"""Schedules that are over after their length."""
FALLING = re.compile(r"get_(linear|cosine|polynomial\w*)_schedule_with_warmup$|get_scheduler$|PolynomialLR$")
"""Of these, the ones that no cycle or warm-up of an epoch is made of."""
OVER = re.compile(f"{ENDING.pattern}|{FALLING.pattern}|OneCycleLR$")
"""All that are over after their length."""
COUNT = re.compile(r"((n|num|nb|max|total|train|training)_?)*epochs?|epochs_?num", re.I)
"""Names of the number of all epochs."""
SHARES = re.compile(r"accum|world_size|(num|n)_(processes|devices|gpus)", re.I)
"""Names of numbers that the batches of an epoch are divided by, and never counted with."""
LOADER = re.compile(r"load|_dl\b")
"""Names of what batches come from."""


@scenario_rule("GL405")
def epochs_in_batches(scenario: Scenario) -> Iterator[Hit]:
    """A schedule as long as the loop over epochs, or as one epoch, is stepped in each iteration of one over batches."""
    loop = scenario.loop
    if loop.statement is None or not loop.outer or not isinstance(loop.outer[-1].node, ast.For):
        return
    windows = {a.key for a in loop.atoms if loop.timed(a) or a in loop.boundary}
    counting = counts_epochs(loop.outer[-1]) and not counts_epochs(loop.statement)
    for step in scenario.of("schedule"):
        schedule = step.event.value
        of_batch = {guard for s in scenario.of("backward") if s.k == step.k for guard in s.guards}
        own = (scenario.own_guards(step) & loop.varying(step)) - of_batch
        seldom = {key for guard in own for key in guard[0].split(" | ")}
        now_and_then = seldom - windows if loop.boundary and not whole_epoch(loop, step.event) else seldom
        if schedule is None or step.event.arguments or now_and_then:
            continue
        before = schedule.birth < loop.outer[-1].birth
        for one in alternatives(schedule):  # whichever the configuration chooses
            if (counting and of_all_epochs(one)) or (before and of_one_epoch(one)):
                yield Hit(step, (), made_at(one, step))


def whole_epoch(loop: TrainingLoop, event: Event) -> bool:
    """Whether a window is as long as an epoch, perhaps."""
    if any(atom.kind == "sync" for atom in loop.boundary):
        return False  # an accelerator counts
    name = re.escape(last_name(loop.period))
    text = event.module.source.text if event.module is not None else ""
    return "len" in name or not name or re.search(rf"\b{name}\b\s*=(?!=)[^\n]*\blen\(", text) is not None


def counts_epochs(loop: Loop) -> bool:
    """Whether a loop is over numbers of epochs."""
    if not isinstance(loop.node, ast.For):
        return False
    counts = [n for n in walk(loop.node.iter) if isinstance(n, ast.Call) and called_name(n) in ("range", "trange")]
    ends = [last_name(ast.unparse(end)) for count in counts for end in last_numbers(count)]
    ends += [last_name(loop.over.stop)] if loop.over is not None and loop.over.stop else []
    return "epoch" in ast.unparse(loop.node.target).lower() or any(EPOCHS.search(name) for name in ends)


def of_all_epochs(schedule: Value) -> bool:
    """Whether a schedule is over after as many steps as there are epochs."""
    chains = [text.split(" <- ") for text in schedule.lengths]
    named = [chain for chain in chains if all(last_name(name).isidentifier() for name in chain[:-1])]
    return OVER.search(schedule.maker) is not None and any(counts_no_batches(chain[-1]) for chain in named)


def counts_no_batches(length: str) -> bool:
    """Whether a length is the number of epochs, or that times the processes or the micro-batches of a window."""
    node = ast.parse(length, mode="eval").body
    factors = [last_name(ast.unparse(one)) for one in factors_of(node)]
    epochs = [name for name in factors if COUNT.fullmatch(name)]
    shares = [name for name in factors if name.isidentifier() and SHARES.search(name)]
    return len(epochs) == 1 and len(epochs) + len(shares) == len(factors)


def factors_of(node: ast.expr) -> list[ast.expr]:
    """The factors of a product."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        return [*factors_of(node.left), *factors_of(node.right)]
    return [node]


def last_name(text: str) -> str:
    """`epochs` of `self.args.epochs`, `config["epochs"]` and `int(epochs)`: one name, wherever a number is kept."""
    text = re.sub(r"#\d+", "", re.sub(r"^(?:int|float)\((.*)\)$", r"\1", text))
    return re.sub(r"^[\w.]+\[['\"](\w+)['\"]\]$|^(?:\w+\.)+(\w+)$", r"\1\2", text)


def last_numbers(count: ast.Call) -> list[ast.expr]:
    """The arguments of a range(); n of range(1, n + 1)."""
    return [
        arg.left
        if isinstance(arg, ast.BinOp) and isinstance(arg.op, ast.Add) and ast.unparse(arg.right) == "1"
        else arg
        for arg in count.args
    ]


def of_one_epoch(schedule: Value, makers: re.Pattern[str] = FALLING) -> bool:
    """Whether a schedule that one of these makes, which falls to its end, is as long as a loader."""
    length = re.match(r"([\w.]+ <- )*len\(([\w.]+)\)( <- |$)", schedule.lengths[-1]) if schedule.lengths else None
    return length is not None and bool(makers.search(schedule.maker) and LOADER.search(length[2]))


@loop_rule("GL409")
def updates_in_epochs(loop: TrainingLoop) -> Iterator[tuple[str, ast.AST]]:
    """A schedule as long as all updates is stepped once in each iteration of the loop around that over batches."""
    if not loop.outer or loop.statement is None or any(e.kind == "schedule" for e in loop.events):
        return
    own = {id(e) for e in loop.events}
    if any(e.kind == "step" and id(e) not in own for e in events(loop.outer[-1].body)):
        return  # that loop is over batches too
    ends = counted_to(loop)
    for event, when in each(loop.outer[-1].body, TRUE):
        schedule = event.value
        if event.kind == "schedule" and schedule is not None and not event.arguments:
            made = [
                one
                for test, v in schedule.choice or ((TRUE, schedule),)
                if not exclude(test, when)
                for one in alternatives(v)
            ]
            if any(of_all_updates(one) or as_long(one, ends) for one in made) or (
                made and over_epochs(loop) and all(of_one_epoch(one, ENDING) for one in made)
            ):
                yield event.path, event.node


def each(items: list[Node], when: Formula) -> Iterator[tuple[Event, Formula]]:
    """The events that are in no loop, each with its condition."""
    for item in items:
        if isinstance(item, Event):
            yield item, when
        elif isinstance(item, If):
            yield from each(item.then, joined("and", [when, item.test]))
            yield from each(item.other, joined("and", [when, negation(item.test)]))
        elif isinstance(item, Block):
            yield from each(item.body, when)


def over_epochs(loop: TrainingLoop) -> bool:
    """Whether a loop over batches is in one that is not."""
    inner, outer = (getattr(one.node, "iter", None) for one in (loop.statement, loop.outer[-1]) if one is not None)
    return all(one is not None and bool(LOADER.search(ast.unparse(one))) == (one is inner) for one in (inner, outer))


def counted_to(loop: TrainingLoop) -> set[str]:
    """What ends the training when it is reached by a name that each iteration over batches counts up."""
    inner = loop.statement.node if loop.statement is not None else None
    added = [n for n in walk(inner) if isinstance(n, ast.AugAssign) and isinstance(n.op, ast.Add)] if inner else []
    counted = {ast.unparse(n.target) for n in added if ast.unparse(n.value) == "1"}
    tests = [outer.node.test for outer in loop.outer if isinstance(outer.node, ast.While)]
    ends = (n for n in walk(inner) if isinstance(n, ast.If)) if inner else ()
    tests += [n.test for n in ends if isinstance(n.body[-1], (ast.Break, ast.Return))]
    compared = [n for n in tests if isinstance(n, ast.Compare) and ast.unparse(n.left) in counted]
    return {ast.unparse(n.comparators[0]) for n in compared}


def as_long(schedule: Value, ends: set[str]) -> bool:
    """Whether a schedule is over after one of these numbers, or a sum or product with it, of steps."""
    whole = schedule.lengths[-1] if schedule.lengths else ""
    named = {ast.unparse(n) for text in whole.split(" <- ") for n in walk(ast.parse(text)) if isinstance(n, ast.expr)}
    return bool(OVER.search(schedule.maker)) and bool(ends & named) and "/" not in whole


def of_all_updates(schedule: Value) -> bool:
    """Whether a schedule's length is the number of batches of all epochs, or of samples by the size of a batch."""
    keywords = {k.arg for k in schedule.call.keywords} if schedule.call is not None else set()
    whole = schedule.lengths[-1] if schedule.lengths else ""
    if schedule.maker.endswith("OneCycleLR") and {"epochs", "steps_per_epoch"} <= keywords:
        return True
    counted = BATCHES.search(" ".join(schedule.lengths)) or PER_BATCH.search(whole)
    return "*" in whole and "epoch" in whole.lower() and counted is not None
