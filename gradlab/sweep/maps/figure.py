"""Figures of a map: the outcome with its boundary, and what was measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from gradlab.base.plotting import pyplot, save
from gradlab.runs.outcome_class import NAMES, OUTCOMES
from gradlab.sweep.maps.axis import Axis
from gradlab.sweep.maps.grid import METRICS, Grid, limits
from gradlab.sweep.maps.stability import boundary

PANELS = ("outcome", "loss/final", "eval/loss", "grad/norm_median", "grad/norm_max", "clip/fraction", "survived")
INFINITE = "#222222"
"""Of a loss that is infinite."""
TICKS = 9


def draw(grid: Grid, path: Path, metric: str | None = None) -> list[Path]:
    """A panel a metric that was measured, or the outcome and the one asked for; `path` without a suffix."""
    plt = pyplot()
    wanted = PANELS if metric is None else tuple(dict.fromkeys(["outcome", metric]))
    wanted = tuple(name for name in wanted if limits([grid], name) is not None)
    columns = min(len(wanted), 4)
    lines = -(-len(wanted) // columns)
    size = (4.4 * columns, (4.2 if len(grid.y.values) > 1 else 2.4) * lines + 0.5)
    figure, axes = plt.subplots(lines, columns, figsize=size, squeeze=False, layout="constrained")
    for axis, name in zip(axes.flat, wanted):
        panel(figure, axis, grid, name)
    for axis in axes.flat[len(wanted) :]:
        axis.axis("off")
    legend(figure, grid)
    if grid.title:
        figure.suptitle(grid.title)
    return save(figure, path)


def panel(figure: Any, axis: Any, grid: Grid, name: str) -> None:
    """One heat map. Points that were not run are hatched; in a sparse grid they are their nearest ones."""
    import matplotlib
    from matplotlib.colors import BoundaryNorm, ListedColormap, LogNorm, Normalize
    from matplotlib.patches import Rectangle

    values, scale = grid.array(name), limits([grid], name)
    assert scale is not None
    ny, nx = values.shape
    large = nx * ny > 1024  # then an image in the SVG: a path a point would take seconds and megabytes
    corners = np.arange(nx + 1), np.arange(ny + 1)
    missing: dict[str, Any] = {
        "facecolor": "white",
        "edgecolor": "#c8c8c8",
        "hatch": "///",
        "linewidth": 0,
        "zorder": 0,
    }
    axis.add_patch(Rectangle((0, 0), nx, ny, **missing))
    if name == "outcome":
        colours = ListedColormap([o.colour for o in OUTCOMES])
        classes = BoundaryNorm(np.arange(len(NAMES) + 1) - 0.5, len(NAMES))
        gaps = {"edgecolors": "white", "linewidth": 0.2} if not large else {}
        axis.pcolormesh(*corners, np.ma.masked_invalid(values), cmap=colours, norm=classes, rasterized=large, **gaps)
        letters(axis, values)
    else:
        infinite = np.ma.masked_where(~np.isposinf(values), np.ones_like(values))
        axis.pcolormesh(*corners, infinite, cmap=ListedColormap([INFINITE]), rasterized=large)
        ends = (scale.low, max(scale.high, scale.low * 1.01, scale.low + 1e-30))
        norm = LogNorm(*ends, clip=True) if scale.log else Normalize(*ends)
        shown = np.ma.masked_invalid(np.maximum(values, scale.low) if scale.log else values)
        drawn = axis.pcolormesh(*corners, shown, cmap=matplotlib.colormaps["viridis"], norm=norm, rasterized=large)
        figure.colorbar(drawn, ax=axis, shrink=0.8, extend="max" if scale.capped else "neither")
    for x0, y0, x1, y1 in boundary(grid.array("stable")):
        axis.plot([x0, x1], [y0, y1], color="white", linewidth=3.4, solid_capstyle="round")
        axis.plot([x0, x1], [y0, y1], color="black", linewidth=1.8, solid_capstyle="round")
    ticks(axis.xaxis, grid.x)
    ticks(axis.yaxis, grid.y)
    axis.tick_params(axis="x", rotation=60)
    axis.set(xlim=(0, nx), ylim=(0, ny), xlabel=grid.x.name, ylabel=grid.y.name, title=METRICS[name])


def legend(figure: Any, grid: Grid) -> None:
    """The classes that are there, and how many points each has; and the other signs."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    names = [cell.outcome for cell in grid.points.values()]
    signs: list[Any] = [
        Patch(facecolor=o.colour, label=f"{o.letter}: {o.name} ({names.count(o.name)})")
        for o in OUTCOMES
        if o.name in names
    ]
    signs.append(Line2D([], [], color="black", label="boundary of stability"))
    if any(np.isposinf(cell.metric("loss/final")) for cell in grid.points.values()):
        signs.append(Patch(facecolor=INFINITE, label="no loss: the run failed"))
    ny, nx = grid.shape
    if len(grid.points) < ny * nx:
        coverage = f"{len(grid.points)} of {ny * nx} run; " + (
            "others as their nearest" if grid.sparse else "hatched: not run"
        )
        signs.append(
            Patch(facecolor="white", edgecolor="#c8c8c8", hatch=None if grid.sparse else "///", label=coverage)
        )
    figure.legend(handles=signs, loc="outside lower left", ncols=5, fontsize=8, frameon=False)


def letters(axis: Any, values: np.ndarray) -> None:
    """For those who cannot tell the colours apart, where there is room."""
    if max(values.shape) > 20:
        return
    for (i, j), value in np.ndenumerate(values):
        if np.isfinite(value):
            o = OUTCOMES[int(value)]
            style = {"color": "white" if o.light else "black", "fontsize": 6, "ha": "center", "va": "center"}
            axis.text(j + 0.5, i + 0.5, o.letter, **style)


def ticks(axis: Any, of: Axis) -> None:
    """Some of the values, in the middle of their points."""
    step = max(1, -(-len(of.values) // TICKS))
    axis.set_ticks([i + 0.5 for i in range(0, len(of.values), step)], of.labels[::step], fontsize=8)


def curves(grids: list[Grid], path: Path) -> list[Path]:
    """The final loss and the largest norm against the field that is swept, a line a slice or row."""
    plt = pyplot()
    names = [n for n in ("loss/final", "grad/norm_max") if any(np.isfinite(g.array(n)).any() for g in grids)]
    figure, axes = plt.subplots(
        1, len(names) or 1, figsize=(5.6 * max(len(names), 1), 4), squeeze=False, layout="constrained"
    )
    for axis, name in zip(axes[0], names):
        for grid in grids:
            x, values, outcome = np.array(grid.x.values), grid.array(name), grid.array("outcome")
            for i in range(len(grid.y.values)):
                (line,) = axis.plot(x, np.where(np.isfinite(values[i]), values[i], np.nan), linewidth=1)
                text = ", ".join(filter(None, (grid.title, grid.y.name and f"{grid.y.name}={grid.y.labels[i]}")))
                if text:
                    line.set_label(text)
                top = np.nanmax(np.where(np.isfinite(values), values, np.nan)) if np.isfinite(values).any() else 1.0
                for j in np.flatnonzero(~np.isnan(outcome[i])):
                    o, y = OUTCOMES[int(outcome[i, j])], values[i, j]
                    at, marker = ((x[j], y), "o") if np.isfinite(y) else ((x[j], top), "x")
                    axis.plot(*at, marker, color=o.colour, markersize=6, zorder=3)
                    axis.annotate(o.letter, at, fontsize=6, xytext=(3, 3), textcoords="offset points")
        axis.set(
            xlabel=grids[0].x.name, title=METRICS[name], xscale="log" if grids[0].x.log else "linear", yscale="log"
        )
        if axis.get_legend_handles_labels()[1]:
            axis.legend(fontsize=8)
    return save(figure, path)
