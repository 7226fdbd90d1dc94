"""What works, and could be better."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache

from gradlab.audit.rules.masked_means import of_mask
from gradlab.audit.rules.registry import Hit, scenario_rule, text_rule
from gradlab.audit.rules.reporting import uncertain
from gradlab.audit.rules.trainer_arguments import BOUNDS, PARSED, configured, literal, parsed_defaults
from gradlab.audit.source.project import Module
from gradlab.audit.source.syntax import defaults_of, dotted, walk
from gradlab.audit.trace.iterables import members
from gradlab.audit.trace.scenarios import Scenario
from gradlab.audit.trace.training_loop import TrainingLoop
from gradlab.audit.trace.values import Event, Value
from gradlab.codes import clip_bounds

RECURRENT = re.compile(r"(LSTM|GRU|RNN)(?![a-z])|\b(Transformer\w*|MultiheadAttention)\b")


def max_norm(clip: Event) -> float | None:
    """The max_norm of a clip, where it is a number in the text, or the default of an argument that is parsed."""
    if clip.call is None or clip.by_value:
        return None
    given = [k.value for k in clip.call.keywords if k.arg in BOUNDS] or clip.call.args[1:2]
    written = literal(given[0]) if given else None
    if written is not None or clip.bound is None or clip.bound.choice:
        return written
    if clip.bound.kind == "number":
        return literal(ast.Constant(clip.bound.value))
    owner, _, name = clip.bound.name.rpartition(".")
    known = [default for given in settings(clip, owner) if (default := given.get(name)) is not None]
    return literal(known[0]) if known else None


def settings(clip: Event, owner: str) -> Iterator[Mapping[str, ast.expr | None]]:
    """Defaults, by their names, that a program's own text gives what it reads from a parser, a class or a parameter."""
    if not owner:
        yield from (defaults_of(frame.call) for frame in clip.frames if isinstance(frame.call, ast.FunctionDef))
    for module in (clip.module, *(frame.module for frame in clip.frames)):
        name = next(annotated(module, owner.split(".")[-1]), owner) if module is not None else ""
        if module is not None and isinstance(found := module.names.get(name), ast.ClassDef):
            fields = (part for part in found.body if isinstance(part, (ast.Assign, ast.AnnAssign)))
            yield {dotted(target): part.value for part in fields for target in targets(part)}
        if module is not None and (not owner or PARSED.search(owner)):
            yield parsed_defaults(module)


def annotated(module: Module, name: str) -> Iterator[str]:
    """The classes that the parameters of a name are annotated with."""
    for function in module.source.nodes.of(ast.FunctionDef):
        yield from (dotted(a.annotation) for a in function.args.args if a.arg == name and a.annotation is not None)


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
                chosen = map(ast.unparse, root.call.args[:1] if root.call is not None else ())  # create_model("resnet")
                words |= dict.fromkeys([root.maker, root.made_by, root.name, *chosen])
                for node in dict.fromkeys(node for part in networks(root) for node in part.lineage):
                    words |= attributes(node)
    return " ".join(words)


@lru_cache(maxsize=300)
def attributes(node: ast.AST) -> dict[str, None]:
    return dict.fromkeys(part.attr for part in walk(node) if isinstance(part, ast.Attribute))


def networks(model: Value, depth: int = 0) -> Iterator[Value]:
    """A network of the project and the networks of the project inside it."""
    yield model
    for inner in model.attributes.values() if depth < 3 else ():
        if inner.kind == "model" and inner.lineage:
            yield from networks(inner, depth + 1)


@scenario_rule("GL803")
def recurrent_unclipped(scenario: Scenario) -> Iterator[Hit]:
    loop = scenario.loop
    if any(e.kind == "clip" for e in loop.events):
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
        own = [f for f in value.factors if of_mask(f, scenario.loop, backward)]
        masks = [f.value.counted for f in own]
        others = [f for f in value.factors if f not in own and all(f.value is not mask for mask in masks)]
        others = [f for f in others if not f.each]
        if any(f.sign == "*" for f in others):
            continue  # weighted by its tokens
        if (value.ignoring or own) and others:
            yield Hit(backward)


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
