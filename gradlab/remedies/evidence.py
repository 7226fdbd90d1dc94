"""What remedies rest on: the numbers that a run measured before it failed, read once from its record."""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gradlab.base.json_lines import number
from gradlab.base.statistics import quantile
from gradlab.diagnosis.advice.max_norm import steady_norms
from gradlab.diagnosis.initial_sizes import initial_sizes
from gradlab.diagnosis.rules.terms import PREFIX
from gradlab.runs.advice_facts import before_failure, causes_of_verdict, failed_at
from gradlab.runs.record import RunRecord
from gradlab.update.layers import layers_of, norms_of

if TYPE_CHECKING:
    from gradlab.diagnosis.replay.overflow import Overflow

DAMAGE = ("bad_batch", "exploding", "loss_spike_recovered")
"""Findings after whose first update nothing is usual any more."""


@dataclass(frozen=True)
class Evidence:
    """A run in numbers. Ratios and norms are of applied updates before the failure; ratios are at the full rate."""

    verdict: str
    found: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """The evidence of each finding, by its code."""
    causes: Sequence[str] | None = None
    """Of the verdict, the likeliest first; None: not known."""
    attempts: int = 0
    planned: int = 0
    failed_at: int | None = None
    """The first update of the failure that ended the run."""
    ratios: Sequence[float] = ()
    """Norm of an update over that of the weights, where it is finite and not zero."""
    measured: int = 0
    """Updates of which it is known, finite or not."""
    rate: float = 1.0
    """The usual learning rate over the full one."""
    weights: float = math.nan
    """Norm of all weights at the first update."""
    norms: Sequence[float] = ()
    """Of the gradient before clipping."""
    until: int | None = None
    """The update before which these are; None: of the whole run."""
    peak: float = math.inf
    """The largest finite norm since then."""
    steady: Sequence[float] = ()
    """Those that show what is usual (see `steady_norms`); empty where too few do."""
    coefficient: float = 1.0
    """The usual part of the gradient that clipping leaves."""
    summed: bool = False
    """Whether the loss of a batch, or what the gradient is of, is the sum of its samples'."""
    lowered: bool = False
    """Whether fp16 overflowed late, at a loss scale that had long been right."""
    empty: float = 0.0
    """Share of the updates whose window held no target."""
    terms: Sequence[str] = ()
    """Names of the loss's."""
    skipped: int = 0
    streak: int = 0
    """Skipped updates at the end."""
    overflow: Overflow | None = None
    sizes: Mapping[str, float] = field(default_factory=dict)
    """Of each weight at the first update: standard deviation times the root of its fan-in; sqrt(2) is He's, 0.58
    PyTorch's own."""
    recurrent: frozenset[str] = frozenset()
    """Weights that a recurrent module applies to its own state, at every time step."""
    of_relus: frozenset[str] = frozenset()
    """Of these, whose state is what ReLUs leave of it."""
    biases: Mapping[str, float] = field(default_factory=dict)
    """Root mean square of each bias at the first update; PyTorch's own are below 1 / the root of the fan-in."""
    last_bias: str = ""
    """That of the layer that runs last."""
    faintest: float = math.inf
    """The gradient norm of the layer that gets least, usually or at first."""
    unclipped: float = 0.0
    """The largest of the ratios without clipping, of an optimizer whose steps are as large as the gradient."""

    @property
    def usual_ratio(self) -> float:
        return statistics.median(self.ratios) if self.ratios else math.nan

    @property
    def largest_ratio(self) -> float:
        return max(self.ratios, default=math.nan)

    def may_be(self, cause: str) -> bool:
        """Whether it is one of the causes, or these are not known."""
        return self.causes is None or cause in self.causes

    @property
    def usual_norm(self) -> float:
        return quantile(self.steady or self.norms, 0.5)


def evidence(run: RunRecord) -> Evidence:
    """The evidence in a run's folder; what was not measured stays empty."""
    lines = [line for line in before_failure(run) if not line.get("update/skipped")]
    rate = float((run.config.get("optimizer") or {}).get("lr") or math.nan)
    sound, damaged_at = before_damage(run, lines)
    norms = [line["grad/norm"] for line in sound if math.isfinite(line["grad/norm"]) and line["grad/norm"] > 0]
    at = failed_at(run)
    found = {f["code"]: number(f.get("evidence") or {}) for f in run.diagnosis.get("findings") or []}
    failed = at is not None or (run.verdict or "").startswith("nan_")
    if failed and run.updates and not math.isfinite(run.updates[0]["train/loss"]):
        at = 1  # by the initial weights
    at = 1 if found.get("overflow_fp16", {}).get("initial_overflows") else at
    applied = [line for line in run.updates if not line.get("update/skipped")]
    steady = steady_norms([line["grad/norm"] for line in sound], at is not None)
    coefficients = [c for line in lines if math.isfinite(c := line.get("clip/coefficient", 1.0))]
    rates = [line["lr"] / rate for line in run.updates if rate > 0 and "lr" in line]
    first = next((line for line in run.layer_records if "param/norm" in line), {})
    sizes, biases = initial_sizes(run.layer_header, first["param/norm"] if first.get("attempt") == 1 else [])
    streak = next((i for i, line in enumerate(reversed(run.updates)) if not line.get("update/skipped")), None)
    return Evidence(
        verdict=run.verdict or "",
        found=found,
        causes=causes_of_verdict(run),
        attempts=len(run.updates),
        planned=int(run.diagnosis.get("planned") or len(run.updates)),
        failed_at=at,
        ratios=[r for line in lines if (r := at_full_rate(line, rate)) > 0] or thrown(found),
        measured=sum(not math.isnan(line.get("update/ratio", math.nan)) for line in lines),
        rate=statistics.median(rates) if rates else 1.0,
        weights=next((line["param/norm"] for line in run.updates if "param/norm" in line), math.nan),
        norms=norms,
        until=damaged_at or at,
        peak=peak(run, damaged_at, found_at(run, ("nan_loss", "nan_forward"))),
        steady=[] if steady.why_not else steady.norms,
        coefficient=statistics.median(coefficients) if coefficients else 1.0,
        summed=bool((run.diagnosis.get("evidence") or {}).get("summed")),
        lowered="loss_scale_lowered_at" in (run.diagnosis.get("evidence") or {}),
        empty=sum(bool(line.get("update/empty")) for line in run.updates) / max(len(run.updates), 1),
        terms=[
            name.removeprefix(PREFIX) for name in (run.updates[0] if run.updates else {}) if name.startswith(PREFIX)
        ],
        skipped=len(run.updates) - len(applied),
        streak=len(run.updates) if streak is None else streak,
        overflow=run.first_overflow,
        sizes=sizes,
        recurrent=frozenset(recurrent_weights(sizes, run.layer_header["recurrent"])),
        of_relus=frozenset(recurrent_weights(sizes, run.layer_header["relus"])),
        biases=biases,
        last_bias=".".join([*run.layer_header["order"][-1:], "bias"]),
        faintest=faintest(run),
        unclipped=max(
            (at_full_rate(line, rate) / (line.get("clip/coefficient") or 1.0) for line in lines), default=0.0
        ),
    )


def thrown(found: Mapping[str, Mapping[str, Any]]) -> list[float]:
    """The update between two records of the weights alone that was found to have moved them by more than their norm."""
    largest = found.get("update_too_large", {}).get("largest", 0.0)
    return [largest] if largest > 1 else []


def faintest(run: RunRecord) -> float:
    """The usual gradient norm of the layer that gets least, of those that get any gradient; infinite: not known.

    Or that at first, if it is larger: updates may have taken the gradient away, which others would not have.
    """
    owners, norms = layers_of(run.layer_header["names"]), dict[str, list[float]]()
    for record in run.layer_records:
        for layer, norm in norms_of(*owners, record["grad/layer"]).items():
            norms.setdefault(layer, []).extend([norm] if norm is not None and math.isfinite(norm) else [])
    return min((max(each[0], statistics.median(each)) for each in norms.values() if each), default=math.inf)


def found_at(run: RunRecord, codes: Collection[str]) -> int | None:
    """The first update of findings."""
    began = [f.get("began") for f in run.diagnosis.get("findings") or [] if f["code"] in codes]
    return min((at for at in began if at is not None), default=None)


def peak(run: RunRecord, since: int | None, until: int | None) -> float:
    """The largest finite gradient norm from one update to another; no bound helps where one is not finite.

    until: what broke there was no matter of the gradients after it.
    """
    low, high = since or 0, until or math.inf
    norms = [line["grad/norm"] for line in run.updates if low <= line["attempt"] <= max(low, high)]
    return max(filter(math.isfinite, norms), default=0.0 if norms else math.inf)


def before_damage(run: RunRecord, lines: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], int | None]:
    """Those before the first update of such a finding, and that update; all, and None, where there are none."""
    first = found_at(run, DAMAGE)
    before = [line for line in lines if first is not None and line["attempt"] < first]
    return (before, first) if before else (lines, None)


def at_full_rate(line: Mapping[str, Any], rate: float) -> float:
    """What update/ratio would have been at `rate`, without the schedule's factor; 0 where it was not measured."""
    ratio, now = line.get("update/ratio", math.nan), line.get("lr", rate)
    full = ratio * rate / now if now and rate == rate else ratio
    return full if math.isfinite(full) else 0.0


def recurrent_weights(names: Iterable[str], recurrent: Sequence[str]) -> list[str]:
    """Those of a recurrent module that its own state is multiplied with, by PyTorch's name of them."""
    return [n for n in names if n.rpartition(".")[2].startswith("weight_hh") and n.rpartition(".")[0] in recurrent]
