"""Figures of a map: the outcome with its boundary, and what was measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from gradlab.sweep.map_edge import boundary
from gradlab.sweep.map_grid import METRICS, Axis, Grid
from gradlab.sweep.outcome import NAMES, OUTCOMES

PANELS = ("outcome", "loss/final", "eval/loss", "grad/norm_median", "grad/norm_max", "clip/fraction", "survived")
SHARES = ("clip/fraction", "survived", "stable")
"""From 0 to 1; the others on a logarithmic scale."""
TICKS = 9
MISSING = "#ffffff"


def save(figure: Any, path: Path) -> list[Path]:
    """As PNG and SVG."""
    import matplotlib.pyplot as plt

    path.parent.mkdir(parents=True, exist_ok=True)
    done = [path.with_name(f"{path.name}{suffix}") for suffix in (".png", ".svg")]
    for file in done:
        figure.savefig(file, dpi=120)
    plt.close(figure)
    return done


def pyplot() -> Any:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt


def draw(grid: Grid, path: Path, metric: str | None = None) -> list[Path]:
    """A panel a metric that was measured, or the outcome and the one asked for; `path` without a suffix."""
    plt = pyplot()
    wanted = [name for name in PANELS if np.isfinite(grid.array(name)).any()]
    wanted = wanted if metric is None else list(dict.fromkeys(["outcome", metric]))
    columns = min(len(wanted), 4)
    lines = -(-len(wanted) // columns)
    tall = 4.2 if len(grid.y.values) > 1 else 2.4
    figure, axes = plt.subplots(
        lines, columns, figsize=(4.4 * columns, tall * lines), squeeze=False, layout="constrained"
    )
    for place, name in zip(axes.flat, wanted):
        panel(figure, place, grid, name)
    for place in axes.flat[len(wanted) :]:
        place.axis("off")
    if grid.title:
        figure.suptitle(grid.title)
    return save(figure, path)


def panel(figure: Any, place: Any, grid: Grid, name: str) -> None:
    """One heat map. Points that were not run are hatched."""
    from matplotlib.colors import BoundaryNorm, ListedColormap, LogNorm, Normalize

    values = grid.array(name)
    ny, nx = values.shape
    place.set_facecolor(MISSING)
    place.add_patch(_hatched(nx, ny))
    corners = np.arange(nx + 1), np.arange(ny + 1)
    if name == "outcome":
        colours = ListedColormap([o.colour for o in OUTCOMES])
        norm = BoundaryNorm(np.arange(len(NAMES) + 1) - 0.5, len(NAMES))
        place.pcolormesh(
            *corners, np.ma.masked_invalid(values), cmap=colours, norm=norm, edgecolors="white", linewidth=0.2
        )
        legend(place, values)
        if max(nx, ny) <= 20:
            letters(place, values)
    else:
        shown = np.ma.masked_where(np.isnan(values), np.where(np.isposinf(values), np.nan, values))
        finite = values[np.isfinite(values) & ((values > 0) | (name in SHARES))]
        logarithmic = name not in SHARES and len(finite) > 0
        norm = LogNorm(finite.min(), max(finite.max(), finite.min() * 1.01)) if logarithmic else Normalize(0, 1)
        colours = _colours()
        lost = np.isnan(np.where(np.isposinf(values), np.nan, values)) & ~np.isnan(values)
        place.pcolormesh(*corners, np.ma.masked_where(~lost, np.ones_like(values)), cmap=ListedColormap(["#222222"]))
        drawn = place.pcolormesh(*corners, np.ma.masked_invalid(shown), cmap=colours, norm=norm)
        figure.colorbar(drawn, ax=place, shrink=0.8)
    for x0, y0, x1, y1 in boundary(grid.array("stable")):
        place.plot([x0, x1], [y0, y1], color="white", linewidth=3.4, solid_capstyle="round")
        place.plot([x0, x1], [y0, y1], color="black", linewidth=1.8, solid_capstyle="round")
    ticks(place.xaxis, grid.x)
    ticks(place.yaxis, grid.y)
    place.tick_params(axis="x", rotation=60)
    place.set(xlim=(0, nx), ylim=(0, ny), xlabel=grid.x.name, ylabel=grid.y.name, title=METRICS[name])


def _colours() -> Any:
    import matplotlib

    return matplotlib.colormaps["viridis"]


def _hatched(nx: int, ny: int) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((0, 0), nx, ny, facecolor=MISSING, edgecolor="#c8c8c8", hatch="///", linewidth=0, zorder=0)


def legend(place: Any, values: np.ndarray) -> None:
    """The classes that are there, and how many points each has."""
    from matplotlib.patches import Patch

    counts = [(o, int((values == i).sum())) for i, o in enumerate(OUTCOMES)]
    patches = [Patch(facecolor=o.colour, label=f"{o.name} ({count})") for o, count in counts if count]
    place.legend(handles=patches, loc="upper left", bbox_to_anchor=(0, -0.32), ncols=2, fontsize=8, frameon=False)


def letters(place: Any, values: np.ndarray) -> None:
    """For those who cannot tell the colours apart."""
    for (i, j), value in np.ndenumerate(values):
        if np.isfinite(value):
            o = OUTCOMES[int(value)]
            dark = o.name in ("learnt", "exploded", "error")
            style = {"color": "white" if dark else "black", "fontsize": 6, "ha": "center", "va": "center"}
            place.text(j + 0.5, i + 0.5, o.letter, **style)


def ticks(axis: Any, of: Axis) -> None:
    """Some of the values, in the middle of their points."""
    step = max(1, -(-len(of.values) // TICKS))
    axis.set_ticks([i + 0.5 for i in range(0, len(of.values), step)], of.labels[::step], fontsize=8)


def curves(grids: list[Grid], path: Path) -> list[Path]:
    """Of a sweep over one field: the final loss and the largest norm against it, a line a slice or row."""
    plt = pyplot()
    names = [n for n in ("loss/final", "grad/norm_max") if any(np.isfinite(g.array(n)).any() for g in grids)]
    figure, axes = plt.subplots(
        1, len(names) or 1, figsize=(5.6 * max(len(names), 1), 4), squeeze=False, layout="constrained"
    )
    for place, name in zip(axes[0], names):
        for grid in grids:
            x, values, outcome = np.array(grid.x.values), grid.array(name), grid.array("outcome")
            for i in range(len(grid.y.values)):
                (line,) = place.plot(x, np.where(np.isfinite(values[i]), values[i], np.nan), linewidth=1)
                text = ", ".join(filter(None, (grid.title, grid.y.name and f"{grid.y.name}={grid.y.labels[i]}")))
                if text:
                    line.set_label(text)
                top = np.nanmax(np.where(np.isfinite(values), values, np.nan)) if np.isfinite(values).any() else 1.0
                for j in np.flatnonzero(~np.isnan(outcome[i])):
                    o, y = OUTCOMES[int(outcome[i, j])], values[i, j]
                    marker = "o" if np.isfinite(y) else "x"
                    place.plot(x[j], y if np.isfinite(y) else top, marker, color=o.colour, markersize=6, zorder=3)
                    place.annotate(
                        o.letter,
                        (x[j], y if np.isfinite(y) else top),
                        fontsize=6,
                        xytext=(3, 3),
                        textcoords="offset points",
                    )
        place.set(
            xlabel=grids[0].x.name, title=METRICS[name], xscale="log" if grids[0].x.log else "linear", yscale="log"
        )
        if place.get_legend_handles_labels()[1]:
            place.legend(fontsize=8)
    return save(figure, path)
