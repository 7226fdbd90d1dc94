"""What the loss does not reach: forward passes without a graph, and clipping of other weights."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from itertools import pairwise, takewhile

from gradlab.audit.knowledge.opaque_calls import WHOLE as CONFIGURATION
from gradlab.audit.rules.ownership import is_part
from gradlab.audit.rules.registry import Hit, loop_rule, scenario_rule
from gradlab.audit.rules.reporting import uncertain
from gradlab.audit.source.syntax import dotted
from gradlab.audit.source.syntax import walk as walk_text
from gradlab.audit.trace.event_tree import events
from gradlab.audit.trace.iterables import every
from gradlab.audit.trace.provenance import first_cut, is_traced, sources
from gradlab.audit.trace.replay import Occurrence
from gradlab.audit.trace.scenarios import Scenario
from gradlab.audit.trace.tensors import made_of
from gradlab.audit.trace.training_loop import TrainingLoop, differentiable
from gradlab.audit.trace.values import Value

NETWORKS = ("model", "ddp", "instance")
PLAIN = re.compile(
    r"train|eval|to|cuda|cpu|module|training|device|dtype|(named_)?parameters|zero_grad|(load_)?state_dict"
)
"""Attributes of a network that compute nothing."""
LARGE = 1000
"""The least bound that clips nothing."""


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
            held = [one for one in models if model is not None and overlap(model, one) and not stood_in_for(loop, one)]
            same = [s for s in passes if s.event.value is not None and any(overlap(s.event.value, one) for one in held)]
            if held and all(s.inside("no_grad") for s in same):
                yield Hit(own, (backward,))


def stood_in_for(loop: TrainingLoop, model: Value) -> bool:
    """Whether a network of an optimizer never runs with a graph, and another of its class, that none holds, does.

    Then the optimizer was meant for that one.
    """
    running = [e.value for e in loop.events if e.kind == "forward" and e.value is not None and differentiable(e)]
    held = [one for optimizer in loop.optimizers() for one in optimizer.trained]
    twins = [one for one in running if same_class(one.root(), model.root()) and known((one, model))]
    free = [one for one in twins if not any(overlap(one, other) for other in held)]
    return bool(free) and not any(overlap(one, model) for one in running)


def same_class(one: Value, two: Value) -> bool:
    """Whether two networks are made by the same class, or call."""
    calls = {ast.unparse(root.call.func) if root.call is not None else "" for root in (one, two)}
    seen = bool(one.lineage) and one.lineage == two.lineage
    return seen or one.made_by == two.made_by != "" or (len(calls) == 1 and "" not in calls)


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
    """A loss goes backward that was computed in no_grad(), or from what was detached, and from nothing else.

    What also goes backward outside of no_grad() depends on the phase.
    """
    with_graph = {id(e.node) for e in scenario.loop.events if e.kind == "backward" and differentiable(e)}
    for backward in scenario.of("backward"):
        value = backward.event.value
        if value is None or (id(backward.event.node) in with_graph and not differentiable(backward.event)):
            continue
        if (lost := first_cut(value)) is not None and is_traced(value) and not sources(value):
            yield Hit(backward, (), lost.cut, lost.cut_path)


@scenario_rule("GL705")
def clip_elsewhere(scenario: Scenario) -> Iterator[Hit]:
    """What is clipped is trained by none of the optimizers, whose models are known, or by another than the next."""
    losses = {id(one) for backward in scenario.of("backward") for one in made_of(backward.event.value)}
    for clip in scenario.of("clip"):
        value = clip.event.value
        if value is not None and (id(value) in losses or is_loss(value) or of_frozen(value)):
            yield Hit(clip)
    yield from clipped_again(scenario)
    optimizers = scenario.loop.of_networks()
    if not optimizers or any(not o.trained or o.some for o in optimizers):
        return
    if any(e.kind == "given" for e in scenario.loop.events):
        return  # gradients are shared with those of other weights, perhaps
    trained = [m for o in optimizers for m in o.trained]
    for clip in scenario.of("clip"):
        value = clip.event.value
        clipped = held_by(value) if value is not None and value.kind in ("params", "optimizer") else []
        if not separate(scenario.loop, clipped):
            continue
        if not separate(scenario.loop, trained):
            continue
        own = any(overlap(one, m) for one in clipped for m in trained)
        step = step_of_another(scenario, clip, clipped) if own else next(iter(scenario.of("step")), None)
        if step is not None:
            yield Hit(clip, (step,))


@loop_rule("GL705")
def clip_of_nothing(loop: TrainingLoop) -> Iterator[tuple[str, ast.AST]]:
    """A generator of parameters is clipped that the optimizer, or an earlier clip, has gone through."""
    for event in loop.events:
        value = event.value
        if event.kind == "clip" and value is not None and value.kind == "params":
            again = loop.statement is not None or loop.self_contained
            if event.empty or (value.branches >= 0 and again and value.birth < loop.birth):
                yield event.path, event.node


def clipped_again(scenario: Scenario) -> Iterator[Hit]:
    """The same gradients are clipped twice in a row, where others step too, or under two names of the norm."""
    for first, second in pairwise(scenario.of("clip")):
        calls = [s.event.call for s in (first, second)]
        if first.k != second.k or calls[0] is calls[1] or first.event.frames != second.event.frames:
            continue  # one call of an unrolled loop is about another network each time
        places = scenario.places
        between = scenario.steps[places[id(first)] + 1 : places[id(second)]]
        if any(s.kind in ("backward", "step", "zero", "unscale", "scale", "given") for s in between):
            continue
        length = (
            1 if all(map(is_bound, (first, second))) else 9
        )  # of another bound, the later may be the one that is meant
        texts = {ast.unparse(ast.Tuple([call.func, *call.args[:length]])) for call in calls if call is not None}
        steps = [
            s.event.value for s in takewhile(lambda s: s.kind != "backward", scenario.after(second)) if s.kind == "step"
        ]
        networks = {model for optimizer in steps if optimizer is not None for model in optimizer.trained}
        module = second.event.module
        made = module.source.nodes.of(ast.Assign) if module is not None else []
        names = {dotted(one.targets[0]) for one in made if one.value in calls}
        if all(calls) and len(texts) == 1 and max(len({*map(id, steps)}), len(networks), len(names)) > 1:
            yield Hit(second, (first,))


def is_bound(clip: Occurrence) -> bool:
    """Whether a clip is to a number that is no way to measure the norm alone."""
    bound = clip.event.bound.value if clip.event.bound is not None else None
    return isinstance(bound, (int, float)) and bound < LARGE


def of_frozen(value: Value) -> bool:
    """Whether parameters are of networks that were frozen under no condition, and that nothing unfreezes."""
    return value.kind == "params" and all(one.root().frozen and not one.root().thawed for one in every(value))


def is_loss(value: Value) -> bool:
    """Whether what is clipped is the result of a network or of a loss function, which has no gradient of its own."""
    return value.kind == "tensor" and not value.derivative and bool(value.source) and value.leaf is None


def step_of_another(scenario: Scenario, clip: Occurrence, clipped: list[Value]) -> Occurrence | None:
    """The step behind a clip of gradients that are zeroed before their own, if nothing is clipped for that step."""

    def about(one: Occurrence, models: Iterable[Value]) -> bool:
        held = held_by(one.event.value) if one.event.value is not None else ()
        return any(overlap(model, other) for model in models for other in held)

    before = [s for s in scenario.before(clip) if s.kind in ("backward", "step")]
    if not before or before[-1].kind == "step":
        return None  # what it is for has been done: GL101
    rest = [s for s in scenario.after(clip) if s.kind == "step" or (s.kind == "zero" and about(s, clipped))]
    own = next((s for s in rest if about(s, clipped)), None)
    if not rest or (step := rest[0]) is own or (own is not None and own.kind == "step"):
        return None
    places = scenario.places
    last = max((places[id(s)] for s in scenario.before(step) if s.kind == "step"), default=0)
    own_clips = [s for s in scenario.steps[last : places[id(step)]] if s.kind == "clip"]
    return None if any(about(s, step.event.value.trained) for s in own_clips if step.event.value) else step


def held_by(value: Value) -> list[Value]:
    """The networks whose weights an optimizer has, or that parameters are of."""
    return [*value.trained] if value.kind == "optimizer" else every(value)


def known(models: tuple[Value, ...]) -> bool:
    """Whether the text shows where each of these models is made, and that they are no copies (`prepare()`)."""
    roots = [m.root() for m in models]
    made = all(m.alone or m.built or m.call is not None for m in roots)
    return bool(roots) and made and all(m.kind in NETWORKS and m.prepared is None for m in roots)


def separate(loop: TrainingLoop, models: Iterable[Value]) -> bool:
    """Whether each of these models is made in the text, or is all that an optimizer of the loop has.

    What is handed in may be a part of something else that is; but then an optimizer of its own would be for weights
    that another steps on.
    """
    alone = {o.trained[0].root() for o in loop.optimizers() if len(o.trained) == 1 and not o.some and not o.choice}
    own = [known((m,)) or (m.root() in alone and m.root().kind in NETWORKS and not m.root().prepared) for m in models]
    return bool(own) and all(own)


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
