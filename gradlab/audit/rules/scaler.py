"""The loss scale: unscale once, before clipping; step and update through the scaler."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from gradlab.audit.rules.ownership import concerns
from gradlab.audit.rules.registry import Hit, scenario_rule
from gradlab.audit.rules.reporting import may_hold, uncertain
from gradlab.audit.source.syntax import walk as walk_text
from gradlab.audit.trace.conditions import FALSE, Formula, atoms, joined, negation
from gradlab.audit.trace.event_tree import If, Jump, walk
from gradlab.audit.trace.replay import Occurrence
from gradlab.audit.trace.scenarios import Scenario
from gradlab.audit.trace.training_loop import TrainingLoop
from gradlab.audit.trace.values import Value

PRECISION = re.compile(r"(?<![a-z])amp(?![a-z])|[bf]p?16|half|scal|precis|mixed|apex|deepspeed|fsdp", re.I)
"""Words in conditions on how numbers are computed."""
SCALER_THERE = re.compile(r"scaler#\d+ is not None$", re.I)


def scaler_of(step: Occurrence) -> Value | None:
    """The scaler that scaled the loss of a backward pass."""
    found = step.event.value.scaled if step.event.value is not None else None
    return found if found is not None and found.enabled != FALSE else None


def scales_itself(step: Occurrence) -> bool:
    """A backward pass of Accelerate or Fabric in fp16, which scales the loss with a scaler of its own."""
    return step.event.through is not None and step.event.through.fp16


def in_apex_block(clip: Occurrence, backward: Occurrence) -> bool:
    """Both inside one `with amp.scale_loss`, which unscales at its end."""
    region = clip.inside("scale_loss")
    return region is not None and backward.inside("scale_loss") is region


def since_step(scenario: Scenario, step: Occurrence, optimizer: Value | None = None) -> list[Occurrence]:
    """What happened before, back to the last step of this optimizer or of any, the latest first."""
    found: list[Occurrence] = []
    for other in reversed(scenario.before(step)):
        if other.kind == "step" and (optimizer is None or other.event.value is optimizer):
            break
        found.append(other)
    return found


@scenario_rule("GL201")
def clip_before_unscale(scenario: Scenario) -> Iterator[Hit]:
    loop = scenario.loop
    for clip in scenario.of("clip"):
        earlier = since_step(scenario, clip)
        if clip.event.through is not None or any(s.kind == "scale" for s in earlier):
            continue
        mine = [o for o in loop.optimizers() if concerns(loop, clip, o)]
        backwards = [i for i, s in enumerate(earlier) if s.kind == "backward"]
        if not backwards:
            continue
        unscaled = (s for s in earlier[: backwards[-1]] if s.kind == "unscale")
        if any(not mine or any(concerns(loop, s, o) for o in mine) for s in unscaled):
            continue
        backward = earlier[backwards[0]]
        if not (scaler_of(backward) or scales_itself(backward) or in_apex_block(clip, backward)):
            continue
        if hidden(loop, earlier[: backwards[-1]], "scaler", "optimizer", "self"):
            continue
        if any(s.kind == "step" and s.k == clip.k for s in scenario.after(clip)) or scenario.accumulating:
            if (scaled := scaled_when(loop, clip, backward)) is not None:
                yield Hit(clip, when=scaled)
            yield Hit(clip, (backward,), loose=True)


def scaled_when(loop: TrainingLoop, clip: Occurrence, backward: Occurrence) -> Formula | None:
    """The condition under which a loss is scaled, if those of the clip have nothing to do with precision."""
    own = clip.guards - backward.guards
    known = {atom.key: ("atom", atom) for atom in loop.atoms}
    if any(PRECISION.search(key) for key, _ in own) or any(key not in known for key, _ in backward.guards):
        return None
    return joined("and", [known[key] if truth else negation(known[key]) for key, truth in backward.guards])


def hidden(loop: TrainingLoop, steps: list[Occurrence], *kinds: str) -> bool:
    """Whether one of these is a call that could not be followed and received one of these kinds."""
    calls = [s.event for s in steps if s.kind == "opaque" and s.event.receives & {*kinds}]
    loop.unresolved += calls
    return bool(calls) or uncertain(loop)


@scenario_rule("GL202")
def unscale_twice(scenario: Scenario) -> Iterator[Hit]:
    for unscale in scenario.of("unscale"):
        for other in since_step(scenario, unscale):
            if other.kind == "update":
                break
            same = other.k == unscale.k and other.repeat == unscale.repeat and other.event.value is unscale.event.value
            if other.kind == "unscale" and same and other.event is not unscale.event:
                yield Hit(unscale, (other,), loose=True)
                break


@scenario_rule("GL203", windows=True)
def unscale_each_micro_batch(scenario: Scenario) -> Iterator[Hit]:
    for unscale in scenario.of("unscale"):
        if scenario.partial(unscale):
            yield Hit(unscale)


def both_ways(loop: TrainingLoop) -> bool:
    """Whether a loop does all with a scaler and all without, by two conditions that may go together."""
    losses = {e.value.scaled is not None for e in loop.events if e.kind == "backward" and e.value}
    return len(losses) == 2 and len({e.scaler is not None for e in loop.events if e.kind == "step"}) == 2


@scenario_rule("GL204")
def step_past_scaler(scenario: Scenario) -> Iterator[Hit]:
    if both_ways(scenario.loop):
        return
    for step in scenario.of("step"):
        guards = scenario.own_guards(step)
        if step.event.scaler is not None or any("finite" in g or "isnan" in g or "isinf" in g for g, _ in guards):
            continue
        earlier = since_step(scenario, step, step.event.value)
        backward = next((s for s in earlier if s.kind == "backward"), None)
        scaler = scaler_of(backward) if backward is not None else None
        if backward is None or scaler is None:
            continue
        there = [("atom", atom) for atom in scenario.loop.atoms if SCALER_THERE.search(atom.key)]
        scaled = joined("and", [scaler.enabled, *there])  # no loss is where there is no scaler
        if may_hold(scenario, scaled):
            yield Hit(step, (backward,), when=scaled)


@scenario_rule("GL205")
def update_missing(scenario: Scenario) -> Iterator[Hit]:
    loop = scenario.loop
    if uncertain(loop, "scaler", "self"):
        return
    if loop.statement is None and any(e.kind == "update" for e in loop.after):
        return
    updated = [s.event.value for s in scenario.of("update")]
    for step in scenario.of("step"):
        scaler = step.event.scaler
        if scaler is None or scaler.kind != "scaler":
            continue
        if loop.statement is None and (step.event.elsewhere or not constructed(scaler)):
            continue  # updated by another method, after several such calls, perhaps
        if one_of_several(loop, step) and any(e.kind == "update" and e.value is scaler for e in loop.after):
            continue
        if all(other is not scaler and constructed(other) and constructed(scaler) for other in updated):
            yield Hit(step)


def one_of_several(loop: TrainingLoop, step: Occurrence) -> bool:
    """Whether each iteration steps another optimizer, which it looks up itself: one update() after all is right."""
    node = step.event.node
    if loop.statement is None or not isinstance(node, ast.Call):
        return False
    given = {part.id for argument in node.args for part in walk_text(argument) if isinstance(part, ast.Name)}
    return any(
        isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store) and part.id in given
        for part in walk_text(loop.statement.node)
    )


def constructed(value: Value | None) -> bool:
    """A scaler that is made in the text, and is no other one."""
    return value is not None and value.call is not None and not value.choice


@scenario_rule("GL206")
def scale_never_falls(scenario: Scenario) -> Iterator[Hit]:
    loop = scenario.loop
    finite = {a.key: a.text for a in loop.atoms if a.kind == "finite"}
    updates = [e.value for e in loop.events if e.kind == "update"]
    backwards = [s for s in scenario.of("backward") if scaler_of(s)]
    for update in scenario.of("update"):
        scaler = update.event.value
        own = [b for b in backwards if b.k == update.k and scaler_of(b) is (scaler or scaler_of(b))]
        others = [one for one in updates if one is None or scaler is None or one is scaler]
        if not own or len(others) > 1:
            continue
        backward = own[-1]
        guards = update.guards - backward.guards
        guard = [g for g in guards if g[0] in finite and healthy_answer(finite[g[0]]) in (None, g[1])]
        if not guard or (of_loss(finite[guard[0][0]]) and not unscaled_before(scenario, update, guard[0])):
            continue
        if not uncertain(loop, "scaler", "self"):
            jump = skip(loop, guard[0][0])
            if not isinstance(jump, ast.Raise):
                yield Hit(update, (backward,), jump)


def of_loss(text: str) -> bool:
    """A check of the loss, on which the loss scale has no influence."""
    return re.search(r"loss", text, re.I) is not None and re.search(r"grad|norm|overflow|found_inf", text) is None


def unscaled_before(scenario: Scenario, update: Occurrence, guard: tuple[str, bool]) -> bool:
    """Whether gradients are unscaled before the check: without update() the next unscale_() raises."""
    return any(s.kind == "unscale" and s.k == update.k and guard not in s.guards for s in scenario.before(update))


def healthy_answer(text: str) -> bool | None:
    """What a check for finite numbers answers where nothing is wrong; None where its text does not show it."""
    if re.search(r"(?<!non)(?<!non_)(?<!not_)(?<!in)finite", text):
        return True
    return False if re.search(r"isnan|isinf|overflow|found_inf", text) else None


def skip(loop: TrainingLoop, key: str) -> ast.AST | None:
    """The `continue` (or `return`) that a check leads to."""
    for item in walk(loop.body):
        if isinstance(item, If) and any(a.key == key for a in atoms(item.test)):
            for part in walk([*item.then, *item.other]):
                if isinstance(part, Jump):
                    return part.node
    return None


@scenario_rule("GL213", windows=True)
def update_each_micro_batch(scenario: Scenario) -> Iterator[Hit]:
    for update in scenario.of("update"):
        own = isinstance(update.event.node, ast.Call) and bool(update.event.node.args)  # a scale set now and then
        if scenario.partial(update) and not own:
            yield Hit(update)
