"""What works, and could be better."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import lru_cache

from gradlab.audit.rules import Hit, rule, uncertain
from gradlab.audit.source.project import Module
from gradlab.audit.source.syntax import dotted, walk
from gradlab.audit.trace.events import Event
from gradlab.audit.trace.scenarios import Run
from gradlab.audit.trace.training_loop import Unit
from gradlab.audit.trace.values import Value
from gradlab.codes import clip_bounds

BOUNDS = ("max_norm", "gradient_clip_val", "max_grad_norm", "clip_grad")


def bound(event: Event) -> float | None:
    """The max_norm of a clip, where it is a number in the text."""
    call = event.data.get("call")
    if not isinstance(call, ast.Call) or event.data.get("by_value"):
        return None
    given = [k.value for k in call.keywords if k.arg in BOUNDS] or call.args[1:2]
    return literal(given[0]) if given else None


def literal(node: ast.AST) -> float | None:
    if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)) and not isinstance(node.value, bool):
        return float(node.value)
    return None


@rule("GL801")
def by_value(run: Run) -> Iterator[Hit]:
    for clip in run.of("clip"):
        if clip.event.data.get("by_value"):
            yield Hit(clip)


@rule("GL802")
def extreme(run: Run) -> Iterator[Hit]:
    for clip in run.of("clip"):
        value = bound(clip.event)
        if value is not None and clip_bounds.extreme(value):
            yield Hit(clip)


@lru_cache(maxsize=8)
def kind_of(unit: Unit) -> str:
    """What the text says of the models that are trained: their types, and the layers of their classes."""
    words: dict[str, None] = {}
    for event in unit.events:
        if event.kind == "forward" and event.value is not None:
            root = event.value.root()
            words |= dict.fromkeys([str(root.data.get("type", "")), root.name])
            for node in dict.fromkeys(node for part in parts(root) for node in part.data.get("lineage", [])):
                words |= attributes(node)
    return " ".join(words)


@lru_cache(maxsize=300)
def attributes(node: ast.AST) -> dict[str, None]:
    return dict.fromkeys(part.attr for part in walk(node) if isinstance(part, ast.Attribute))


def parts(model: Value, depth: int = 0) -> Iterator[Value]:
    """A network of the project and the networks of the project that it holds."""
    yield model
    for held in model.attributes.values() if depth < 3 else ():
        if held.kind == "model" and "lineage" in held.data:
            yield from parts(held, depth + 1)


@rule("GL803")
def unclipped(run: Run) -> Iterator[Hit]:
    unit = run.unit
    if any(e.kind == "clip" for e in unit.events) or uncertain(
        unit, "model", "ddp", "params", "optimizer", "self", "scaler"
    ):
        return
    if re.search(r"\b(LSTM|GRU|RNN|Transformer\w*|MultiheadAttention)(Cell)?\b", kind_of(unit)):
        for step in run.of("step")[:1]:
            yield Hit(step)


@rule("GL804")
def resnet(run: Run) -> Iterator[Hit]:
    if re.search(r"resnet", kind_of(run.unit), re.I):
        for clip in run.of("clip"):
            value = bound(clip.event)
            if value is not None and clip_bounds.tight(value):
                yield Hit(clip)


@rule("GL805", windows=True)
def mean_of_means(run: Run) -> Iterator[Hit]:
    for backward in run.of("backward"):
        value = backward.event.value
        factors = value.data.get("factors", []) if value is not None else []
        if any(sign == "*" for sign, *_ in factors) or any(s.kind == "scale" for s in run.steps):
            continue  # weighed by its tokens
        if value is not None and value.data.get("ignoring") and factors:
            yield Hit(backward)


@rule("GL807")
def unseen(run: Run) -> Iterator[Hit]:
    if not any(
        e.kind in ("clip", "look", "unscale") or e.data.get("scaler") for e in run.unit.events
    ) and not uncertain(run.unit, "model", "self"):
        for step in run.of("step")[:1]:
            yield Hit(step)


@rule("GL810", on="text")
def trainer_value(module: Module) -> Iterator[ast.AST]:
    for call in trainers(module):
        for k in call.keywords:
            if k.arg == "gradient_clip_algorithm" and isinstance(k.value, ast.Constant) and k.value.value == "value":
                yield k.value


@rule("GL811", on="text")
def trainer_extreme(module: Module) -> Iterator[ast.AST]:
    for call in trainers(module):
        for k in call.keywords:
            value = literal(k.value) if k.arg in BOUNDS else None
            if value is not None and clip_bounds.extreme(value):
                yield k.value


def trainers(module: Module) -> Iterator[ast.Call]:
    if not re.search(r"Trainer\s*\(|TrainingArguments\s*\(", module.source.text):
        return
    for node in module.source.nodes.of(ast.Call):
        if re.search(r"(^|\.)(Trainer|\w*TrainingArguments)$", dotted(node.func)):
            yield node
