"""Maps of rate against bound, and where the edge of stability is."""

import json
import math
from pathlib import Path

from lab import Claim, Runs, Study, Sweep, check

LANES = "hydra/launcher=vectorized"
RATE, BOUND = "optimizer.lr", "clip.max_norm"


def grid_of(folder: Path):
    from gradlab.sweep import results
    from gradlab.sweep.maps.grid import grids

    return grids(results.read(folder), RATE, BOUND)[0]


def lines_of(runs: Runs, sweep: str):
    """The rows of a map, by their bound."""
    from gradlab.sweep.maps.recommendation import summarize_rows

    folder = runs.where(sweep)[0].folder.parent
    return {float(line.y): line for line in summarize_rows(grid_of(folder))}


def largest(line) -> float:
    """The largest stable rate of a row, 0 where none is."""
    return 0.0 if line.edge.stable is None else float(line.edge.stable)


def clipping_moves(runs: Runs):
    rows = lines_of(runs, "exploding")
    low, high = largest(rows[min(rows)]), largest(rows[max(rows)])
    return check(low > 2 * high, f"stable up to {low:.3g} at max_norm {min(rows):g}, up to {high:.3g} at {max(rows):g}")


def usual_bounds(runs: Runs):
    rows = lines_of(runs, "exploding")
    best = min(line.best for line in rows.values() if not math.isnan(line.best))
    usual = {bound: line.best for bound, line in rows.items() if 0.4 <= bound <= 2.5}
    text = ", ".join(f"{loss:.3g} at {bound:.2g}" for bound, loss in usual.items())
    return check(all(loss < 1.5 * best for loss in usual.values()), f"lowest loss {text}; of all bounds {best:.3g}")


def clipping_and_fp16(runs: Runs):
    edges = [largest(line) for line in lines_of(runs, "fp16_collapse").values()]
    return check(max(edges) > 2 * min(edges), f"stable up to {min(edges):.3g} to {max(edges):.3g} over all bounds")


def lower(runs: Runs):
    rows = lines_of(runs, "fp16_collapse")
    lowest = min(line.edge.unstable for line in rows.values() if line.edge.unstable is not None)
    edges = [largest(line) for line in rows.values()]
    text = f"the lowest rate that collapses is {lowest:.3g}; stable up to {min(edges):.3g} or more under every bound"
    return check(min(edges) >= lowest / 3, text)


def edge_table(folder: Path) -> list[str]:
    """What a search has found, as Markdown."""
    found = json.loads((folder / "edges.json").read_text())
    rows = ["| run | largest stable rate, median | lowest | highest | seeds | runs |", "|---|---|---|---|---|---|"]
    for point in found["points"]:
        cells = [point["point"] or "-", *point["shown"], str(point["seeds"]), str(point["runs"])]
        rows.append("| " + " | ".join(cells) + " |")
    rows += ["", "| remedy | moves the edge by | 95% interval | seeds |", "|---|---|---|---|"]
    for effect in found["effects"]:
        mean, low, high = effect["mean"], effect["low"], effect["high"]
        factor = "-" if mean is None else f"{effect['bound']} x{mean:.3g}".strip()
        interval = "-" if None in (low, high) else f"x{low:.3g} to x{high:.3g}"
        rows.append(f"| {effect['value']} | {factor} | {interval} | {effect['seeds'] or 0} |")
    return rows


def shown(runs: Runs, here: Path) -> list[str]:
    """The figures, the edges row by row, and the table of the search."""
    from gradlab.sweep.maps.figure import draw
    from gradlab.sweep.maps.recommendation import recommend

    page = []
    for name in ("exploding", "fp16_collapse"):
        folder = runs.where(name)[0].folder.parent
        grid = grid_of(folder)
        for figure in draw(grid, here / name):
            if figure.suffix == ".svg":
                figure.unlink()
        rows = lines_of(runs, name)
        best = recommend(grid, list(rows.values()))
        page += [f"## {name}", "", f"![outcomes and losses]({name}.png)", ""]
        page += [
            f"| {BOUND} | stable up to | learns up to | sensitivity | lowest loss | at |",
            "|---|---|---|---|---|---|",
        ]
        for bound, line in rows.items():
            ends = [f"{e.stable:.3g}" if e.stable is not None else "-" for e in (line.edge, line.learning)]
            page.append(
                f"| {bound:.3g} | {' | '.join(ends)} | {line.sensitivity:.3g} | {line.best:.3g} | {line.best_at:.3g} |"
            )
        page += ["", f"Recommended: {best.says}.", ""]
    return [
        *page,
        "## How far remedies move the edge of exploding",
        "",
        *edge_table(runs.where("edges")[0].folder.parent),
    ]


SWEEP = ["-m", "+sweep=lr_max_norm", "trainer.epochs=2", LANES]
REMEDIES = "none,clip_norm,clip_value,agc,zclip,adam,orthogonal_init,warmup"

STUDY = Study(
    title="where training is stable",
    about="""Sixteen learning rates by sixteen bounds on the gradient's norm, every run of the same seed: the recurrent
network that explodes, and the fine-tuning whose fp16 loss scale collapses. Then, for the first, the largest stable rate
by search, for several remedies and three seeds. All of it trained as lanes of one program.""",
    sweeps=[
        Sweep(
            "exploding",
            [*SWEEP, "+experiment=exploding", f"{RATE}=logspace(1e-3,1,16)", f"{BOUND}=logspace(1e-2,1000,16)"],
        ),
        Sweep(
            "fp16_collapse",
            [*SWEEP, "+experiment=fp16_collapse", f"{RATE}=logspace(1e-3,1,16)", f"{BOUND}=logspace(10,1e5,16)"],
        ),
        Sweep(
            "edges",
            [
                "-m",
                "hydra/sweeper=boundary",
                "+experiment=exploding",
                "trainer.epochs=2",
                f"+remedy={REMEDIES}",
                "hydra.sweeper.seeds=[0,1,2]",
                "hydra.sweeper.points_per_round=5",
                LANES,
            ],
        ),
    ],
    claims=[
        Claim("clipping keeps a run stable at rates that would explode", "GM: Exploding Gradients", clipping_moves),
        Claim("a max_norm of 1, or of 0.5 or 2", "GM: How to Choose max_norm", usual_bounds),
        Claim("clipping prevents the collapse", "GC: Additional Stabilization", clipping_and_fp16),
        Claim("a rate 3 to 10 times lower fixes the collapse", "GC: Primary Fix", lower),
    ],
    conclusion="""Where the gradient explodes, the edge of stability runs along a line on which the product of rate
and bound stays the same, about 10: what clipping bounds is the length of a step, and a rate ten times higher is as safe
under a bound ten times lower. Learning ends where that product is so small that the steps no longer lead anywhere, so
that the useful band runs along the same line, two decades wide. Where fp16 overflows, the edge is a rate, whatever the
bound over four decades: Adam divides a common factor of its gradients out, and what overflows are activations, which
clipping does not see.""",
    own=shown,
)
