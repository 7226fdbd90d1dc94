"""What to change, from what was measured: pure functions of a run's evidence and its configuration.

`LIKELY` names the makers of each verdict, the likeliest to cure first; `WIDER` those that a search may try besides. A
maker yields nothing where its measurement is missing or says that it is not the cause.
"""

from __future__ import annotations

from collections.abc import Iterator

from gradlab.config.schema import Config
from gradlab.diagnosis.update_sizes import LARGE_UPDATE
from gradlab.remedies.clipping import clip_norm, clip_per_layer, looser_clip
from gradlab.remedies.data import (
    inputs,
    memorised,
    rounded_inputs,
    samples,
    target_scale,
    targets,
    whole_batches,
    windows,
)
from gradlab.remedies.evidence import Evidence
from gradlab.remedies.learning_rate import (
    TOO_FAR,
    adaptive,
    beyond_rates,
    excess,
    from_afar,
    higher_rate,
    less_momentum,
    lower_rate,
    lower_rates,
    mean_of_samples,
    moved,
    no_schedule,
    optimizers,
    other_rates,
    other_warmup,
    rate,
    rate_of_units,
    shorter_warmup,
    smaller_eps,
    too_slow,
    uneven,
    unmeasured_rate,
    usual_betas,
    usual_rate,
    warmup,
)
from gradlab.remedies.model_and_loss import (
    bounded,
    cut,
    decay,
    defaults,
    graph,
    initial_biases,
    initial_sizes,
    logits,
    longer,
    no_noise,
    pitfall,
    stable_loss,
    terms,
    units,
)
from gradlab.remedies.own_code import can_change
from gradlab.remedies.precision import full, loss_scale, wider
from gradlab.remedies.proposal import Maker, Proposal, code, structural
from gradlab.remedies.vanishing import vanishing
from gradlab.update.sgd import SGD

AT_ONCE = 1e3
"""Times the usual size of updates up to which a lower rate comes first, where an explosion began at once."""


OF_DEAD_UNITS = (
    *(initial_biases, initial_sizes, mean_of_samples, rate_of_units, structural("gelu", "he_init"), adaptive, units),
    unmeasured_rate,
)


def smaller_start(e: Evidence, c: Config) -> Iterator[Proposal]:
    """Where no rate in use makes updates usual, and neither weights nor data are off by themselves."""
    found = e.found.get(e.verdict, {})
    named = any(initial_sizes(e, c)) or "input_size" in found or "target_size" in found
    if beyond_rates(e, c) and not named:
        yield code("scale", "begin with smaller weights, inputs or targets", moved(e, c))


def exploding(e: Evidence, c: Config) -> Iterator[Proposal]:
    """Initial weights, the rate or the gradient: whichever is out of the usual comes first.

    The rate, where updates were too large before any norm was usual, by no more than a rate may be lowered.
    """
    halved = "relu" in (getattr(c.model, name, "") for name in ("activation", "nonlinearity"))  # whatever weights keep
    at_once = not e.steady and 1.5 < excess(e) <= AT_ONCE
    by_rate = at_once or c.optimizer.lr > usual_rate(c) or not isinstance(c.optimizer, SGD)
    first = [lower_rate, clip_norm] if by_rate else []
    for maker in [
        samples,
        initial_sizes,
        mean_of_samples,
        less_momentum,
        *first,
        clip_norm,
        lower_rates,
        smaller_start,
        warmup,
    ]:
        yield from maker(e, c)
    yield from structural("pre_norm", "layer_norm", *(() if halved else ("orthogonal_init",)), "gated")(e, c)


def not_learning(e: Evidence, c: Config) -> Iterator[Proposal]:
    """Clipping, the rate in either direction, units; then what is not in the configuration.

    The rate comes last where some of the training data is learnt with it, or it was only too high for a while.
    """
    found = e.found.get("not_learning", {})
    if found.get("weights_of_zero"):  # no rate helps these
        yield from initial_sizes(e, c)
        return
    large = max(e.usual_ratio, e.largest_ratio / 10) > LARGE_UPDATE and "times" not in found
    lower, late = [lower_rate] if large or found.get("taken") else [], not large or found.get("some")
    for maker in (
        *([graph] if found.get("zero") else []),
        shorter_warmup,
        no_schedule,
        looser_clip,
        initial_sizes,
        from_afar,
        smaller_eps,
        higher_rate,
        too_slow,
        *([] if late else lower),
        loss_scale,
        *([adaptive] if uneven(e) else []),
        units,
        targets,
        *(lower if late else []),
    ):
        yield from maker(e, c)


def nan(e: Evidence, c: Config) -> Iterator[Proposal]:
    """A loss or a gradient that is not finite: the operation and the samples; the rate where updates were large.

    Samples that fail with the initial weights are not the updates' fault.
    """
    o, own = e.overflow, not hasattr(c.loss, "stable")
    makers = [samples, stable_loss] if own else [stable_loss, samples]
    if e.found.get(e.verdict, {}).get("samples"):
        for maker in (*makers, wider):
            yield from maker(e, c)
        return
    if o is not None and o.phase == "forward" and own:
        makers.append(wider)
    if o is not None and (o.by_zero or (o.undefined and o.derivative)) and not excess(e) > TOO_FAR:
        yield from stable_loss(e, c)  # of a number at which it has no result or derivative, whatever the rate
        yield from wider(e, c)
        return
    if excess(e) > 3 and own:
        makers.append(lower_rate)
    if e.failed_at == 1 and o is not None and not o.undefined:  # of numbers that no update had made large
        makers = [initial_sizes, *makers]
    for maker in (*makers, loss_scale, wider, lower_rates, clip_norm, warmup):
        yield from maker(e, c)


def zero_gradient(e: Evidence, c: Config) -> Iterator[Proposal]:
    """Of a gradient that never was there the rate is no matter, nor are units that are alive."""
    found = e.found.get(e.verdict, {})
    no_matter = found.get("cut") or found.get("zero") or e.weights == 0
    for maker in (cut,) if no_matter else OF_DEAD_UNITS:
        yield from maker(e, c)


def collapse(e: Evidence, c: Config) -> Iterator[Proposal]:
    too_far = excess(e) > TOO_FAR  # no precision holds such updates
    of_data = [rounded_inputs] if e.overflow is not None and e.overflow.of_data else []  # a wider type only holds them
    for maker in (*of_data, loss_scale, *((lower_rates, wider) if too_far else (wider, lower_rates))):
        yield from maker(e, c)


def rounded(e: Evidence, c: Config) -> Iterator[Proposal]:
    """Weights of more digits, or updates that reach the next number of theirs."""
    why = "updates are smaller than the step from one number of the weights to the next"
    yield from full(e, c)
    yield from [*higher_rate(e, c)] or [rate(e, c, 10.0, f"{why}: ten times the rate")]
    yield code(
        "weights", "keep the weights in fp32, without .bfloat16() or .half(), and compute with precision=bf16", why
    )


def stalled(e: Evidence, c: Config) -> Iterator[Proposal]:
    """A higher rate, or what takes it away; where an update was far too large, what came after it was no matter."""
    if e.largest_ratio > TOO_FAR * LARGE_UPDATE:
        yield from lower_rates(e, c)
        return
    makers = (smaller_eps, shorter_warmup, no_schedule, looser_clip, higher_rate)
    found = [proposal for maker in makers for proposal in maker(e, c)]
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
    "diverged": (samples, mean_of_samples, less_momentum, lower_rates, smaller_start, clip_norm, warmup),
    "broken_graph": (graph,),
    "dead_units": OF_DEAD_UNITS,
    "zero_gradient": (zero_gradient,),
    "saturated_units": (
        *(initial_biases, initial_sizes, mean_of_samples, rate_of_units),
        *(structural("xavier_init", "relu+he_init", "layer_norm"), units, unmeasured_rate),
    ),
    "vanishing": (vanishing,),
    "underflow_fp16": (loss_scale, wider),
    "overclipped": (clip_per_layer, looser_clip),
    "dominant_layer": (clip_per_layer,),
    "update_too_large": (mean_of_samples, lower_rates, warmup),
    "stalled": (stalled,),
    "loss_spike_recovered": (samples, clip_norm, lower_rates, structural("cosine")),
    "not_learning": (not_learning,),
    "unlearnt_term": (terms,),
    "memorising": (memorised,),
    "unbounded_loss": (bounded,),
    "too_short": (shorter_warmup, longer),
    "bad_batch": (samples, clip_norm),
    "updates_lost": (rounded,),
}
"""Makers by verdict, in the order in which to try what they make."""

WIDER: tuple[Maker, ...] = (
    *(pitfall, looser_clip, loss_scale, higher_rate, lower_rate, clip_norm, other_warmup, defaults, other_rates, full),
    *(optimizers, structural("layer_norm", "he_init", "residual")),
)
"""What a search tries after them."""


def proposals(e: Evidence, c: Config, search: bool = False) -> list[Proposal]:
    """The changes to try, the likeliest first; a pitfall that was switched on before all. search: the wider list."""
    found = e.found.get(e.verdict, {})
    of_scale = e.verdict in ("saturated_units", "dead_units") and ("input_size" in found or "target_size" in found)
    of_scale |= "output_bound" in found
    noise = e.verdict == "vanishing" and "batch_norm_samples" in found  # is all that early layers had at first
    explained = "weights_last" in found or "probabilities" in found or of_scale or noise
    likely = () if explained else LIKELY.get(e.verdict, ())
    makers = (
        pitfall,
        no_noise,
        usual_betas,
        decay,
        logits,
        inputs,
        target_scale,
        whole_batches,
        *likely,
        *(WIDER if search else ()),
    )
    made = (proposal for maker in makers for proposal in maker(e, c))
    fits = (each for each in made if not (e.lowered and raises(each, c)))
    return [each for each in fits if each.remedy is not None or can_change(each.name, c)]


def raises(proposal: Proposal, c: Config) -> bool:
    """Whether it makes the learning rate higher, by which fp16 overflows sooner."""
    alone = proposal.remedy is not None and set(proposal.remedy.set) == {"optimizer.lr"}
    return alone and proposal.remedy.set["optimizer.lr"] > c.optimizer.lr  # type: ignore[union-attr]
