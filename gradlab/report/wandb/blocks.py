"""The blocks of a W&B Report, from the content that is known of its runs; without asking W&B's service."""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

SHOWN = 100
"""Runs whose verdicts are in the text."""


@dataclass
class ReportContent:
    """What the text of a report is made from."""

    runs: list[dict[str, Any]] = field(default_factory=list)
    """`name` and the summary of each run."""
    comparison: list[dict[str, Any]] = field(default_factory=list)
    """Rows of the comparison of remedies, as text."""
    swept: list[str] = field(default_factory=list)
    """Fields in which the runs differ."""
    figures: list[str] = field(default_factory=list)
    """Names of the images that the runs of whole sweeps hold."""


def cell(value: Any) -> str:
    """Of a Markdown table; nothing in it may end the cell or begin a tag."""
    text = "-" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
    return " ".join(text.split()).replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")


def markdown(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(map(cell, line))} |" for line in lines)


def verdicts(runs: Sequence[dict[str, Any]]) -> str:
    """How many runs of each verdict, then each with its sentence."""
    if not runs:
        return "The table of findings below has the verdict of each run."
    counts = Counter(run.get("verdict") or run.get("status") or "unfinished" for run in runs)
    counted = ", ".join(f"{count} {name}" for name, count in counts.most_common())
    columns = ("run", "verdict", "first failing update", "eval loss", "what was seen")
    fields = ("name", "verdict", "first_failing_update", "eval/loss", "sentence")
    shown = markdown(columns, [[run.get(name) for name in fields] for run in runs[:SHOWN]])
    more = f"\n\n({len(runs) - SHOWN} more: see the runs below)" if len(runs) > SHOWN else ""
    return f"{len(runs)} run{'s' * (len(runs) != 1)}: {counted}.\n\n{shown}{more}"


def build(entity: str, project: str, group: str | None, content: ReportContent) -> Any:
    """The Report."""
    wr: Any = importlib.import_module("wandb_workspaces.reports.v2")

    def runs(name: str, sweep: bool) -> Any:
        """Of the report's project, without a look-up."""
        filters = f"Metric('JobType') {'==' if sweep else '!='} 'sweep'"
        filters += f" and Metric('Group') == {group!r}" if group else ""
        columns = ["run:displayName", "summary:verdict", "summary:first_failing_update", "summary:eval/loss"]
        return wr.Runset(name=name, filters=filters, pinned_columns=columns)

    of_sweep = [wr.WeavePanelSummaryTable(table_name=name) for name in ("comparison", "map", "results")]
    of_sweep += [wr.MediaBrowser(media_keys=content.figures)] if content.figures else []
    blocks: list[Any] = [
        wr.H1(text="Verdicts"),
        wr.MarkdownBlock(text=verdicts(content.runs)),
        wr.H1(text="Curves"),
        wr.PanelGrid(runsets=[runs("runs", False)], panels=curves(wr)),
        wr.H1(text="Findings"),
        wr.PanelGrid(runsets=[runs("runs", False)], panels=[wr.WeavePanelSummaryTable(table_name="findings")]),
        wr.H1(text="Comparison"),
        *([wr.MarkdownBlock(text=comparison(content.comparison))] if content.comparison else []),
        wr.PanelGrid(runsets=[runs("runs", False)], panels=compared(wr, content.swept)),
        wr.H2(text="The sweep as a whole"),
        wr.PanelGrid(runsets=[runs("sweep", True)], panels=of_sweep),
    ]
    title = f"gradlab: {group or project}"[:128]
    first = f"{len(content.runs)} runs. Made by python -m gradlab.report --wandb." if content.runs else ""
    return wr.Report(entity=entity, project=project, title=title, description=first, blocks=blocks, width="fluid")


def curves(wr: Any) -> list[Any]:
    """Of single runs, over updates. wr: the module of W&B Reports."""

    def line(title: str, *y: str, log: bool = False) -> Any:
        return wr.LinePlot(title=title, x="update", y=list(y), log_y=log or None, ignore_outliers=False)

    return [
        line("loss", "train/loss"),
        line("eval loss", "eval/loss"),
        line("gradient norm before clipping", "grad/norm", log=True),
        line("clip coefficient", "clip/coefficient"),
        line("loss scale", "amp/scale", log=True),
        line("learning rate", "lr"),
        line("skipped updates", "update/skipped"),
        line("not finite", "nonfinite/train/loss", "nonfinite/grad/norm", "nonfinite/layers"),
        line("update / parameter", "update/ratio", log=True),
    ]


def comparison(rows: Sequence[dict[str, Any]]) -> str:
    columns = list(rows[0])
    return markdown(columns, [[row[c] for c in columns] for row in rows])


def compared(wr: Any, swept: Sequence[str]) -> list[Any]:
    """The runs side by side. swept: fields in which they differ."""
    panels: list[Any] = [wr.RunComparer(diff_only="split")]
    if swept:
        column = wr.ParallelCoordinatesPlotColumn
        axes = [column(metric=wr.Config(of_config(name))) for name in swept[:8]]
        ends = [column(metric=wr.SummaryMetric(name)) for name in ("first_failing_update", "eval/loss")]
        panels.append(wr.ParallelCoordinatesPlot(columns=[*axes, *ends]))
    return panels


def of_config(name: str) -> str:
    """Where W&B keeps a swept field, an option of a group, or a remedy's name."""
    import gradlab.config.schema  # noqa: F401  (registers the options)
    from gradlab.base.option import OPTIONS

    if name == "remedy":
        return "remedies"
    return f"choices.{name}" if name in {group for group, _ in OPTIONS} else name
