"""Changes of the data: samples that are left out, the size of a batch, what is paired with what, and its scale."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from gradlab.base.visible import several
from gradlab.config.schema import Config
from gradlab.diagnosis.advice.learning_rate import FAILED
from gradlab.diagnosis.rules.not_learning import FEW, PAIRS, RUNNING, TARGETS, UNLIKE
from gradlab.diagnosis.update_sizes import SMALL_UPDATE
from gradlab.diagnosis.wording import percent
from gradlab.remedies.evidence import Evidence
from gradlab.remedies.learning_rate import excess
from gradlab.remedies.proposal import Proposal, code, setting, structural
from gradlab.update.policy_gradient import PolicyGradient

USUAL_BATCH = 32
"""Samples of which batch norm's means and spreads are steady."""
RARE = 0.01
"""Share of windows without a target that is no matter."""
NORMALISED = "subtract the mean of the inputs, feature by feature, and divide by their spread"
BELONG = "check that inputs and targets belong together (no shuffle or shift of one alone)"
BY_SAMPLES = ("bad_batch", "nan_input", "nan_loss", "nan_forward", "nan_gradient")
"""Findings that name samples of the training set."""


def samples(e: Evidence, c: Config) -> Iterator[Proposal]:
    """Samples that did the damage are left out, besides those that were."""
    found = ((code, e.found.get(code, {}).get("samples")) for code in BY_SAMPLES)
    by, indices = next(((by, sorted(map(int, samples))) for by, samples in found if samples), ("", []))
    if by == "bad_batch" and e.found[by].get("steep"):  # more samples than these would stand out, one after the other
        lines = "bound what a single sample can add: an eps in what it divides by, a clamp, or a robust loss"
        yield code("loss", lines, "ordinary samples have losses or gradients far above those of the others")
    elif indices:
        shown, many = several(indices, 5), len(indices) > 1
        out = (f"stand{s} out, measured with the initial weights" for s in ("s", ""))
        does = {"bad_batch": (*out,), "nan_input": ("is not finite", "are not finite")}
        alone = ("fails by itself with the initial weights", "fail by themselves with the initial weights")
        what = does.get(by, alone)[many]
        why = f"sample{'s' * many} {shown} of the training set {what}"
        yield setting("data.without", why, {"data.without": sorted({*c.data.without, *indices})})
        what = f"samples {shown} of the training set; drop or repair them"
        if len(indices) == 1:
            what = f"sample {shown} of the training set; drop or repair it"
        yield code("data", f"look at {what}", why)


def targets(e: Evidence, c: Config) -> Iterator[Proposal]:
    """What the inputs are paired with, where that may be wrong; of a policy, that has none, nothing."""
    found = e.found.get("not_learning") or {}
    known = ("zero", "slow", "eps", "times", "output_bound")
    if any(map(found.get, known)):  # the data are not what is measured to be wrong, or not yet
        return
    if isinstance(c.loss, PolicyGradient):
        return
    if (same := found.get("same")) is not None:
        where = f"the forward pass before {same}" if same else "the forward pass"
        yield code(
            "forward pass",
            f"look at {where}: a mask, an index, a mean over the wrong dimension",
            "nothing of a sample's inputs gets as far",
        )
        return
    if part := found.get("dropout"):
        name = found.get("dropout_module") or "the model"
        why = f"it drops {part:.0%} of what goes in; half at most is usual"
        yield code("forward pass", f"lower the dropout of {name}", why)
    elif gap := found.get("training"):
        why = f"training losses are {gap:.2g} further above a constant answer's than the last evaluation"
        yield code("forward pass", "lower the dropout, or what else the model does in training alone", why)
    if e.may_be(TARGETS):
        lines = f"{BELONG}, and that outputs and targets have one shape in the loss"
        yield code("targets", lines, not_better(e, found))


def memorised(e: Evidence, c: Config) -> Iterator[Proposal]:
    """For each cause of evaluations that are no better while training losses are, in the order of these."""
    why = not_better(e, e.found.get("memorising", {}))
    fixes = {
        PAIRS: ("targets", BELONG),
        FEW: ("data", "train on more samples, or a smaller model"),
        RUNNING: ("forward pass", "evaluate the training data, too; give batch norm a larger momentum"),
        UNLIKE: ("data", "check that the data of training and evaluation are prepared alike: mean, spread, units"),
    }
    for cause in fixes if e.causes is None else e.causes:
        if cause == FEW:
            yield from structural("smaller_model")(e, c)
        if cause in fixes:
            yield code(*fixes[cause], why)


def not_better(e: Evidence, found: Mapping[str, Any]) -> str:
    """What was not learnt, and by how many updates."""
    ordinary = " of ordinary size" * (e.usual_ratio >= SMALL_UPDATE and excess(e) <= FAILED)
    better = "too little is learnt beyond a constant answer"
    best, constant = found.get("evaluation"), found.get("evaluation_constant", found.get("constant"))
    if best is not None and constant is not None and best >= constant:
        better = "no evaluation is better than a constant answer"
    elif "memorising" in e.found and best is not None:
        better = f"the best evaluation ({best:.4g}) is hardly better than that of a constant answer"
    elif "constant" not in found:
        better = "the loss is not better enough than at the beginning"
    return f"after {e.attempts} updates{ordinary} {better}"


def whole_batches(e: Evidence, c: Config) -> Iterator[Proposal]:
    """One large batch in place of many small ones, where batch norm has too few samples for a mean and a spread."""
    few = e.found.get(e.verdict, {}).get("batch_norm_samples")
    if few is None:
        return
    why = f"batch norm takes its mean and spread of {few:g} value{'s' * (few != 1)} of each channel at a time"
    steps = getattr(c.accumulation, "steps", 1)
    whole = c.data.batch_size * steps if steps > 1 else max(USUAL_BATCH, 2 * c.data.batch_size)
    made = {"data.batch_size": whole} | ({"accumulation.steps": 1} if steps > 1 else {})
    yield setting("data.batch_size", why, made)


def windows(e: Evidence, c: Config) -> Iterator[Proposal]:
    """Batches of so many samples that hardly one in a hundred has no target; in as many updates."""
    if 0 < e.empty < 1 and (times := math.ceil(math.log(RARE) / math.log(e.empty))) > 1:
        why = f"{percent(e.empty)} of the updates had no target: with {times} times as many samples one in a hundred"
        made = {"data.batch_size": c.data.batch_size * times, "trainer.epochs": c.trainer.epochs * times}
        yield setting("data.batch_size", why, made)
    yield code("data", "drop samples without a target that counts, or cut them later", "some windows hold no target")


def inputs(e: Evidence, c: Config) -> Iterator[Proposal]:
    if size := e.found.get(e.verdict, {}).get("input_size"):
        yield code("inputs", NORMALISED, f"the first layer is given up to {size:.2g} (the median of a batch)")


def rounded_inputs(e: Evidence, c: Config) -> Iterator[Proposal]:
    """Those that fp16 cannot hold."""
    if e.overflow is not None and e.overflow.of_data and e.overflow.output_max is not None:
        why = f"{e.overflow.module or 'the model'} is given up to {e.overflow.output_max:.2g}"
        yield code("inputs", NORMALISED, why)


def target_scale(e: Evidence, c: Config) -> Iterator[Proposal]:
    if size := e.found.get(e.verdict, {}).get("target_size"):
        what = "subtract the mean of the targets, and divide by their spread"
        why = f"they are of up to {size:.2g} (the median of a batch)"
        found = e.found[e.verdict]
        if e.verdict == "saturated_units" or "output_bound" in found:
            last = found.get("module") or "the last activation"
            what = f"scale the targets to what {last} can return, or leave {last} out"
        yield code("targets", what, why)
