"""Which curves of a run are drawn in a terminal, and their titles."""

from __future__ import annotations

import math

from gradlab.report.terminal.braille import Plot
from gradlab.runs.record import RunRecord


def plots(run: RunRecord) -> list[Plot]:
    """The charts of a run: what is the same all along is a line of its title."""
    updates = run.updates
    if not updates:
        return []
    xs = [line["attempt"] for line in updates]
    skipped = [line["attempt"] for line in updates if line["update/skipped"]]
    found = []
    clips = run.choices.get("clip", "none") != "none" or any(line.get("clip/coefficient", 1.0) < 1 for line in updates)
    norm = "gradient norm" + " before clipping" * clips
    for name, title in (("train/loss", "loss"), ("grad/norm", norm)):
        ys = [line[name] for line in updates]
        bad = [x for x, y in zip(xs, ys, strict=True) if not math.isfinite(y)]
        log = spread(ys)
        level = run.clip_threshold if name == "grad/norm" else None
        points = [(e["attempt"], e["eval/loss"]) for e in run.evaluations] if name == "train/loss" else []
        title_parts = [f"{title}: {last(ys)} at the end"] + ["log scale"] * log
        title_parts += [f"● evaluation, {points[-1][1]:.4g}"] if points else []
        title_parts += [f"╌ clipped beyond {level:g}"] if level is not None else []
        title_parts += [f"! not finite: {len(bad)} update{'s' * (len(bad) > 1)}"] * bool(bad)
        marks = {"x": skipped, "!": bad} if name == "grad/norm" else {"!": bad}
        title_parts += [f"x skipped: {len(skipped)}"] * bool(skipped and name == "grad/norm")
        found.append(Plot(", ".join(title_parts), xs, ys, log, level, points, marks))
    for name, title, base in (("amp/scale", "loss scale", 2.0), ("lr", "learning rate", 10.0)):
        ys = [line[name] for line in updates]
        if len(set(ys)) == 1:
            if name == "lr":
                found[-1].title += f"; learning rate {ys[0]:g} throughout"
            continue
        marks = {"x": skipped} if name == "amp/scale" else {}
        log = spread(ys)
        text = f"{title}: {last(ys)} at the end" + ", log scale" * log
        found.append(Plot(text, xs, ys, log, marks=marks, base=base if log else 10.0))
    return found


def last(ys: list[float]) -> str:
    return f"{ys[-1]:.4g}"


def spread(ys: list[float]) -> bool:
    """Whether a logarithmic scale shows more: all are positive, and the largest is ten times the least."""
    seen = [y for y in ys if math.isfinite(y)]
    return bool(seen) and min(seen) > 0 and max(seen) >= 10 * min(seen)
