"""`python -m gradlab.map FOLDER`: the map of a sweep, drawn again; `x=... y=...`: a map refined around its boundary."""

from __future__ import annotations

import sys
from pathlib import Path

from gradlab.base.command import Parser, exit_code
from gradlab.base.option import Invalid, one_of, require
from gradlab.base.visible import one_line
from gradlab.cli import refined_map

DESCRIPTION = """\
Draws the map of a sweep from what its jobs left: FOLDER/report.html (interactive, of one file), FOLDER/figures,
map.json and results.csv; prints the edge of stability and the sensitivity of each row, and which point to use.

With x=FIELD:LOW:HIGH[:linear] y=FIELD:LOW:HIGH[:linear] [OVERRIDE...] instead of a folder it runs a map over two
fields, and refines it where neighbouring runs end differently. Also resolution=256, coarse=16 (cells a side at the
boundary and everywhere), judge=stable|learns|verdict, checks=50, max_runs=N; other overrides are those of
python -m gradlab."""


def main(arguments: list[str] | None = None) -> int:
    """Returns the exit code."""
    given = sys.argv[1:] if arguments is None else arguments
    if refined_map.asks_for_runs(given):
        return refined_map.run(given)
    return exit_code(work, given)


def work(arguments: list[str]) -> int:
    p = Parser("python -m gradlab.map", description=DESCRIPTION)
    p.add_argument("folder", type=Path, metavar="FOLDER", help="the folder of a sweep")
    p.add_argument("--x", metavar="FIELD", help="the swept field across (optimizer.lr, or that of the most values)")
    p.add_argument("--y", metavar="FIELD", help="the swept field upwards; what is neither is a slice each")
    p.add_argument("--metric", metavar="NAME", help="draw this beside the outcome in the figure, instead of all")
    p.add_argument("--margin", type=float, metavar="FACTOR", help="how far below the edge to recommend (2)")
    args = p.parse_args(arguments)
    require(args.margin is None or args.margin >= 1, "--margin", args.margin, ">= 1")
    if not args.folder.is_dir():
        raise Invalid("FOLDER", args.folder, "no such folder")
    from gradlab.report.pages import sweep_page
    from gradlab.sweep import results
    from gradlab.sweep.maps import sweep_map

    if args.metric is not None:
        from gradlab.sweep.maps.grid import METRICS

        one_of("--metric", args.metric, list(METRICS))
    rows = results.read(args.folder)
    if len(rows) < 2:
        raise Invalid("FOLDER", args.folder, f"must be the folder of a sweep (it holds {len(rows)} jobs)")
    results.write(rows, args.folder / "results.csv")
    drawn = sweep_map.make(args.folder, rows, args.x, args.y, args.metric, args.margin)
    print(f"report: {one_line(str(sweep_page.write(args.folder, rows, drawn)))}", flush=True)
    return 0
