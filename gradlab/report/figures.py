"""Figures of runs for papers: PNG and SVG, drawn by matplotlib only when they are asked for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gradlab.base.json_lines import read_lines
from gradlab.base.option import Invalid
from gradlab.report.layers import by_layer
from gradlab.runs import contents as folders

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#666666")
DASHES = ("-", "--", ":")
WIDTH = 6.4
"""Inches."""


class Lines:
    """Columns of metrics.jsonl and of layers.jsonl."""

    def __init__(self, path: Path) -> None:
        self.run = folders.read(path, most=0)
        every = list(read_lines(path / "metrics.jsonl"))
        self.updates = [line for line in every if "train/loss" in line]
        self.evals = [line for line in every if "eval/loss" in line]
        layers = list(read_lines(path / "layers.jsonl"))
        self.header: dict[str, Any] = next((line for line in layers if "names" in line), {"names": [], "order": []})
        self.records = [line for line in layers if "grad/layer" in line]

    def column(self, name: str) -> np.ndarray:
        """(n,) of a metric; NaN where it was not measured."""
        return np.array([math.nan if line.get(name) is None else float(line[name]) for line in self.updates])


def of_run(path: Path) -> list[Path]:
    """figures/curves and, where layers were recorded, figures/gradient_flow; what was written."""
    lines = Lines(path)
    if not lines.updates:
        raise Invalid("FOLDER", path, "has no update to draw")
    title = f"{lines.run.name}: {lines.run.diagnosis.get('verdict') or 'no verdict'}"
    drawn = curves([lines], [""], title, path / "figures" / "curves")
    return drawn + (flow(lines, title, path / "figures" / "gradient_flow") if lines.records else [])


def of_several(paths: Sequence[Path], file: Path) -> list[Path]:
    """The curves of several runs over each other."""
    every = [Lines(path) for path in paths]
    names = [
        f"{i}: {one.run.name} ({one.run.diagnosis.get('verdict') or 'no verdict'})" for i, one in enumerate(every, 1)
    ]
    return curves(every, names, "", file)


def curves(runs: Sequence[Lines], names: Sequence[str], title: str, path: Path) -> list[Path]:
    """Loss, gradient norm, loss scale where there is one, and learning rate, one above the other."""
    from gradlab.sweep.maps.figure import pyplot

    scaled = any((run.column("amp/scale") != 1).any() for run in runs)
    panels = [
        ("train/loss", "loss"),
        ("grad/norm", "gradient norm"),
        *[("amp/scale", "loss scale")] * scaled,
        ("lr", "lr"),
    ]
    figure, axes = pyplot().subplots(
        len(panels), 1, sharex=True, figsize=(WIDTH, 1.5 * len(panels) + 0.6), layout="constrained", squeeze=False
    )
    for (name, label), place in zip(panels, axes[:, 0], strict=True):
        values = [run.column(name) for run in runs]
        for i, (run, y) in enumerate(zip(runs, values, strict=True)):
            style = {"color": COLOURS[i % len(COLOURS)], "linestyle": DASHES[i // len(COLOURS) % len(DASHES)]}
            x = run.column("attempt")
            place.plot(x, np.where(np.isfinite(y), y, np.nan), linewidth=1, label=names[i] or None, **style)
            marks(place, x, y, run, name, style["color"])
        scale(place, name, values)
        bound(place, name, runs)
        place.set_ylabel(label)
        place.grid(True, color="#e7e9ed", linewidth=0.6)
        place.spines[["top", "right"]].set_visible(False)
    axes[-1, 0].set_xlabel("update (tried)")
    if title:
        figure.suptitle(title, fontsize=10)
    if any(names):
        figure.legend(
            *axes[0, 0].get_legend_handles_labels(), loc="outside lower center", fontsize=7, ncols=1, frameon=False
        )
    return save(figure, path)


def marks(place: Any, x: np.ndarray, y: np.ndarray, run: Lines, name: str, colour: str) -> None:
    """What no curve shows: NaN and infinity at the upper edge, skipped updates with the loss scale, evaluations."""
    edge = place.get_xaxis_transform()
    for bad, sign, what in ((np.isnan(y), "x", "NaN"), (np.isinf(y), "^", "infinite")):
        if bad.any():
            place.plot(
                x[bad], np.full(bad.sum(), 0.97), sign, color="#b3261e", markersize=4, transform=edge, label=f"_{what}"
            )
            told = f"{sign.replace('^', '▲').replace('x', '×')} {what}"
            place.text(1, 1, told, transform=place.transAxes, fontsize=7, ha="right", va="bottom", color="#b3261e")
    if name == "amp/scale":
        skipped = np.array([bool(line.get("update/skipped")) for line in run.updates])
        place.plot(
            x[skipped], np.full(skipped.sum(), 0.03), "v", color="#b3261e", markersize=3, transform=edge, label="_"
        )
    if name == "train/loss" and run.evals:
        points = [(line["attempt"], line["eval/loss"]) for line in run.evals]
        place.plot(
            *zip(*points, strict=True), "o", color=colour, markersize=4, markerfacecolor="white", label="_evaluation"
        )


def scale(place: Any, name: str, values: Sequence[np.ndarray]) -> None:
    """Logarithmic where all is positive and of very different sizes; the loss scale by powers of two."""
    every = np.concatenate([y[np.isfinite(y)] for y in values])
    if name == "amp/scale":
        place.set_yscale("log", base=2)
    elif name != "lr" and every.size and every.min() > 0 and every.max() / every.min() > 30:
        place.set_yscale("log")


def bound(place: Any, name: str, runs: Sequence[Lines]) -> None:
    """The thresholds of clipping by norm."""
    if name != "grad/norm":
        return
    clips = {run.run.config.get("clip", {}).get("max_norm") for run in runs if run.run.choices.get("clip") == "norm"}
    for value in clips - {None}:
        place.axhline(value, color="black", linewidth=0.8, linestyle=":")


def flow(lines: Lines, title: str, path: Path) -> list[Path]:
    """Gradient norms, layer by update, and their profile by depth in the first and the last record."""
    from matplotlib.colors import LogNorm

    from gradlab.sweep.maps.figure import pyplot

    layers, norms = table(lines)  # (L,), (L, R)
    x = np.array([record["attempt"] for record in lines.records])
    good = np.isfinite(norms) & (norms > 0)
    if not good.any():
        return []
    height = min(max(0.17 * len(layers), 1.2), 6)
    figure, (upper, lower) = pyplot().subplots(
        2, 1, figsize=(WIDTH, height + 3.2), height_ratios=[height, 2.2], layout="constrained"
    )
    edges = np.append(x, x[-1] + (x[-1] - x[0]) / max(len(x) - 1, 1) if len(x) > 1 else x[-1] + 1)
    shown = np.ma.masked_where(~good, norms)
    upper.set_facecolor("#CC79A7")  # not finite; zero is white
    upper.pcolormesh(
        edges, np.arange(len(layers) + 1), np.ma.masked_where(norms != 0, norms), cmap="Greys", vmin=0, vmax=1
    )
    low, high = norms[good].min(), norms[good].max()
    image = upper.pcolormesh(
        edges, np.arange(len(layers) + 1), shown, norm=LogNorm(low, max(high, low * 1.01)), cmap="viridis"
    )
    every = -(-len(layers) // 40)
    upper.set_yticks(np.arange(len(layers))[::every] + 0.5, layers[::every], fontsize=6)
    upper.invert_yaxis()
    upper.set_xlabel("update (tried)" + "; pink: not finite" * (not np.isfinite(norms).all()))
    figure.colorbar(image, ax=upper, label="gradient norm")
    whole = np.flatnonzero(good.any(axis=0))
    for r, colour, dash in dict.fromkeys([(whole[0], "#666666", "--"), (whole[-1], COLOURS[0], "-")]):
        lower.plot(
            np.where(good[:, r], norms[:, r], np.nan),
            dash,
            marker="o",
            markersize=3,
            color=colour,
            label=f"update {x[r]}",
        )
    lower.set_yscale("log")
    lower.set_xlabel("layer, in the order in which they run")
    lower.set_ylabel("gradient norm")
    lower.legend(frameon=False, fontsize=7)
    figure.suptitle(title, fontsize=10)
    return save(figure, path)


def table(lines: Lines) -> tuple[list[str], np.ndarray]:
    """Names of the layers in the order in which they run, and (L, R) norms of their parameters together."""
    names, order = lines.header["names"], lines.header["order"]
    rows = [by_layer(names, order, record["grad/layer"]) for record in lines.records]
    return list(rows[0]), np.array([[math.nan if v is None else v for v in row.values()] for row in rows]).T


def save(figure: Any, path: Path) -> list[Path]:
    """As PNG, fine enough to be printed, and SVG; the same runs give the same files."""
    import matplotlib.pyplot as plt

    path.parent.mkdir(parents=True, exist_ok=True)
    done = [path.with_name(f"{path.name}{suffix}") for suffix in (".png", ".svg")]
    with plt.rc_context({"svg.hashsalt": "gradlab"}):
        figure.savefig(done[0], dpi=250)
        figure.savefig(done[1], metadata={"Date": None})
    plt.close(figure)
    return done
