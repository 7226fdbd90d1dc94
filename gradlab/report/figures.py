"""Figures of runs for papers: PNG and SVG, drawn by matplotlib only when they are asked for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gradlab.base.option import Invalid
from gradlab.base.plotting import pyplot, save
from gradlab.report.layers import by_layer
from gradlab.runs.record import RunRecord

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#666666")
DASHES = ("-", "--", ":")
WIDTH = 6.4
"""Inches."""
DPI = 250
"""Fine enough to be printed."""


def opened(path: Path) -> RunRecord:
    """The run in a folder. Raises `Invalid` where it cannot be read."""
    run = RunRecord(path)
    run.check("diagnosis.json", "metrics.jsonl", "layers.jsonl")
    return run


def column(run: RunRecord, name: str) -> np.ndarray:
    """(n,) of a metric; NaN where it was not measured."""
    return np.array([math.nan if line.get(name) is None else float(line[name]) for line in run.updates])


def of_run(path: Path) -> list[Path]:
    """figures/curves and, where layers were recorded, figures/gradient_flow; what was written."""
    run = opened(path)
    if not run.updates:
        raise Invalid("FOLDER", path, "has no update to draw")
    title = f"{run.name}: {run.verdict or 'no verdict'}"
    drawn = curves([run], [""], title, path / "figures" / "curves")
    return drawn + (flow(run, title, path / "figures" / "gradient_flow") if run.layer_records else [])


def of_several(paths: Sequence[Path], file: Path) -> list[Path]:
    """The curves of several runs over each other."""
    runs = [opened(path) for path in paths]
    names = [f"{i}: {run.name} ({run.verdict or 'no verdict'})" for i, run in enumerate(runs, 1)]
    return curves(runs, names, "", file)


def curves(runs: Sequence[RunRecord], names: Sequence[str], title: str, path: Path) -> list[Path]:
    """Loss, gradient norm, loss scale where there is one, and learning rate, one above the other."""
    scaled = any((column(run, "amp/scale") != 1).any() for run in runs)
    panels = [
        ("train/loss", "loss"),
        ("grad/norm", "gradient norm"),
        *[("amp/scale", "loss scale")] * scaled,
        ("lr", "lr"),
    ]
    figure, axes = pyplot().subplots(
        len(panels), 1, sharex=True, figsize=(WIDTH, 1.5 * len(panels) + 0.6), layout="constrained", squeeze=False
    )
    for (name, label), panel in zip(panels, axes[:, 0], strict=True):
        values = [column(run, name) for run in runs]
        for i, (run, y) in enumerate(zip(runs, values, strict=True)):
            style = {"color": COLOURS[i % len(COLOURS)], "linestyle": DASHES[i // len(COLOURS) % len(DASHES)]}
            x = column(run, "attempt")
            panel.plot(x, np.where(np.isfinite(y), y, np.nan), linewidth=1, label=names[i] or None, **style)
            marks(panel, x, y, run, name, style["color"])
        scale(panel, name, values)
        bound(panel, name, runs)
        panel.set_ylabel(label)
        panel.grid(True, color="#e7e9ed", linewidth=0.6)
        panel.spines[["top", "right"]].set_visible(False)
    axes[-1, 0].set_xlabel("update (tried)")
    if title:
        figure.suptitle(title, fontsize=10)
    if any(names):
        figure.legend(
            *axes[0, 0].get_legend_handles_labels(), loc="outside lower center", fontsize=7, ncols=1, frameon=False
        )
    return save(figure, path, DPI)


def marks(panel: Any, x: np.ndarray, y: np.ndarray, run: RunRecord, name: str, colour: str) -> None:
    """What no curve shows: NaN and infinity at the upper edge, skipped updates with the loss scale, evaluations."""
    edge = panel.get_xaxis_transform()
    for bad, sign, what in ((np.isnan(y), "x", "NaN"), (np.isinf(y), "^", "infinite")):
        if bad.any():
            panel.plot(
                x[bad], np.full(bad.sum(), 0.97), sign, color="#b3261e", markersize=4, transform=edge, label=f"_{what}"
            )
            label = f"{sign.replace('^', '▲').replace('x', '×')} {what}"
            panel.text(1, 1, label, transform=panel.transAxes, fontsize=7, ha="right", va="bottom", color="#b3261e")
    if name == "amp/scale":
        skipped = np.array([bool(line.get("update/skipped")) for line in run.updates])
        panel.plot(
            x[skipped], np.full(skipped.sum(), 0.03), "v", color="#b3261e", markersize=3, transform=edge, label="_"
        )
    if name == "train/loss" and run.evaluations:
        points = [(line["attempt"], line["eval/loss"]) for line in run.evaluations]
        panel.plot(
            *zip(*points, strict=True), "o", color=colour, markersize=4, markerfacecolor="white", label="_evaluation"
        )


def scale(panel: Any, name: str, values: Sequence[np.ndarray]) -> None:
    """Logarithmic where all is positive and of very different sizes; the loss scale by powers of two."""
    every = np.concatenate([y[np.isfinite(y)] for y in values])
    if name == "amp/scale":
        panel.set_yscale("log", base=2)
    elif name != "lr" and every.size and every.min() > 0 and every.max() / every.min() > 30:
        panel.set_yscale("log")


def bound(panel: Any, name: str, runs: Sequence[RunRecord]) -> None:
    """The thresholds of clipping."""
    for threshold in {run.clip_threshold for run in runs} - {None} if name == "grad/norm" else ():
        panel.axhline(threshold, color="black", linewidth=0.8, linestyle=":")


def flow(run: RunRecord, title: str, path: Path) -> list[Path]:
    """Gradient norms, layer by update, and their profile by depth in the first and the last record."""
    layers, norms = table(run)  # (L,), (L, R)
    x = np.array([record["attempt"] for record in run.layer_records])
    if not drawable(norms).any():
        return []
    height = min(max(0.17 * len(layers), 1.2), 6)
    figure, (upper, lower) = pyplot().subplots(
        2, 1, figsize=(WIDTH, height + 3.2), height_ratios=[height, 2.2], layout="constrained"
    )
    figure.colorbar(norms_over_updates(upper, x, layers, norms), ax=upper, label="gradient norm")
    norms_by_depth(lower, x, norms)
    figure.suptitle(title, fontsize=10)
    return save(figure, path, DPI)


def drawable(norms: np.ndarray) -> np.ndarray:
    """Where a norm can be drawn on a logarithmic scale."""
    good: np.ndarray = np.isfinite(norms) & (norms > 0)
    return good


def norms_over_updates(panel: Any, x: np.ndarray, layers: Sequence[str], norms: np.ndarray) -> Any:
    """A row a layer, a column a record: (L, R) norms as colours. Returns the image."""
    from matplotlib.colors import LogNorm

    good = drawable(norms)
    edges = np.append(x, x[-1] + (x[-1] - x[0]) / max(len(x) - 1, 1) if len(x) > 1 else x[-1] + 1)
    rows = np.arange(len(layers) + 1)
    panel.set_facecolor("#CC79A7")  # not finite; zero is white
    panel.pcolormesh(edges, rows, np.ma.masked_where(norms != 0, norms), cmap="Greys", vmin=0, vmax=1)
    low, high = norms[good].min(), norms[good].max()
    colours = LogNorm(low, max(high, low * 1.01))
    image = panel.pcolormesh(edges, rows, np.ma.masked_where(~good, norms), norm=colours, cmap="viridis")
    every = -(-len(layers) // 40)
    panel.set_yticks(np.arange(len(layers))[::every] + 0.5, layers[::every], fontsize=6)
    panel.invert_yaxis()
    panel.set_xlabel("update (tried)" + "; pink: not finite" * (not np.isfinite(norms).all()))
    return image


def norms_by_depth(panel: Any, x: np.ndarray, norms: np.ndarray) -> None:
    """(L, R) norms by layer, in the first and the last record that has any."""
    good = drawable(norms)
    whole = np.flatnonzero(good.any(axis=0))
    for r, colour, dash in dict.fromkeys([(whole[0], "#666666", "--"), (whole[-1], COLOURS[0], "-")]):
        shown = np.where(good[:, r], norms[:, r], np.nan)
        panel.plot(shown, dash, marker="o", markersize=3, color=colour, label=f"update {x[r]}")
    panel.set_yscale("log")
    panel.xaxis.get_major_locator().set_params(integer=True)
    panel.set_xlabel("layer, in the order in which they run")
    panel.set_ylabel("gradient norm")
    panel.legend(frameon=False, fontsize=7)


def table(run: RunRecord) -> tuple[list[str], np.ndarray]:
    """Names of the layers in the order in which they run, and (L, R) norms of their parameters together."""
    names, order = run.layer_header["names"], run.layer_header["order"]
    rows = [by_layer(names, order, record["grad/layer"]) for record in run.layer_records]
    return list(rows[0]), np.array([[math.nan if v is None else v for v in row.values()] for row in rows]).T
