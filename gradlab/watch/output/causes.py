"""Which findings of a diagnosis come of which mistakes in the loop."""

from __future__ import annotations

from gradlab.diagnosis.finding import Finding
from gradlab.watch.call_site import format_site
from gradlab.watch.faults import FaultRecord

OF_THE_LEVEL = {"diverged", "exploding"}
"""Findings about how far the loss has risen."""
NOT_FINITE = {"nan_loss", "nan_gradient"}
"""Findings whose cause is the operation that made the first such number, where it was seen."""
SCALE = {"scale_collapse", "scale_livelock", "overflow_fp16", "underflow_fp16", "nan_gradient"}
"""Findings of a loss scale that is not what the scaler takes it for."""
LARGE = OF_THE_LEVEL | NOT_FINITE | {"nan_forward", "nan_parameter", "unbounded_loss", "update_too_large", "bad_batch"}
LARGE |= {"overflow_fp16", "scale_collapse", "dead_units", "saturated_units", "stalled", "not_learning"}
"""Findings of steps that are too large, or go another way than the loss."""
SMALL = {"not_learning", "stalled", "vanishing", "zero_gradient", "broken_graph", "underflow_fp16", "updates_lost"}
SMALL |= {"overclipped", "dominant_layer"}
"""Findings of gradients of which little or nothing reaches the weights."""

LEADS_TO = {
    **dict.fromkeys(
        ("accumulation-unscaled", "zero-grad-missing", "backward-twice", "weights-in-two-optimizers"), LARGE
    ),
    **dict.fromkeys(("clip-after-step", "clip-before-backward", "clip-elsewhere", "step-past-scaler"), LARGE),
    **dict.fromkeys(("loss-divided-twice", "zero-grad-in-window", "zero-before-step", "clip-before-unscale"), SMALL),
    **dict.fromkeys(("unscale-twice", "loss-not-scaled", "step-without-gradient", "weights-made-anew"), SMALL),
    **dict.fromkeys(("update-missing", "live-lock"), SCALE),
    **dict.fromkeys(("loss-scaled-twice", "update-every-micro-batch"), LARGE | SCALE),
    **dict.fromkeys(("clip-every-micro-batch", "unscale-every-micro-batch", "gradient-of-another-loss"), LARGE | SMALL),
    **dict.fromkeys(("no-sync-on-the-last", "raw-module-called", "remainder-unsynchronised"), LARGE | SMALL),
    "advantage-not-detached": LARGE,
    "loss-broadcast": {"not_learning", "stalled"},
    "padding-mask-inverted": {"not_learning", "stalled", "nan_forward", *NOT_FINITE},
}
"""Error -> the findings that it can lead to."""
OF_WARNINGS = {
    "training-in-eval": {"vanishing", "exploding", "dead_units", "saturated_units", "not_learning", "stalled"},
    "weights-without-optimizer": {"broken_graph", "not_learning"},
    "target-never-updated": {"not_learning"},
    "learning-rate-far-lower": {"not_learning", "stalled", "updates_lost"},
}
"""The same of warnings, beside which a verdict stays."""


def cause_of(verdict: str, faults: list[FaultRecord]) -> FaultRecord | None:
    """A warning that the verdict may be a consequence of; errors come before a verdict in any case."""
    return next((record for record in faults if verdict in OF_WARNINGS.get(record.name, ())), None)


def explain(finding: Finding, faults: list[FaultRecord]) -> None:
    """Name the mistakes that were seen in the loop, and that can lead to it, as its first causes."""
    for record in sorted(faults, key=lambda each: each.name != "not-finite"):
        if record.name == "not-finite" and finding.code in NOT_FINITE:
            finding.causes = [f"{record.detail}, at {format_site(record.site)}"]
        elif record.name == "graph-cut" and finding.code in OF_THE_LEVEL:
            finding.causes.insert(0, "a term of the loss that nothing trains")
        elif finding.severity == "critical" and finding.code in LEADS_TO.get(record.name, ()):
            finding.causes.insert(0, f"{record.code} at {format_site(record.site)}")
