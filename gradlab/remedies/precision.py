"""Changes of the precision and of its loss scale, from overflows and skipped updates."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from gradlab.config.schema import Config
from gradlab.diagnosis.replay.overflow import RESULT
from gradlab.diagnosis.rules.nonfinite import LARGEST_FP16
from gradlab.diagnosis.wording import percent
from gradlab.remedies.evidence import Evidence
from gradlab.remedies.proposal import Proposal, named, setting


def wider(e: Evidence, c: Config) -> Iterator[Proposal]:
    """bf16 where fp16's range is what is missing."""
    if not c.precision.half:
        return
    o = e.overflow
    if o is not None and o.output_max is not None and math.isfinite(o.output_max):
        module = "what comes before " * (o.phase == "between") + (o.module or "the model")
        scaled = "the backward pass" + ", the loss scale included," * c.precision.scaled
        what = module if o.phase in ("forward", "between") else scaled
        made = f"{what} computes {o.output_max:.3g}"
        if o.phase == "forward" and o.rounded not in (None, RESULT):  # it is not what the module computes
            made = f"the {o.rounded} of {what} reaches {o.output_max:.3g}"
        why = f"{made}: fp16 ends at 65504, bf16 where fp32 does"
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
        if flushed := e.found.get("underflow_fp16", {}).get("flushed", 0.0):
            yield named("loss_scaling", f"{percent(flushed)} of the gradient is lost")
        return
    default = type(p)
    if p.min_scale > default.min_scale and e.skipped < 20:
        why = f"the run ends below a scale of {p.min_scale:g}, after {e.skipped} skipped updates alone"
        yield setting("precision.min_scale", why, {"precision.min_scale": default.min_scale})
    if p.init_scale < default.init_scale and "underflow_fp16" in e.found:
        why = f"gradients are flushed to zero at a scale of {p.init_scale:g}"
        yield setting("precision.init_scale", why, {"precision.init_scale": default.init_scale})
    computed = e.overflow.output_max if e.overflow is not None and e.overflow.phase == "backward" else None
    if p.growth_factor == 1 or p.backoff_factor == 1:
        yield setting(
            "precision.backoff_factor",
            f"a scale that does not move ({p.growth_factor:g}, {p.backoff_factor:g}) cannot find its place",
            {"precision.growth_factor": default.growth_factor, "precision.backoff_factor": default.backoff_factor},
        )
    elif e.verdict == "scale_livelock" and (p.backoff_factor > default.backoff_factor):
        why = f"each skipped update leaves {p.backoff_factor:g} of a scale that began at {p.init_scale:g}"
        smaller = {"precision.init_scale": min(p.init_scale, default.init_scale)}
        yield setting("precision.init_scale", why, {**smaller, "precision.backoff_factor": default.backoff_factor})
    elif e.failed_at == 1 and computed and default.init_scale < p.init_scale and computed / p.init_scale < LARGEST_FP16:
        why = f"the loss is scaled by {p.init_scale:g} at first, and the backward pass computes {computed:.3g}"
        yield setting("precision.init_scale", why, {"precision.init_scale": default.init_scale})
