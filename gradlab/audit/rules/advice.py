"""What works, and could be better."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from gradlab.audit.known import dotted
from gradlab.audit.project import Module
from gradlab.audit.rules import Hit, rule, uncertain
from gradlab.audit.trace import Run, Unit
from gradlab.audit.tree import Event

NORM = "torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)"
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


@rule(
    "GL801",
    "clip-by-value",
    "advice",
    "clipping each element changes the gradient's direction: clip_grad_norm_ keeps it",
    "Measured: 0.72 of the gradient, in a direction whose cosine with the right one is 0.70 (README, "
    "pitfall value_clip).",
    NORM,
)
def by_value(run: Run) -> Iterator[Hit]:
    for clip in run.of("clip"):
        if clip.event.data.get("by_value"):
            yield Hit(clip)


@rule(
    "GL802",
    "max-norm-extreme",
    "advice",
    "an extreme max_norm, which cuts every update to the same tiny length, or none: look at the norms first",
    "Measured: at 0.01 the gradient used is 0.009 of the right one (README, pitfall clip_too_tight).",
    NORM,
)
def extreme(run: Run) -> Iterator[Hit]:
    for clip in run.of("clip"):
        value = bound(clip.event)
        if value is not None and (0 < value <= 0.02 or 1000 <= value < 1e6):
            yield Hit(clip)


def kind_of(unit: Unit) -> str:
    """What the text says of the models that are trained: their types, and their classes' layers."""
    words = []
    for event in unit.events:
        if event.kind == "forward" and event.value is not None:
            root = event.value.root()
            words.append(str(root.data.get("type", "")) + " " + root.name)
            words += [
                part.attr
                for node in root.data.get("lineage", [])
                for part in ast.walk(node)
                if isinstance(part, ast.Attribute)
            ]
    return " ".join(words)


@rule(
    "GL803",
    "sequence-model-unclipped",
    "advice",
    "a recurrent network or a transformer is trained without clipping, one steep update can lose it: clip the norm",
    "Measured: experiments/exploding, experiments/transformer; README, pitfall no_clip. What is healthy "
    "without needs none.",
    NORM,
)
def unclipped(run: Run) -> Iterator[Hit]:
    unit = run.unit
    if any(e.kind == "clip" for e in unit.events) or uncertain(
        unit, "model", "ddp", "params", "optimizer", "self", "scaler"
    ):
        return
    if re.search(r"\b(LSTM|GRU|RNN|Transformer\w*|MultiheadAttention)(Cell)?\b", kind_of(unit)):
        for step in run.of("step")[:1]:
            yield Hit(step)


@rule(
    "GL804",
    "resnet-clipped-tightly",
    "advice",
    "a ResNet is clipped at 1 or below, which shortens steps that are fine: leave clipping out, or raise the bound",
    "Measured: a loss of 2.20 instead of 0.40 (README, pitfall needless_clip).",
    "# no clipping, until the norms show that it is needed",
)
def resnet(run: Run) -> Iterator[Hit]:
    if re.search(r"resnet", kind_of(run.unit), re.I):
        for clip in run.of("clip"):
            value = bound(clip.event)
            if value is not None and value <= 1:
                yield Hit(clip)


@rule(
    "GL805",
    "mean-of-means",
    "advice",
    "the mean of each micro-batch's mean over its tokens, where those of short texts weigh more: divide by all tokens",
    "Measured: 0.05 of a move away from the right update; a loss of 3.33 instead of 3.10 under SGD "
    "(README, pitfall mean_of_means).",
    "loss = F.cross_entropy(logits, target, ignore_index=-100, reduction='sum') / tokens_of_the_window",
)
def mean_of_means(run: Run) -> Iterator[Hit]:
    if not run.unit.accumulating:
        return
    for backward in run.of("backward"):
        value = backward.event.value
        if value is not None and value.data.get("ignoring") and value.data.get("factors"):
            yield Hit(backward)


@rule(
    "GL806",
    "deep-saturating-stack",
    "advice",
    "a deep stack of sigmoid or tanh layers without normalisation, early gradients vanish: use ReLU or GELU, and norms",
    "Measured: twenty sigmoid layers, early gradients 10^16 times smaller than late ones (experiments/vanishing).",
    "nn.Sequential(nn.Linear(100, 100), nn.LayerNorm(100), nn.ReLU(), ...)",
    on="text",
)
def saturating(module: Module) -> Iterator[ast.AST]:
    for node in ast.walk(module.source.tree) if module.source.tree else ():
        if isinstance(node, ast.Call) and dotted(node.func).split(".")[-1] == "Sequential":
            names = [dotted(a.func).split(".")[-1] for a in node.args if isinstance(a, ast.Call)]
            if sum(n in ("Sigmoid", "Tanh") for n in names) >= 8 and not any("Norm" in n for n in names):
                yield node
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield from stacked(node)


def stacked(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[ast.AST]:
    """Sequential(*layers), with layers put together in a loop that is told to go round eight times or more."""
    plain = function.args.args[len(function.args.args) - len(function.args.defaults) :]
    given = {a.arg: literal(d) for a, d in zip(plain, function.args.defaults)}
    for node in ast.walk(function):
        if not (
            isinstance(node, ast.Call) and dotted(node.func).split(".")[-1] == "Sequential" and len(node.args) == 1
        ):
            continue
        name = dotted(node.args[0].value) if isinstance(node.args[0], ast.Starred) else ""
        for loop in ast.walk(function):
            if not (name and isinstance(loop, ast.For) and isinstance(loop.iter, ast.Call) and loop.iter.args):
                continue
            last = loop.iter.args[-1]
            turns = literal(last) if isinstance(last, ast.Constant) else given.get(dotted(last))
            text = " ".join(ast.unparse(part) for part in loop.body)
            if turns is not None and turns >= 8 and re.search(r"(Sigmoid|Tanh)\(", text):
                if re.search(rf"\b{name}\b", text) and not re.search(r"Norm|Residual|Block", text):
                    yield node


@rule(
    "GL807",
    "gradients-never-looked-at",
    "advice",
    "nothing looks at the gradients, no norm, no clipping, no scaler: log the norm",
    "Off unless selected. Measured: without a look an overflow ends in weights that are NaN (README, "
    "pitfall no_monitoring).",
    "norm = torch.nn.utils.clip_grad_norm_(model.parameters(), float('inf'))  # measures, and cuts nothing",
    default=False,
)
def unseen(run: Run) -> Iterator[Hit]:
    if not any(
        e.kind in ("clip", "look", "unscale") or e.data.get("scaler") for e in run.unit.events
    ) and not uncertain(run.unit, "model", "self"):
        for step in run.of("step")[:1]:
            yield Hit(step)


@rule(
    "GL810",
    "trainer-clips-by-value",
    "advice",
    "the trainer clips each element, which changes the gradient's direction: clip the norm",
    "Measured: 0.72 of the gradient, in a direction whose cosine with the right one is 0.70 (README, "
    "pitfall value_clip).",
    "Trainer(gradient_clip_val=1.0, gradient_clip_algorithm='norm')",
    on="text",
)
def trainer_value(module: Module) -> Iterator[ast.AST]:
    for call in trainers(module):
        for k in call.keywords:
            if k.arg == "gradient_clip_algorithm" and isinstance(k.value, ast.Constant) and k.value.value == "value":
                yield k.value


@rule(
    "GL811",
    "trainer-max-norm-extreme",
    "advice",
    "the trainer's bound on the norm is extreme, it cuts every update to the same tiny length, or none: "
    "look at the norms",
    "Measured: at 0.01 the gradient used is 0.009 of the right one (README, pitfall clip_too_tight).",
    "TrainingArguments(max_grad_norm=1.0, ...)",
    on="text",
)
def trainer_extreme(module: Module) -> Iterator[ast.AST]:
    for call in trainers(module):
        for k in call.keywords:
            value = literal(k.value) if k.arg in BOUNDS else None
            if value is not None and (0 < value <= 0.02 or 1000 <= value < 1e6):
                yield k.value


def trainers(module: Module) -> Iterator[ast.Call]:
    for node in ast.walk(module.source.tree) if module.source.tree else ():
        if isinstance(node, ast.Call) and re.search(r"(^|\.)(Trainer|\w*TrainingArguments)$", dotted(node.func)):
            yield node
