"""The comparison of remedies that ends a sweep: comparison.csv and comparison.json in its folder, and a table."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gradlab.base import table
from gradlab.base.json_lines import plain
from gradlab.config.remedy import changes
from gradlab.remedies.compared_job import compared_job
from gradlab.remedies.comparison_rows import compare
from gradlab.remedies.paired_effect import LARGE, SEEDS, SMALL, seeds


def shown(row: dict[str, Any]) -> dict[str, str]:
    """A row as it is printed; numbers are medians over the seeds."""

    def number(name: str, form: str = ".4g") -> str:
        return "-" if row.get(name) is None else format(row[name], form)

    def effect(name: str) -> str:
        e = row[name]
        if not e:
            return "-"
        return f"{e['mean']:+.1%}" + (f" [{e['low']:+.1%}, {e['high']:+.1%}]" if e["low"] is not None else "")

    failing = number("first_failing", ".0f")
    failing += f"-{number('last_failing', '.0f')}" if row.get("last_failing") != row.get("first_failing") else ""
    few = f" ({seeds(row['seeds'])})" if 0 < row["seeds"] < SEEDS and row["judgement"] != "baseline" else ""
    return {
        "remedy": row["remedy"],
        "judgement": row["judgement"] + few,
        "verdicts": ", ".join(f"{count} {verdict}" for verdict, count in row["verdicts"].items()) or "-",
        "updates": f"{number('updates', '.0f')}/{number('planned', '.0f')}",
        "more updates": effect("survived"),
        "failing": failing,
        "loss": number("train_loss"),
        "lower loss": effect("improved"),
        "eval loss": number("eval_loss"),
        "norm 50%": number("grad_norm_median", ".3g"),
        "99%": number("grad_norm_p99", ".3g"),
        "clipped": number("clip_fraction", ".0%"),
        "skipped": number("skipped", ".0f"),
        "cost": number("cost", ".2f"),
    }


LEAST = (
    "eval loss",
    "updates",
    "clipped",
    "lower loss",
    "skipped",
    "failing",
    "norm 50%",
    "more updates",
    "99%",
    "cost",
)
"""Columns that a narrow terminal leaves out, the last first; comparison.csv has all."""

NOTE = f"""\
Each remedy against none, under the same seed. more updates: applied ones, as a fraction of those planned; lower loss:
fall of the median of the last 20 losses (a fifth of a short run), as a fraction of none's, where both came to their
end above zero. From {SEEDS} seeds on the 95% interval of the mean follows; an effect counts where it leaves out 0 (one
in 20 does so by chance) and the mean is at least {SMALL:.0%}. Of fewer seeds each must differ by {LARGE:.0%}. cost:
seconds a sample, over none's."""


def report(folder: Path, jobs: Sequence[str]) -> list[dict[str, Any]]:
    """Compare the jobs of a sweep over remedies: comparison.csv and comparison.json in its folder, and a table."""
    rows = compare([compared_job(folder, job) for job in jobs])
    if not rows:
        return rows
    (folder / "comparison.json").write_text(json.dumps(plain(rows), indent=2, allow_nan=False) + "\n", encoding="utf-8")
    with (folder / "comparison.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(flat(rows[0])), extrasaction="ignore")
        writer.writeheader()
        writer.writerows(map(flat, rows))
    for overrides in dict.fromkeys(row["overrides"] for row in rows):
        group = [row for row in rows if row["overrides"] == overrides]
        cells = [shown(row) for row in group]
        print()
        table.show(f"remedies, {overrides}", list(cells[0]), [list(c.values()) for c in cells], LEAST)
        for row in group:
            if row["judgement"] != "baseline":
                print(f"  {row['remedy']}: {'; '.join(filter(None, (changes(row['changed']), row['why'])))}")
    print(NOTE, flush=True)
    return rows


def flat(row: dict[str, Any]) -> dict[str, Any]:
    """A row of comparison.csv: without the single runs, one column a number."""
    kept = {k: v for k, v in row.items() if k not in ("runs", "verdicts", "changed", "survived", "improved")}
    effects = {
        f"{name}_{part}": (row[name] or {}).get(part)
        for name in ("survived", "improved")
        for part in ("mean", "size", "low", "high")
    }
    return kept | {"verdicts": shown(row)["verdicts"], "changed": changes(row["changed"])} | effects
