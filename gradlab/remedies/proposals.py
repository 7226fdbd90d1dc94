"""What to change, from what was measured: pure functions of a run's evidence and its configuration.

`LIKELY` names the makers of each verdict, the likeliest to cure first; `WIDER` those that a search may try besides. A
maker yields nothing where its measurement is missing or says that it is not the cause.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator
from dataclasses import MISSING, dataclass, fields, replace
from typing import Any

from gradlab.config.remedy import shipped
from gradlab.config.remedy_option import Remedy
from gradlab.config.schema import Config
from gradlab.diagnosis.advice.learning_rate import TYPICAL_RATIO
from gradlab.diagnosis.advice.line import two_digits
from gradlab.diagnosis.advice.max_norm import outlier_fence
from gradlab.remedies.evidence import Evidence
from gradlab.update.clip import NoClip
from gradlab.update.optimizer import SGD
from gradlab.update.schedule import Constant

LARGE_RATIO = 1e-2
"""The largest update that is usual, over the weights: PyTorch's own initial weights under Adam at its usual rate."""
SMALL_RATIO = 1e-4
"""Updates below it hardly train."""
RECORDS = 3
"""Updates whose size must have been measured for a middle."""
FAR = 10.0
"""Times the usual size beyond which updates are the cause, whatever else is seen."""
LEAST = 1e-3
"""A rate is not lowered by more in one step: where updates are larger still, it is the gradient."""
ROOM = 2 / 3
"""Of the rate with which a run would have come to its end in the same time to the overflow."""
SIZES = (0.2, 4.0)
"""Initial sizes (`Evidence.sizes`) outside of which a layer stretches or shrinks what passes it."""
MANY = 5
"""Layers over which a factor each adds up."""
STABLE = {
    "log": "log(x.clamp(min=tiny)); of a softmax log_softmax, of a sigmoid logsigmoid, or a loss that takes logits",
    "log2": "log2(x.clamp(min=tiny))",
    "log10": "log10(x.clamp(min=tiny))",
    "exp": "subtract the maximum first (logsumexp, softmax), or bound its argument: x.clamp(max=80), softplus",
    "sqrt": "sqrt(x.clamp(min=0) + eps): below 0 it is NaN, and at 0 its slope is infinite",
    "rsqrt": "rsqrt(x + eps)",
    "div": "divide by x.clamp(min=eps), or by where(x.abs() < eps, eps, x)",
    "reciprocal": "1 / x.clamp(min=eps)",
    "pow": "bound the base away from 0, or take log1p",
    "norm": "(x.square().sum() + eps).sqrt(): the slope of a norm at 0 is NaN",
    "linalg_vector_norm": "(x.square().sum() + eps).sqrt(): the slope of a norm at 0 is NaN",
    "_softmax": "leave one position of each row unmasked, or mask with a large negative number instead of -inf",
    "softmax": "leave one position of each row unmasked, or mask with a large negative number instead of -inf",
    "acos": "acos(x.clamp(-1 + eps, 1 - eps))",
    "asin": "asin(x.clamp(-1 + eps, 1 - eps))",
    "atanh": "atanh(x.clamp(-1 + eps, 1 - eps))",
    "std": "sqrt(var + eps): the slope of a standard deviation of 0 is NaN",
}
"""Operation -> its stable form."""


@dataclass(frozen=True)
class Proposal:
    """One change, with the measurement that it rests on."""

    name: str
    """The shipped remedy's name (a plus combines), or the field that it sets."""
    remedy: Remedy | None
    """None where it is in the user's own code."""
    why: str
    lines: str = ""
    """What to change in the user's own code."""
    shipped: bool = False
    """Whether +remedy=NAME is the same."""


Maker = Callable[[Evidence, Config], Iterator[Proposal]]


def values(name: str, why: str, **given: Any) -> Proposal:
    """Fields that are set: `clip__max_norm` stands for clip.max_norm."""
    return Proposal(name, Remedy(why, {key.replace("__", "."): value for key, value in given.items()}), why)


def named(name: str, because: str = "") -> Proposal:
    """A shipped remedy, or several with a plus, as one change."""
    parts = [shipped(part) for part in name.split("+")]
    made = Remedy(
        "", {k: v for p in parts for k, v in p.set.items()}, {k: v for p in parts for k, v in p.multiply.items()}
    )
    return Proposal(name, made, "; ".join(filter(None, (because, *(p.why for p in parts)))), shipped=True)


def code(name: str, lines: str, why: str) -> Proposal:
    return Proposal(name, None, why, lines)


def structural(*names: str) -> Maker:
    """Shipped remedies that change a model of gradlab's own."""

    def make(e: Evidence, c: Config) -> Iterator[Proposal]:
        yield from (named(name) for name in names)

    return make


# --- the learning rate ------------------------------------------------------------------------------------------------


def usual_rate(c: Config) -> float:
    """The default of the optimizer."""
    return float(type(c.optimizer).lr)


def excess(e: Evidence) -> float:
    """How many times larger than usual updates are: at most TYPICAL_RATIO in the middle, LARGE_RATIO at the most."""
    middle = e.usual_ratio / TYPICAL_RATIO if len(e.ratios) >= RECORDS else 0.0
    return max(middle, e.largest_ratio / LARGE_RATIO) if e.ratios else math.nan


def rate(e: Evidence, c: Config, factor: float, why: str) -> Proposal:
    return values("optimizer.lr", why, optimizer__lr=two_digits(c.optimizer.lr * factor, up=False))


def lower_rate(e: Evidence, c: Config) -> Iterator[Proposal]:
    """The rate whose updates are of the usual size; a run that overflowed late: the rate that would last to its end."""
    if e.failed_at and 20 <= e.failed_at < e.planned and e.overflow is not None and e.overflow.phase == "forward":
        lasts = e.failed_at / e.planned * ROOM
        why = f"it overflowed at update {e.failed_at} of {e.planned}, and the time to that goes as 1 / the rate"
        yield rate(e, c, lasts, why)
    elif (over := excess(e)) > 1.5:
        at = f"an update moves the weights by {e.usual_ratio:.2g} of their norm, at most {e.largest_ratio:.2g}"
        usual = f"{TYPICAL_RATIO:g} in the middle and {LARGE_RATIO:g} at the most are usual"
        yield rate(e, c, max(1 / over, LEAST), f"{at}; {usual}")


def lower_rates(e: Evidence, c: Config) -> Iterator[Proposal]:
    """As `lower_rate`; without a measurement that says how far, a tenth."""
    found = list(lower_rate(e, c))
    unsaid = "the sizes of the updates do not say how far to lower the rate: a tenth of it"
    yield from found or [rate(e, c, 0.1, unsaid)]


def higher_rate(e: Evidence, c: Config) -> Iterator[Proposal]:
    """Never where clipping is what makes updates small."""
    if 0 < e.usual_ratio < SMALL_RATIO and not e.coefficient < 0.5:
        why = (
            f"an update moves the weights by {e.usual_ratio:.2g} of their norm: this rate makes that {TYPICAL_RATIO:g}"
        )
        yield rate(e, c, TYPICAL_RATIO / e.usual_ratio, why)


def other_rates(e: Evidence, c: Config) -> Iterator[Proposal]:
    for factor, word in ((0.1, "a tenth of the rate"), (10.0, "ten times the rate")):
        yield rate(e, c, factor, word)
    if c.optimizer.lr != usual_rate(c):
        yield values("optimizer.lr", f"the optimizer's default; it was {c.optimizer.lr:g}", optimizer__lr=usual_rate(c))


def warmup(e: Evidence, c: Config) -> Iterator[Proposal]:
    """Over a tenth of the run."""
    updates = max(10, e.planned // 10)
    first = f"the first update moves the weights by {e.ratios[0]:.2g} of their norm" if e.ratios else ""
    why = ": ".join(filter(None, (first, "a tenth of the run to reach the rate")))
    if isinstance(c.schedule, Constant):
        yield values("schedule=warmup", why, schedule="warmup", schedule__warmup=updates)
    elif getattr(c.schedule, "warmup", updates) < updates:
        yield values("schedule.warmup", why, schedule__warmup=updates)


def optimizers(e: Evidence, c: Config) -> Iterator[Proposal]:
    yield named("adam" if isinstance(c.optimizer, SGD) else "sgd")


# --- clipping ---------------------------------------------------------------------------------------------------------


def clip_norm(e: Evidence, c: Config) -> Iterator[Proposal]:
    """At the outliers of the steady norms; without any, where a clipped update of SGD has the usual size."""
    bound = math.nan
    if e.steady:
        bound = outlier_fence(e.steady)
        why = f"the gradient's norm is usually {e.usual_norm:.2g}, and beyond this an outlier"
    elif isinstance(c.optimizer, SGD) and e.weights > 0:
        bound = TYPICAL_RATIO * e.weights * (1 - c.optimizer.momentum) / c.optimizer.lr
        why = f"with it no update moves the weights by more than {TYPICAL_RATIO:g} of their norm, {e.weights:.2g}"
    elif e.norms:
        bound, why = min(e.norms), f"the smallest gradient norm before the failure was {min(e.norms):.2g}"
    if 0 < bound < math.inf:
        yield values("clip=norm", why, clip="norm", clip__max_norm=two_digits(bound))


def looser_clip(e: Evidence, c: Config) -> Iterator[Proposal]:
    """The bound at which usual gradients pass."""
    if isinstance(c.clip, NoClip) or not 0 < e.coefficient < 0.5:
        return
    left = f"clipping leaves {e.coefficient:.2g} of the gradient, whose norm is usually {e.usual_norm:.2g}"
    if (name := type(c.clip).threshold) == "max_norm" and e.norms:
        yield values(
            "clip.max_norm", left, clip__max_norm=two_digits(min(outlier_fence(e.steady or e.norms), 10 * e.usual_norm))
        )
    else:
        for name in ("max_value", "factor"):
            if hasattr(c.clip, name):
                bound = two_digits(getattr(c.clip, name) / e.coefficient)
                yield Proposal(f"clip.{name}", Remedy(left, {f"clip.{name}": bound}), left)
    yield values("clip=none", left, clip="none")


def clip_per_layer(e: Evidence, c: Config) -> Iterator[Proposal]:
    found = e.found.get("dominant_layer", {})
    bound = getattr(c.clip, "max_norm", 1.0)
    why = f"the norm is that of {found.get('layer')}, and clipping the whole leaves the others nothing"
    yield values("clip=per_layer", why, clip="per_layer", clip__max_norm=bound)


# --- precision --------------------------------------------------------------------------------------------------------


def wider(e: Evidence, c: Config) -> Iterator[Proposal]:
    """bf16 where fp16's range is what is missing."""
    if not c.precision.half:
        return
    o = e.overflow
    if o is not None and o.output_max is not None and math.isfinite(o.output_max):
        why = f"{o.module or 'the model'} computes {o.output_max:.3g}: fp16 ends at 65504, bf16 where fp32 does"
        yield replace(named("bf16"), why=why)
    else:
        yield named("bf16")


def full(e: Evidence, c: Config) -> Iterator[Proposal]:
    if type(c.precision).__name__ != "FP32":
        yield named("fp32")


def loss_scale(e: Evidence, c: Config) -> Iterator[Proposal]:
    """The loss scale's own settings, where they are what ends or starves the run."""
    p: Any = c.precision
    if not p.half:
        return
    if not p.enabled:
        yield named(
            "loss_scaling", f"{e.found.get('underflow_fp16', {}).get('flushed', 0):.0%} of the gradient is lost"
        )
        return
    default = type(p)
    if p.min_scale > default.min_scale and e.skipped < 20:
        why = f"the run ends below a scale of {p.min_scale:g}, after {e.skipped} skipped updates alone"
        yield values("precision.min_scale", why, precision__min_scale=default.min_scale)
    if p.init_scale < default.init_scale and "underflow_fp16" in e.found:
        why = f"gradients are flushed to zero at a scale of {p.init_scale:g}"
        yield values("precision.init_scale", why, precision__init_scale=default.init_scale)
    if p.growth_factor == 1 or p.backoff_factor == 1:
        yield values(
            "precision.backoff_factor",
            f"a scale that does not move ({p.growth_factor:g}, {p.backoff_factor:g}) cannot find its place",
            precision__growth_factor=default.growth_factor,
            precision__backoff_factor=default.backoff_factor,
        )


# --- the model, the loss, the data ------------------------------------------------------------------------------------


def initial_sizes(e: Evidence, c: Config) -> Iterator[Proposal]:
    """Weights that begin off by a factor: all of a deep model's, or one layer's among the others."""
    sizes = [s for s in e.sizes.values() if s > 0]
    if not sizes:
        return
    middle = statistics.median(sizes)
    odd = {n: s for n, s in e.sizes.items() if s == 0 or not 0.1 < s / middle < 10}
    if (len(sizes) >= MANY and not 0.3 < middle < 2) or not SIZES[0] < middle < SIZES[1]:
        said = f"weights begin at {middle:.2g} / sqrt(fan-in): each layer multiplies by that much"
        yield named("he_init", said)
        yield code("initial weights", f"scale the initial weights by {math.sqrt(2) / middle:.2g}", said)
    for name, size in list(odd.items())[:3]:
        factor = middle / size if size else math.inf
        said = f"{name} begins at {size:.2g} / sqrt(fan-in), the other layers at {middle:.2g}"
        yield code(
            "initial weights", f"scale the initial {name} by {factor:.2g}, or leave it as PyTorch makes it", said
        )


def stable_loss(e: Evidence, c: Config) -> Iterator[Proposal]:
    """The stable form of the operation that failed: of gradlab's loss a field, of the user's own code its lines."""
    o = e.overflow
    if hasattr(c.loss, "stable"):
        yield named("stable_loss", f"{o.operation} in the loss is what fails" if o and o.operation else "")
    if o is None or o.phase in ("parameters", "inputs", "targets"):
        return
    operation = o.derivative or o.operation or ""
    where = f"in {o.module} ({o.kind})" if o.phase != "loss" and o.module else "in the loss"
    form = STABLE.get(operation.strip("_")) or STABLE.get(operation)
    if form is not None:
        yield code("stable form", f"{operation.strip('_')} {where}: {form}", str(o))


def units(e: Evidence, c: Config) -> Iterator[Proposal]:
    """The activation of the layer whose units are dead or saturated."""
    for verdict, form in (
        ("dead_units", "GELU or a leaky ReLU"),
        ("saturated_units", "ReLU or GELU, or normalise before"),
    ):
        if (module := e.found.get(verdict, {}).get("module")) is not None:
            part = float(e.found[verdict].get("fraction", 1.0))
            yield code(
                "activation", f"{module}: {form}", f"{part:.0%} of its {'units' if 'dead' in verdict else 'outputs'}"
            )


def samples(e: Evidence, c: Config) -> Iterator[Proposal]:
    """Samples that did the damage are left out."""
    found = e.found.get("bad_batch") or e.found.get("nan_input") or {}
    indices = [
        int(i) for s in found.get("samples") or [] if (i := s["index"] if isinstance(s, dict) else s) is not None
    ]
    if indices:
        shown = ", ".join(map(str, indices[:5])) + f" and {len(indices) - 5} more" * (len(indices) > 5)
        why = f"sample{'s' * (len(indices) > 1)} {shown} of the training set did it"
        if not c.data.without:  # places are those of what was left
            yield values("data.without", why, data__without=sorted({*indices}))
        yield code("data", f"look at sample {shown} of the training set; drop or repair it", why)


def targets(e: Evidence, c: Config) -> Iterator[Proposal]:
    yield code(
        "targets",
        "check that inputs and targets belong together (no shuffle or shift of one alone), that inputs are of size 1, "
        "and that outputs and targets have one shape in the loss",
        f"after {e.attempts} updates of ordinary size the loss is no better than that of a constant answer",
    )


def bounded(e: Evidence, c: Config) -> Iterator[Proposal]:
    yield code("loss", "check the sign of the loss, and bound what it rewards", "the loss falls without bound")


def longer(e: Evidence, c: Config) -> Iterator[Proposal]:
    """A run of at least a hundred updates."""
    least = 100
    factor = math.ceil(least / max(e.attempts, 1))
    if factor > 1:
        why = f"{e.attempts} updates are too few to judge; this makes {least} or more"
        updates = {} if c.trainer.updates is None else {"trainer__updates": max(least, c.trainer.updates)}
        yield values("trainer.epochs", why, trainer__epochs=c.trainer.epochs * factor, **updates)


def graph(e: Evidence, c: Config) -> Iterator[Proposal]:
    names = ", ".join(e.found.get("broken_graph", {}).get("parameters", [])[:3])
    yield code("graph", f"look for detach(), .data, no_grad or NumPy between {names} and the loss", "no gradient ever")


def windows(e: Evidence, c: Config) -> Iterator[Proposal]:
    yield code("data", "drop samples without a target that counts, or cut them later", "some windows hold no target")


def decay(e: Evidence, c: Config) -> Iterator[Proposal]:
    """Weight decay that by itself moves the weights further than an update should, or that took them away."""
    part, found = c.optimizer.lr * c.optimizer.weight_decay, e.found.get("not_learning", {})
    why = ""
    if part > LARGE_RATIO:
        why = f"weight decay alone takes {part:.2g} of the weights at every update; {LARGE_RATIO:g} is a large update"
    elif "weights_last" in found:
        why = (
            f"weight decay took the weights from a norm of {found['weights_first']:.2g} to {found['weights_last']:.2g}"
        )
    if why:
        yield values("optimizer.weight_decay", why, optimizer__weight_decay=type(c.optimizer).weight_decay)


def pitfall(e: Evidence, c: Config) -> Iterator[Proposal]:
    if c.pitfall is not None:
        yield values("pitfall", "the right update in place of the wrong one", pitfall=None)


def defaults(e: Evidence, c: Config) -> Iterator[Proposal]:
    """Numbers of the update that are far from their defaults, each set back."""
    for group in ("optimizer", "precision", "clip", "schedule", "noise", "loss", "model"):
        option: Any = getattr(c, group)
        for f in fields(option):
            value = getattr(option, f.name)
            if f.name == "lr" or f.default is MISSING or value == f.default or (group == "model" and f.name != "gain"):
                continue
            if isinstance(value, (int, float)) and isinstance(f.default, (int, float)):
                name, why = f"{group}.{f.name}", f"its default; it was {value:g}"
                yield Proposal(name, Remedy(why, {name: f.default}), why)


# --- the order --------------------------------------------------------------------------------------------------------


def exploding(e: Evidence, c: Config) -> Iterator[Proposal]:
    """Initial weights, the rate or the gradient: whichever is out of the usual comes first."""
    first = [lower_rate, clip_norm] if c.optimizer.lr > usual_rate(c) or not isinstance(c.optimizer, SGD) else []
    for maker in [initial_sizes, *first, clip_norm, lower_rates, warmup]:
        yield from maker(e, c)
    yield from structural("pre_norm", "layer_norm", "orthogonal_init", "gated")(e, c)


def diverged(e: Evidence, c: Config) -> Iterator[Proposal]:
    for maker in (lower_rates, clip_norm, warmup):
        yield from maker(e, c)


def not_learning(e: Evidence, c: Config) -> Iterator[Proposal]:
    """Clipping, the rate in either direction, units; then what is not in the configuration."""
    for maker in (looser_clip, higher_rate, lower_rate, loss_scale, initial_sizes, units, targets):
        yield from maker(e, c)


def vanishing(e: Evidence, c: Config) -> Iterator[Proposal]:
    yield from initial_sizes(e, c)
    yield from structural("relu+he_init", "residual", "layer_norm", "batch_norm", "gated")(e, c)
    yield from lower_rate(e, c)
    yield code("depth", "add residual connections, or normalise each layer", "early layers get next to no gradient")


def nan(e: Evidence, c: Config) -> Iterator[Proposal]:
    """A loss or a gradient that is not finite: the operation first; the rate where updates were large before."""
    o = e.overflow
    by_the_update = excess(e) > 3 and not hasattr(c.loss, "stable")
    makers = [lower_rate if by_the_update else stable_loss, stable_loss, wider, samples, lower_rates, clip_norm, warmup]
    if o is not None and o.phase == "forward" and not hasattr(c.loss, "stable"):
        makers = [*([wider] if c.precision.half else []), *makers]
    for maker in makers:
        yield from maker(e, c)


def dead(e: Evidence, c: Config) -> Iterator[Proposal]:
    for maker in (lower_rate, initial_sizes, structural("gelu", "he_init"), units, lower_rates):
        yield from maker(e, c)


def saturated(e: Evidence, c: Config) -> Iterator[Proposal]:
    for maker in (
        lower_rate,
        initial_sizes,
        structural("xavier_init", "relu+he_init", "layer_norm"),
        units,
        lower_rates,
    ):
        yield from maker(e, c)


def collapse(e: Evidence, c: Config) -> Iterator[Proposal]:
    too_far = excess(e) > FAR  # no precision holds such updates
    for maker in (loss_scale, *((lower_rates, wider) if too_far else (wider, lower_rates))):
        yield from maker(e, c)


def too_large(e: Evidence, c: Config) -> Iterator[Proposal]:
    yield from lower_rates(e, c)
    yield from warmup(e, c)


def spike(e: Evidence, c: Config) -> Iterator[Proposal]:
    for maker in (samples, clip_norm, lower_rates):
        yield from maker(e, c)
    yield from structural("cosine")(e, c)


def underflow(e: Evidence, c: Config) -> Iterator[Proposal]:
    yield from loss_scale(e, c)
    yield from wider(e, c)


def stalled(e: Evidence, c: Config) -> Iterator[Proposal]:
    found = [*looser_clip(e, c), *higher_rate(e, c)]
    yield from found or [rate(e, c, 10.0, "the loss hardly moves: ten times the rate")]


LIKELY: dict[str, tuple[Maker, ...]] = {
    "nan_input": (samples,),
    "nan_parameter": (lower_rates, clip_norm),
    "empty_window": (windows,),
    "nan_loss": (nan,),
    "nan_forward": (nan,),
    "nan_gradient": (nan,),
    "scale_livelock": (loss_scale, wider, lower_rates),
    "scale_collapse": (collapse,),
    "exploding": (exploding,),
    "overflow_fp16": (collapse,),
    "diverged": (diverged,),
    "broken_graph": (graph,),
    "dead_units": (dead,),
    "zero_gradient": (dead,),
    "saturated_units": (saturated,),
    "vanishing": (vanishing,),
    "underflow_fp16": (underflow,),
    "overclipped": (looser_clip,),
    "dominant_layer": (clip_per_layer,),
    "update_too_large": (too_large,),
    "stalled": (stalled,),
    "loss_spike_recovered": (spike,),
    "not_learning": (not_learning,),
    "memorising": (structural("smaller_model"), targets),
    "unbounded_loss": (bounded,),
    "too_short": (longer,),
    "bad_batch": (samples, clip_norm),
    "updates_lost": (full, higher_rate),
}
"""Makers by verdict, in the order in which to try what they make."""

WIDER: tuple[Maker, ...] = (
    *(pitfall, looser_clip, loss_scale, higher_rate, lower_rate, clip_norm, warmup, defaults, other_rates, full),
    *(optimizers, structural("layer_norm", "he_init", "residual")),
)
"""What a search tries after them."""


def proposals(e: Evidence, c: Config, search: bool = False) -> list[Proposal]:
    """The changes to try, the likeliest first; a pitfall that was switched on before all. search: the wider list."""
    makers = (pitfall, decay, *LIKELY.get(e.verdict, ()), *(WIDER if search else ()))
    return [proposal for maker in makers for proposal in maker(e, c)]
