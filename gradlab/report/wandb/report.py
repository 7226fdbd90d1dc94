"""A W&B Report: the verdicts in words, the runs' curves, and the comparison; `--dry-run` prints what would be sent."""

from __future__ import annotations

import json
import logging
import sys
from argparse import Namespace
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gradlab.base.errors import Usage
from gradlab.base.json_lines import number
from gradlab.base.option import Invalid
from gradlab.loggers.summary import summary
from gradlab.loggers.wandb import folder as run_folder
from gradlab.loggers.wandb import service
from gradlab.loggers.wandb import sweep as wandb_sweep
from gradlab.report.wandb.blocks import ReportContent, build
from gradlab.runs.record import RunRecord
from gradlab.runs.sweep_record import SweepRecord, swept

SECONDS = 30
"""Longest wait for W&B's service."""


def report(args: Namespace) -> int:
    """args: folders, wandb (ENTITY/PROJECT), group, dry_run. Returns the exit code."""
    entity, _, project = args.wandb.partition("/")
    if not entity or not project or "/" in project:
        raise Usage(f"--wandb {args.wandb}: must be ENTITY/PROJECT")
    if find_spec("wandb_workspaces") is None:
        raise Usage("--wandb: W&B Reports need an extra\n  pip install 'gradlab[reports]'")
    logging.getLogger("wandb").setLevel(logging.ERROR)
    if not args.dry_run and not service.account():
        raise Usage("--wandb: needs a W&B account (wandb login, or WANDB_API_KEY); --dry-run prints the report without")
    if args.folders:
        content = of_folders(args.folders)
    elif args.dry_run:
        content = of_folders(local(Path("outputs"), project, args.group))
    else:
        content = of_service(entity, project, args.group)
    if not content.runs:
        where = "below outputs" if args.dry_run else "in W&B"
        group = f" and group {args.group}" if args.group else ""
        why = f"no run {where} is of project {project}{group}: the report has panels, and no words about runs"
        print(f"gradlab: {why}", file=sys.stderr, flush=True)
    made = build(entity, project, args.group, content)
    if args.dry_run:
        print(json.dumps(specification(made), indent=2))
        return 0
    if not service.answers(service.server(), SECONDS):
        raise OSError(0, "does not answer", service.server())
    try:
        made.save()
    except Exception as error:  # whatever the service, or the way to it, has against it
        raise Usage(f"--wandb {args.wandb}: {' '.join(str(error).split())[:300] or repr(error)}") from None
    print(made.url)
    return 0


def specification(made: Any) -> dict[str, Any]:
    """A report as W&B's service is given it."""
    found: dict[str, Any] = json.loads(made._to_model().model_dump_json(by_alias=True, exclude_none=True))
    return found


def of_folders(folders: Sequence[Path]) -> ReportContent:
    """From runs and sweeps on this machine."""
    made = ReportContent()
    for folder in folders:
        if not folder.is_dir():
            raise Invalid("FOLDER", folder, "is a file" if folder.exists() else "no such folder")
        jobs = [RunRecord(folder)] if (folder / ".hydra").is_dir() else SweepRecord(folder).jobs
        if not jobs:
            raise Invalid("FOLDER", folder, "must be the folder of a run or of a sweep")
        made.swept += [name for name in swept([job.overrides for job in jobs]) if name not in made.swept]
        for job in jobs:
            made.runs.append({"name": run_folder.name_of(job.path, job.overrides)} | summary(job.diagnosis))
        made.figures += [name for name in wandb_sweep.figures(folder) if name not in made.figures]
        if (folder / "comparison.json").is_file():
            from gradlab.remedies.comparison_table import shown

            rows = [
                {k: number(v) for k, v in row.items()}
                for row in json.loads((folder / "comparison.json").read_text(encoding="utf-8"))
            ]
            made.comparison += [shown(row) for row in rows]
    return made


def local(root: Path, project: str, group: str | None) -> list[Path]:
    """Runs and sweeps below a folder that have logged to a project, and to a group if one is named."""
    import yaml

    found: dict[Path, None] = {}
    for file in sorted(root.rglob(".hydra/config.yaml")):
        folder, text = file.parent.parent, file.read_text(encoding="utf-8")
        if "\n  wandb:\n" not in text:
            continue
        option = (yaml.safe_load(text).get("logger") or {}).get("wandb") or {}
        sweep = run_folder.sweep_of(folder)
        mine = option.get("group") or run_folder.group_of(folder, (sweep or folder.resolve()).parent.name)
        if option.get("project") == project and group in (None, mine):
            found[sweep or folder] = None
    return list(found)


def of_service(entity: str, project: str, group: str | None) -> ReportContent:
    """From the runs that W&B holds."""
    import wandb

    try:
        runs = wandb.Api(timeout=SECONDS).runs(f"{entity}/{project}", filters={"group": group} if group else {})
        found = [(run.name, run.job_type, dict(run.config), dict(run.summary)) for run in runs]
    except Exception as error:
        raise Usage(f"--wandb {entity}/{project}: {' '.join(str(error).split())[:300] or repr(error)}") from None
    trained = [(name, config, values) for name, kind, config, values in found if kind != "sweep"]
    typed = [config.get("overrides") or [] for _, config, _ in trained]
    rows = [{"name": name} | {k: v for k, v in values.items() if k in KEPT} for name, _, values in trained]
    images = [name for _, kind, _, values in found if kind == "sweep" for name in values]
    figures = [name for name in dict.fromkeys(images) if name.startswith("figures/")]
    return ReportContent(rows, swept=swept(typed), figures=figures)


KEPT = ("verdict", "sentence", "status", "first_failing_update", "eval/loss", "update")
"""Values of a run's summary that the text needs."""


def add_arguments(parser: Any) -> None:
    """What `python -m gradlab.report` takes for this."""
    text = "write a W&B Report of a project's runs; with FOLDERs its text is about those"
    parser.add_argument("--wandb", metavar="ENTITY/PROJECT", help=text)
    parser.add_argument("--group", metavar="G", help="of --wandb: of one group of runs, as an experiment or a sweep")
    parser.add_argument("--dry-run", action="store_true", help="of --wandb: print it as JSON, without an account")


def asked(args: Namespace) -> bool:
    """Whether a W&B Report is wanted; `Usage` where only its options are given."""
    if args.wandb is None and (args.group is not None or args.dry_run):
        raise Usage(f"{'--group' if args.group is not None else '--dry-run'}: is of --wandb")
    return args.wandb is not None
