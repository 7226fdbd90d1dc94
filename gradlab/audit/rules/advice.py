"""What works, and could be better."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache

from gradlab.audit.knowledge.call_site import BOUNDS
from gradlab.audit.knowledge.known_names import CLIPS
from gradlab.audit.rules.masked_means import means, weighted
from gradlab.audit.rules.registry import Hit, scenario_rule, text_rule
from gradlab.audit.rules.reporting import uncertain
from gradlab.audit.rules.trainer_arguments import PARSED, configured, literal, parsed_defaults
from gradlab.audit.source.project import Module
from gradlab.audit.source.syntax import called_name, defaults_of, dotted, walk
from gradlab.audit.trace.iterables import members
from gradlab.audit.trace.scenarios import Scenario
from gradlab.audit.trace.training_loop import TrainingLoop
from gradlab.audit.trace.values import Event, Value
from gradlab.codes import clip_bounds

RECURRENT = re.compile(r"(LSTM|GRU|RNN)(?![a-z])|\b(Transformer\w*|MultiheadAttention)\b")


def max_norm(clip: Event) -> float | None:
    """The max_norm of a clip, where it is a number in the text, or the default of an argument that is parsed."""
    if clip.bound is None or clip.bound.choice or clip.by_value:
        return None
    if clip.bound.kind == "number":
        return literal(ast.Constant(clip.bound.value))
    owner, _, name = clip.bound.name.rpartition(".")
    known = [default for given in settings(clip, owner) if (default := given.get(name)) is not None]
    return literal(known[0]) if known else None


def settings(clip: Event, owner: str) -> Iterator[Mapping[str, ast.expr | None]]:
    """Defaults, by their names, that a program's own text gives what it reads from a parser, a class or a parameter."""
    if not owner:
        yield from (defaults_of(frame.call) for frame in clip.frames if isinstance(frame.call, ast.FunctionDef))
    for module in (one for one in (clip.module, *(frame.module for frame in clip.frames)) if one is not None):
        named = [*annotated(module, owner.split(".")[-1]), *filled(module, owner), owner]
        if isinstance(found := module.names.get(named[0]), ast.ClassDef):
            fields = (part for part in found.body if isinstance(part, (ast.Assign, ast.AnnAssign)))
            yield {dotted(target): part.value for part in fields for target in targets(part)}
        if not owner or PARSED.search(owner):
            yield parsed_defaults(module)


def annotated(module: Module, name: str) -> Iterator[str]:
    """The classes that the parameters of a name are annotated with."""
    for function in module.source.nodes.of(ast.FunctionDef):
        yield from (dotted(a.annotation) for a in function.args.args if a.arg == name and a.annotation is not None)


def filled(module: Module, name: str) -> Iterator[str]:
    """The classes that a name's object is made of by a call that is given the class: `args = parse(Settings)`."""
    for node in module.source.nodes.of(ast.Assign):
        if name in map(dotted, node.targets) and isinstance(node.value, ast.Call):
            yield from (dotted(a) for a in node.value.args if isinstance(module.names.get(dotted(a)), ast.ClassDef))


def targets(node: ast.Assign | ast.AnnAssign) -> list[ast.expr]:
    return node.targets if isinstance(node, ast.Assign) else [node.target]


@scenario_rule("GL801")
def clip_by_value(scenario: Scenario) -> Iterator[Hit]:
    for clip in scenario.of("clip"):
        if clip.event.by_value:
            yield Hit(clip)


@scenario_rule("GL802")
def extreme_max_norm(scenario: Scenario) -> Iterator[Hit]:
    for clip in scenario.of("clip"):
        value = max_norm(clip.event)
        if value is not None and clip_bounds.extreme(value):
            yield Hit(clip)


@lru_cache(maxsize=8)
def architecture(loop: TrainingLoop) -> str:
    """The names of the trained models' types, and of the layers in their classes."""
    words: dict[str, None] = {}
    for event in loop.events:
        if event.kind == "forward" and event.value is not None:
            for root in members(event.value.root()):
                for part in networks(root):
                    chosen = map(ast.unparse, part.call.args[:1] if part.call is not None else ())
                    words |= dict.fromkeys([part.maker, part.made_by, part.name, *chosen])  # create_model("resnet")
                    for node in part.lineage:
                        words |= attributes(node)
    return " ".join(words)


@lru_cache(maxsize=300)
def attributes(node: ast.AST) -> dict[str, None]:
    return dict.fromkeys(part.attr for part in walk(node) if isinstance(part, ast.Attribute))


def networks(model: Value, depth: int = 0) -> Iterator[Value]:
    """A network and the networks and layers inside it."""
    yield model
    inner = [*model.args, *(part for held in model.attributes.values() for part in (held, *held.items))]
    for one in [part for held in inner for part in (held, *held.args)] if depth < 4 else []:
        if one.kind == "model":
            yield from networks(one, depth + 1)


def clips_itself(optimizer: Value) -> bool:
    """Whether an optimizer of the project's clips in its own step()."""
    found = optimizer.method("step")
    return found is not None and any(called_name(part) in CLIPS for part in walk(found[0]))


@scenario_rule("GL803")
def recurrent_unclipped(scenario: Scenario) -> Iterator[Hit]:
    loop = scenario.loop
    if any(e.kind == "clip" for e in loop.events) or any(map(clips_itself, loop.optimizers())):
        return
    if uncertain(loop, "model", "ddp", "params", "optimizer", "self", "scaler"):
        return
    if RECURRENT.search(architecture(loop)):
        for step in scenario.of("step")[:1]:
            yield Hit(step)


@scenario_rule("GL804")
def resnet_clipped(scenario: Scenario) -> Iterator[Hit]:
    if re.search(r"resnet", architecture(scenario.loop), re.I):
        for clip in scenario.of("clip"):
            value = max_norm(clip.event)
            if value is not None and clip_bounds.tight(value):
                yield Hit(clip)


@scenario_rule("GL805", windows=True)
def mean_of_means(scenario: Scenario) -> Iterator[Hit]:
    for backward in scenario.of("backward"):
        value = backward.event.value
        if value is None or scenario.of("scale"):
            continue
        for term, own, others in means(value, scenario.loop, backward):
            others = [f for f in others if not f.each]
            divided = any(f.sign == "/" for f in others)
            if (term.ignoring or own) and divided and not weighted(others, scenario.loop):
                yield Hit(backward)
                break


@scenario_rule("GL807")
def norm_unseen(scenario: Scenario) -> Iterator[Hit]:
    events = scenario.loop.events
    seen = any(e.kind in ("clip", "look", "unscale") or e.scaler for e in events)
    if not seen and not uncertain(scenario.loop, "model", "self"):
        for step in scenario.of("step")[:1]:
            yield Hit(step)


@text_rule("GL810")
def trainer_clips_by_value(module: Module) -> Iterator[ast.AST]:
    for argument in (argument for trainer in configured(module) for argument in trainer):
        by_value = isinstance(argument.value, ast.Constant) and argument.value.value == "value"
        if argument.name == "gradient_clip_algorithm" and by_value:
            yield argument.at


@text_rule("GL811")
def trainer_extreme_max_norm(module: Module) -> Iterator[ast.AST]:
    for argument in (argument for trainer in configured(module) for argument in trainer):
        value = literal(argument.value) if argument.name in BOUNDS else None
        if value is not None and clip_bounds.extreme(value):
            yield argument.at
