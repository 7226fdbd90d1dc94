"""What the loss does not reach: forward passes without a graph, clipping of other weights; evaluation mode kept on."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

from gradlab.audit.knowledge.opaque_calls import WHOLE as CONFIGURATION
from gradlab.audit.rules.ownership import is_part
from gradlab.audit.rules.registry import Hit, loop_rule, scenario_rule
from gradlab.audit.rules.reporting import uncertain
from gradlab.audit.source.syntax import walk as walk_text
from gradlab.audit.trace.conditions import atoms
from gradlab.audit.trace.event_tree import If, Jump, Loop, events, walk
from gradlab.audit.trace.iterables import every
from gradlab.audit.trace.provenance import first_cut, is_traced, sources
from gradlab.audit.trace.replay import Occurrence
from gradlab.audit.trace.scenarios import Scenario
from gradlab.audit.trace.tensors import made_of
from gradlab.audit.trace.training_loop import TrainingLoop, differentiable
from gradlab.audit.trace.values import Event, Value

NETWORKS = ("model", "ddp", "instance")
PLAIN = re.compile(
    r"train|eval|to|cuda|cpu|module|training|device|dtype|(named_)?parameters|zero_grad|(load_)?state_dict"
)
"""Attributes of a network that compute nothing."""
TRAINS = re.compile(r"train|mode|fit|run|epoch|loop|main|step|^[a-z_]{1,3}$", re.I)
"""Names of calls that may put the model that they receive into train()."""


@scenario_rule("GL712")
def forward_without_graph(scenario: Scenario) -> Iterator[Hit]:
    """Every forward pass of a model that the optimizer trains is in no_grad(), and one of them leads to the loss."""
    yield from loss_without_graph(scenario)
    loop = scenario.loop
    if uncertain(loop, "model", "ddp", "self", scenario=scenario):
        return
    passes = scenario.of("forward")
    models = moved(loop)
    if all(s.inside("no_grad") for s in passes):
        models += put_into_train(loop)
    for backward in scenario.of("backward"):
        loss = backward.event.value
        if loss is None or loss.kind != "tensor":
            continue
        leading = {id(e) for e in (loss.forward, *loss.chain) if e is not None}
        leading = leading or {id(s.event) for s in passes if leads_alone(s, backward, scenario)}
        for own in (s for s in passes if id(s.event) in leading and s.k == backward.k and s.inside("no_grad")):
            model = own.event.value
            held = [one for one in models if model is not None and overlap(model, one)]
            same = [s for s in passes if s.event.value is not None and any(overlap(s.event.value, one) for one in held)]
            if held and all(s.inside("no_grad") for s in same):
                yield Hit(own, (backward,))


def leads_alone(own: Occurrence, backward: Occurrence, scenario: Scenario) -> bool:
    """Whether a loss of unknown making can come from this forward pass of a network alone: nothing else calls that."""
    same = own.event.frames == backward.event.frames and own.guards <= backward.guards
    statement = scenario.loop.statement
    root: ast.AST = (
        statement.node if statement is not None else next((f.call for f in own.event.frames), own.event.node)
    )
    name = ast.unparse(own.event.node.func) if isinstance(own.event.node, ast.Call) else ""
    methods = (p for p in walk_text(root) if isinstance(p, ast.Attribute) and ast.unparse(p.value) == name)
    return same and own in scenario.before(backward) and all(PLAIN.fullmatch(method.attr) for method in methods)


def moved(loop: TrainingLoop) -> list[Value]:
    """The models that the optimizers hold, or that are clipped."""
    clips = [e.value for e in loop.events if e.kind == "clip" and e.value is not None]
    return [*(model for optimizer in loop.optimizers() for model in optimizer.trained), *clips]


def put_into_train(loop: TrainingLoop) -> list[Value]:
    """The models that are, before the loop or in one around it."""
    around = [e for outer in loop.outer for e in events(outer.body)]
    modes = (e for e in [*loop.before, *loop.events, *around] if e.kind == "mode" and e.name == "train")
    return [e.value for e in modes if e.value is not None]


def loss_without_graph(scenario: Scenario) -> Iterator[Hit]:
    """A loss goes backward that was computed in no_grad(), or from what was detached, and from nothing else."""
    for backward in scenario.of("backward"):
        value = backward.event.value
        if value is None:
            continue
        if (lost := first_cut(value)) is not None and is_traced(value) and not sources(value):
            yield Hit(backward, (), lost.cut, lost.cut_path)


@scenario_rule("GL705")
def clip_elsewhere(scenario: Scenario) -> Iterator[Hit]:
    """What is clipped is trained by none of the optimizers, whose models are known, or by another than the next."""
    losses = {id(one) for backward in scenario.of("backward") for one in made_of(backward.event.value)}
    for clip in scenario.of("clip"):
        if clip.event.value is not None and (id(clip.event.value) in losses or is_loss(clip.event.value)):
            yield Hit(clip)
    optimizers = scenario.loop.of_networks()
    if not optimizers or any(not o.trained or o.some for o in optimizers):
        return
    if any(e.kind == "given" for e in scenario.loop.events):
        return  # gradients are shared with those of other weights, perhaps
    trained = [m for o in optimizers for m in o.trained]
    for clip in scenario.of("clip"):
        value = clip.event.value
        if value is None or value.kind != "params" or not known(tuple(clipped := every(value))):
            continue
        if not all(known((m,)) or handed_in_before(m, clipped) for m in trained):
            continue
        own = any(overlap(one, m) for one in clipped for m in trained)
        step = step_of_another(scenario, clip, clipped) if own else next(iter(scenario.of("step")), None)
        if step is not None:
            yield Hit(clip, (step,))


def handed_in_before(model: Value, made: list[Value]) -> bool:
    """Whether a model comes from a caller, and was there before others were made: it has none of them as a part."""
    root = model.root()
    return root.kind in NETWORKS and root.prepared is None and all(root.birth < one.root().birth for one in made)


def is_loss(value: Value) -> bool:
    """Whether what is clipped is the result of a network or of a loss function, which has no gradient of its own."""
    return value.kind == "tensor" and not value.derivative and bool(value.source) and value.leaf is None


def step_of_another(scenario: Scenario, clip: Occurrence, clipped: list[Value]) -> Occurrence | None:
    """The step behind a clip of gradients that are zeroed before their own, if nothing is clipped for that step."""

    def about(one: Occurrence, models: Iterable[Value]) -> bool:
        value = one.event.value
        held = (value.trained if value.kind == "optimizer" else every(value)) if value is not None else ()
        return any(overlap(model, other) for model in models for other in held)

    before = [s for s in scenario.before(clip) if s.kind in ("backward", "step")]
    if not before or before[-1].kind == "step":
        return None  # what it is for has been done: GL101
    rest = [s for s in scenario.after(clip) if s.kind == "step" or (s.kind == "zero" and about(s, clipped))]
    own = next((s for s in rest if about(s, clipped)), None)
    if not rest or (step := rest[0]) is own or (own is not None and own.kind == "step"):
        return None
    if own is None and any(about(s, clipped) for s in scenario.of("step")):
        return None
    around = [s for s in scenario.steps if s.k == step.k and s.kind == "clip"]
    return None if any(about(s, step.event.value.trained) for s in around if step.event.value) else step


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
        if intended(model, inside, own):
            return
        if i > at or evaluated(model, inside[i + 1 :], own, set()):
            backward = next(e for e in loop.events if e.kind == "backward")
            shown = event if event.frames == backward.frames else backward
            yield shown.path, shown.node
            return


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
        if not passed(loop, model) and not part_passed(loop, model):
            continue
        if model.root().birth > loop.birth:
            continue  # a copy that is made anew
        later, here = loop.events[loop.events.index(event) + 1 :], event.frames == backward.frames
        goes_on, periodic = conditional.get(id(event), (not here, False))
        if here and id(event) not in conditional and loop.events.index(event) > loop.events.index(backward):
            if any(overlap(one, model) for one in put_into_train(loop)):
                yield event.path, event.node  # at the end of the first iteration
                return
        if goes_on and (periodic or evaluated(model, later, {id(backward)}, apart if here else set())):
            shown = event if here else backward
            yield shown.path, shown.node
            return


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


def part_passed(loop: TrainingLoop, model: Value) -> bool:
    """Whether a network that a loss comes from has this one as a part, which was not in eval() before the loop."""
    if any(e.kind == "mode" and e.name == "eval" and e.value and related(e.value, model) for e in loop.before):
        return False
    losses = [e.value for e in loop.events if e.kind == "backward" and e.value is not None]
    passes = (e for loss in losses for e in sources(loss) if e.value is not None and differentiable(e))
    return any(is_part(model.root(), e.value.root()) for e in passes)  # type: ignore[union-attr]


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


def known(models: tuple[Value, ...]) -> bool:
    """Whether the text shows where each of these models is made, and that they are no copies (`prepare()`)."""
    roots = [m.root() for m in models]
    made = all(m.alone or m.built or m.call is not None for m in roots)
    return bool(roots) and made and all(m.kind in NETWORKS and m.prepared is None for m in roots)


def overlap(one: Value, two: Value) -> bool:
    """Whether two models are, or may be, one, or one is a part of the other."""
    a, b = one.root(), two.root()
    named = bool(a.name and a.name == b.name and a.call is b.call)
    same = a is b or (named and not (a.built and b.built))
    return same or is_part(a, b) or is_part(b, a) or bool(perhaps(a) & perhaps(b))


def perhaps(model: Value) -> set[Value]:
    """What a model may be; and what one of a class that is not seen was made with, no configuration: its parts."""
    parts = [one for one in model.args if one.alone and not CONFIGURATION.search(one.name)] if model.alone else []
    return {model, *parts, *(one.root() for _, one in model.choice)}


def related(one: Value, two: Value) -> bool:
    return overlap(one, two) or not (known((one,)) and known((two,)))
