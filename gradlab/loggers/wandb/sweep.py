"""The W&B run that shows a sweep as a whole: its jobs, the comparison of remedies and the map, as tables and media."""

from __future__ import annotations

import csv
import json
import shlex
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gradlab.loggers.settings import WandbSettings
from gradlab.loggers.wandb import folder as run_folder
from gradlab.loggers.wandb import service

FIGURES = 40
"""Figures of a sweep that are logged."""


def write(folder: Path, rows: Sequence[dict[str, Any]]) -> None:
    """From what a sweep has left in its folder, where its jobs logged to W&B; failures are reported in a line.

    rows: of results.csv.
    """
    try:
        found = settings_of(folder, [row["job"] for row in rows])
        if found is not None:
            log(folder, rows, *found)
    except Exception as error:
        why = " ".join(str(error).split())[:200] or type(error).__name__
        print(f"gradlab: logger wandb could not show the sweep as a whole: {why}", file=sys.stderr, flush=True)


def settings_of(folder: Path, jobs: Sequence[str]) -> tuple[WandbSettings, str] | None:
    """The first job's fields of logger.wandb and its experiment; None where none logs to W&B."""
    import yaml

    for job in jobs:
        path = folder / job / ".hydra" / "config.yaml"
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
        if "\n  wandb:\n" not in text or not (given := (yaml.safe_load(text)["logger"] or {}).get("wandb")):
            continue
        option = WandbSettings(**given)
        hydra = yaml.safe_load((folder / job / ".hydra" / "hydra.yaml").read_text(encoding="utf-8"))["hydra"]
        return option, hydra["runtime"]["choices"].get("experiment") or "run"
    return None


def log(folder: Path, rows: Sequence[dict[str, Any]], option: WandbSettings, experiment: str) -> None:
    """One W&B run in the group of the jobs; a resumed sweep continues in the same one."""
    import wandb

    parts = run_folder.earlier(folder)
    wanted = service.mode(option.mode)
    if wanted == "online" and any(map(run_folder.waits, parts)):
        wanted = "offline"
    run = service.begin(
        wanted,
        option.timeout,
        option.of_code | {"x_disable_stats": True},
        project=option.project,
        entity=option.entity,
        group=option.group or run_folder.group_in(folder, experiment),
        job_type="sweep",
        name=folder.resolve().name,
        tags=option.tags or None,
        dir=str(folder),
        config={"experiment": experiment, "overrides": sorted(run_folder.common(folder.resolve()))},
        id=run_folder.id_of(parts),
        resume="allow" if parts else None,
    )

    run.summary.update(summary(folder, rows))
    failed: list[Exception] = []

    def show() -> None:
        try:
            for name, (columns, data) in tables(folder, rows).items():
                run.summary[name] = wandb.Table(columns=[*columns], data=data, allow_mixed_types=True)
            if found := figures(folder):
                run.log({name: wandb.Image(str(path)) for name, path in found.items()})
        except Exception as error:
            failed.append(error)

    def conclude() -> None:
        service.within(option.timeout * service.ASKING, show)
        run.finish()

    ended = service.end(conclude, option.timeout)
    within = shlex.quote(str(folder))
    service.print_address(run, *(f"{within}/{at}wandb/offline-run-*" for at in ("*/", "")))
    if ended and failed:
        raise failed[0]


def figures(folder: Path) -> dict[str, Path]:
    """Name in W&B -> file, of the figures of a sweep."""
    return {f"figures/{path.stem}": path for path in sorted((folder / "figures").glob("*.png"))[:FIGURES]}


def tables(folder: Path, rows: Sequence[dict[str, Any]]) -> dict[str, tuple[list[str], list[list[Any]]]]:
    """Name -> columns and rows: `results` a job, `comparison` a remedy, `map` a point."""
    made = {"results": table(rows)}
    if (folder / "comparison.csv").is_file():
        with (folder / "comparison.csv").open(newline="") as file:
            made["comparison"] = table([{k: number(v) for k, v in row.items()} for row in csv.DictReader(file)])
    if (folder / "map.json").is_file():
        content = json.loads((folder / "map.json").read_text(encoding="utf-8"))
        axes = [content[axis]["name"] for axis in ("x", "y") if content[axis]]
        points = [
            dict(zip(axes, (point["x"], point["y"])))
            | piece["fields"]
            | {"outcome": point["outcome"], "stable": point["stable"], "jobs": " ".join(point["jobs"])}
            for piece in content["slices"]
            for point in piece["points"]
        ]
        made["map"] = table(points)
    return {name: content for name, content in made.items() if content[1]}


def table(rows: Sequence[dict[str, Any]]) -> tuple[list[str], list[list[Any]]]:
    """Columns in the order in which they first appear, and the rows; what is no plain value as text."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    return columns, [[simple(row.get(name)) for name in columns] for row in rows]


def simple(value: Any) -> Any:
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)


def number(text: str) -> Any:
    """A cell of a CSV file: a number where it is one, None where it is empty."""
    try:
        return float(text)
    except ValueError:
        return text or None


def summary(folder: Path, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """How many jobs, how many of each verdict, and what the map recommends."""
    verdicts = Counter(row["verdict"] or "error" for row in rows)
    made: dict[str, Any] = {"jobs": len(rows)} | {f"verdicts/{name}": count for name, count in verdicts.items()}
    if (folder / "map.json").is_file():
        for i, piece in enumerate(json.loads((folder / "map.json").read_text(encoding="utf-8"))["slices"]):
            if best := piece["recommendation"]:
                made[f"recommendation{f'/{i}' if i else ''}"] = best["says"]
    return made
