"""Results of forward passes and of loss functions."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable

from gradlab.audit.knowledge import bootstrapping, value_ranges
from gradlab.audit.knowledge.context_regions import add_sync_flag
from gradlab.audit.source.syntax import dotted
from gradlab.audit.trace.engine import Engine
from gradlab.audit.trace.iterables import members
from gradlab.audit.trace.provenance import LONGEST, is_traced, provenance, records, take_apart
from gradlab.audit.trace.tensors import roots_of, tensor
from gradlab.audit.trace.values import Event, Value, births

COUNTS = re.compile(
    r"(^|[_.])((n|num|number|total|global|sum|count)_(\w*_)?(items|tokens|samples|valid|labels|accum\w*|micro\w*|targets)"
    r"|(valid|label|target)_tokens|n_?tokens|ntokens|token_count|normali[sz]er|denominator|loss_scale|accum\w*_steps)",
    re.I,
)
"""Names of arguments by which a function may divide the loss that it computes."""


CLASSES = re.compile(r"cross_?entropy|nll|ctc|bce", re.I)
"""Loss functions whose second argument is no prediction."""
LOGITS = re.compile(
    r"torch\.nn\.(functional\.)?(CrossEntropyLoss|BCEWithLogitsLoss|NLLLoss|KLDivLoss|cross_entropy|nll_loss|kl_div"
    r"|binary_cross_entropy_with_logits)"
)
"""Loss functions of PyTorch's that take no probabilities."""
SHARES = re.compile(r"torch\.nn\.(functional\.)?(NLLLoss|BCELoss|nll_loss|binary_cross_entropy)")
"""Those that take probabilities, or their logarithms."""
TARGETS = re.compile(r"(^|[_.\['\"])(targets?|labels?|gt|truth|tgt|trg|y|ys|y_true)(_\w+)?(['\"]\])?$", re.I)
"""Names of what a prediction is compared with."""


def forward(engine: Engine, node: ast.Call, model: Value, args: list[Value], named: Iterable[Value] = ()) -> Value:
    """The result of a forward pass; named: keyword arguments."""
    event = engine.emit("forward", node, model, wrapped=model.wrapped, casts=engine.module.casts)
    add_sync_flag(event)
    facts = provenance(engine, node, [*args, *named])
    if records(engine) is not False:
        facts["traced"] = all(one.leaf is not None or is_traced(one) for one in (*args, *named))  # a leaf's graph ends
        facts["origins"] = (*facts["origins"], event)[-LONGEST:]
        facts["layers"] |= {model.root()}
    elif engine.depth:  # inside a network; elsewhere it may be called to look at what it says, or for a target
        facts["lost"] |= {(model.root(), node, engine.module.path)}
    made = tensor(
        roots=(roots_of(args) & engine.tokens) | {next(births)},
        source="model",
        forward=event,
        linear=True,
        chain=(*chained(args), event),
        range=value_ranges.of_model(model) or "output",
        **facts,
    )
    return divisible(node, made)


def chained(values: list[Value]) -> tuple[Event, ...]:
    """The forward passes that values come from."""
    return tuple(dict.fromkeys(e for v in values if v.kind == "tensor" for e in v.chain))[-8:]


def loss(
    engine: Engine,
    node: ast.Call,
    args: list[Value],
    reduction: object = "mean",
    ignoring: bool = False,
    maker: str = "",
    guessed: bool = False,
) -> Value:
    """The result of a loss function.

    ignoring: some targets are left out; maker: the function's dotted name; guessed: it may be a network.
    """
    reduction = "mean" if reduction == "batchmean" else reduction
    tensors = [v for a in args for v in members(a) if v.kind == "tensor"]
    made = tensor(
        roots=roots_of(tensors) | {next(births)},
        source="criterion",
        reduction=reduction,
        maker=maker,
        reduced=reduction == "sum",
        forward=next((v.forward for v in tensors if v.forward), None),
        chain=chained(tensors),
        inside=tuple(engine.regions),
        ignoring=ignoring and reduction == "mean",
        guessed=guessed,
        **(provenance(engine, node, predictions(args, maker)) if not guessed or records(engine) is False else {}),
    )
    first = args[0] if args else None
    raw = first is not None and SHARES.fullmatch(maker) and value_ranges.is_raw(first)
    if raw or (first is not None and LOGITS.fullmatch(maker) and value_ranges.is_share(first)):
        event = value_ranges.emit_unstable(engine, node, "input", *args[:1], given=first)
        made.roots = made.roots | value_ranges.tokens_of(event)
    made.roots = made.roots | bootstrapping.target(engine, node, maker, args)
    if not maker.startswith("torch.nn"):
        for value in tensors:
            if not value.scalar:
                made.pieces = made.pieces | take_apart(value)  # perhaps
    others = [v for v in args if v.kind == "unknown"]
    if others and not any("[" in v.name for v in others):  # a part of it is another in each iteration
        made.target = max(v.birth for v in others)
    if re.search(r"mse", maker, re.I):
        made.range = "square" if reduction == "none" else "error"
    return made


def predictions(args: list[Value], maker: str) -> list[Value]:
    """The arguments of a loss function without the second one, where that is data: classes, or called a target."""
    second = args[1] if len(args) > 1 else None
    if second is None:
        return args
    classes, named = CLASSES.search(maker), TARGETS.search(second.name)
    unknown = second.kind == "unknown" and all(v.kind == "unknown" for _, v in second.choice)
    if (unknown and (classes or named)) or (classes and named and not second.choice):
        return [args[0], *args[2:]]
    return args


def divisible(node: ast.Call, made: Value) -> Value:
    """A loss of unknown making that receives the number of items in the window: what divides it is not known."""
    names = [k.arg or "" for k in node.keywords]
    names += [dotted(a) for a in [*node.args[1:], *(k.value for k in node.keywords)]]
    if any(COUNTS.search(name) for name in names):
        made.reduction = "unknown"
    return made
