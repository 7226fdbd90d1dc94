"""The page of a study: its table, its figure, its claims and what was measured."""

from __future__ import annotations

import json
import math
import os
import platform
import statistics
from pathlib import Path

from lab import HERE, Study, judged
from runs import Runs


def number_text(value: float) -> str:
    return "-" if value is None or not math.isfinite(value) else f"{value:.3g}"


def table(study: Study, runs: Runs) -> list[str]:
    """A Markdown table: one row a setting, medians over its seeds."""
    groups: dict[tuple[str, ...], Runs] = {}
    for r in runs:
        groups.setdefault((r.sweep, *(r.overrides.get(k, "-") for k in study.by)), Runs()).append(r)
    several = len(study.sweeps) > 1
    head = [*(["sweep"] if several else []), *study.by, "verdicts", "final loss", "eval loss"]
    head += ["norm, median", "norm, largest", "clipped", "skipped", "first skipped"]
    rows = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for key, group in groups.items():
        first = [next((ln["attempt"] for ln in r.lines if ln.get("update/skipped")), math.nan) for r in group]
        cells = [
            number_text(group.median(lambda r: r.final)),
            number_text(group.median(lambda r: r.eval_loss)),
            number_text(group.median(lambda r: statistics.median(r.norms or [math.nan]))),
            number_text(group.median(lambda r: max(r.norms, default=math.nan))),
            f"{group.median(lambda r: (r.series('clip/fraction') or [0.0])[-1]):.0%}",
            number_text(group.median(lambda r: float(r.diagnosis.get("evidence", {}).get("skipped", 0)))),
            number_text(statistics.median(first)) if all(map(math.isfinite, first)) else "-",
        ]
        rows.append(
            "| "
            + " | ".join([*key[0 if several else 1 :], group.summary if group[0].applies else "does not apply", *cells])
            + " |"
        )
    return rows


COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's, which people tell apart who see colours differently."""


def draw(study: Study, runs: Runs, path: Path) -> None:
    """Curves of the first seed, one a setting."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    first = {}
    wanted = study.shown or (study.sweeps[0].name,)
    for r in (r for r in runs if r.sweep in wanted and r.applies):
        label = ", ".join([r.sweep] * (len(wanted) > 1) + [r.overrides[k] for k in study.by if k in r.overrides])
        first.setdefault((r.sweep, label), r)
    shown = list(first.items())[: len(COLOURS)]
    plt.rcParams["svg.hashsalt"] = "gradlab"
    figure, axes = plt.subplots(1, len(study.figure), figsize=(5 * len(study.figure), 3.4), squeeze=False)
    for axis, name in zip(axes[0], study.figure, strict=True):
        for i, ((_, label), r) in enumerate(shown):
            points = [(ln["attempt"], ln[name]) for ln in r.lines if name in ln and math.isfinite(ln[name])]
            if points:
                x, y = zip(*points, strict=True)
                style = ("-", "--", ":")[i % 3]
                axis.plot(x, y, style, color=COLOURS[i], linewidth=1.1, label=label, marker="." * (len(x) < 8))
        axis.set_xlabel("update")
        axis.set_ylabel(name)
        if all(line.get_ydata().min() > 0 for line in axis.lines):
            axis.set_yscale("log")
        axis.grid(alpha=0.3)
    axes[0][-1].legend(fontsize=8, frameon=False)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def machine() -> str:
    import torch

    threads = os.environ.get("OMP_NUM_THREADS", "1")
    where = torch.cuda.get_device_name() if torch.cuda.is_available() else f"{os.cpu_count()} CPU cores"
    python = platform.python_version()
    return f"{where}, OMP_NUM_THREADS={threads}, PyTorch {torch.__version__.split('+')[0]}, Python {python}"


def write(name: str, study: Study, runs: Runs) -> None:
    """experiments/<name>/: results.json, README.md and the figure."""
    folder = HERE / name
    claims = judged(study, runs)
    results = {"title": study.title, "machine": machine(), "claims": claims}
    (folder / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    if study.own is None:
        shown = [
            *table(study, runs),
            "",
            "Numbers are medians over the seeds; losses are those of the last 20 updates.",
        ]
        shown += ["", "![curves of the first seed](figure.png)"]
        draw(study, runs, folder / "figure.png")
    else:
        shown = study.own(runs, folder)
    lines = [f"# {name}: {study.title}", "", study.about.strip(), "", "```bash"]
    lines += [sweep.command for sweep in study.sweeps]
    lines += ["```", "", f"`make reproduce NAME={name}` runs this and writes this page. On {machine()}:", ""]
    lines += [*shown, ""]
    if claims:
        lines += ["| claim | source | here | measured |", "|---|---|---|---|"]
        lines += [f"| {c['claim']} | {c['source']} | **{c['verdict']}** | {c['measured']} |" for c in claims]
        lines.append("")
    if study.conclusion:
        lines += ["**Conclusion.** " + study.conclusion.strip(), ""]
    if study.tried:
        lines += ["**Tried, and not used.** " + study.tried.strip(), ""]
    (folder / "README.md").write_text("\n".join(lines))
