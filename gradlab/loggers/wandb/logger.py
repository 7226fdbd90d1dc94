"""Weights & Biases. Whatever happens to its service, training continues, and ends no later than the time-out.

A line of metrics.jsonl is a step of the history, numbered alike; charts are over `update`, which a skipped update
repeats. A resumed run continues the same W&B run, without the lines that it holds already. Offline each part is a file
of its own with the same id, and `wandb sync` sends them in order; what was begun offline continues offline until then.
What is not possible: W&B takes no lines back, so a run that is resumed with other values keeps the lines that it had
logged after its checkpoint; and offline parts are one run only once they are sent.
"""

from __future__ import annotations

import logging
import queue
import shlex
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gradlab.base.json_lines import plain
from gradlab.base.version import __version__
from gradlab.loggers import rows
from gradlab.loggers.base import About
from gradlab.loggers.local import read_run
from gradlab.loggers.settings import WandbSettings
from gradlab.loggers.summary import summary
from gradlab.loggers.wandb import folder as run_folder
from gradlab.loggers.wandb import service
from gradlab.update.recorder import Layers

log = logging.getLogger(__name__)
CRASH = {"crash.pt": "crash"}
KINDS: dict[str, dict[str, str]] = {
    "none": {},
    "crash": CRASH,
    "all": CRASH | {"checkpoint.pt": "model", "report.html": "page"},
}
"""Files that are uploaded, and what kind of artifact each is."""
WAITING = 200_000
"""Lines that may wait for W&B before it is given up."""


class WandbLogger:
    """One W&B run. Lines are sent by a thread, so that the training does not wait for them."""

    def __init__(self, option: WandbSettings, about: About) -> None:
        self.option, self.about = option, about
        self.step, self.logged_at = about.lines, 0
        wanted = service.mode(option.mode)
        parts = run_folder.earlier(about.folder) if about.config.get("resume") and wanted != "disabled" else []
        if wanted == "online" and any(map(run_folder.waits, parts)):
            log.warning("an earlier part of this W&B run waits for `wandb sync`: it continues offline")
            wanted = "offline"
        for part in filter(run_folder.waits, parts):
            run_folder.truncate_partial_record(part)
        self.run = service.begin(wanted, option.timeout, self.settings(), **self.identity(parts))
        if about.live and not self.run.offline:
            service.print_address(self.run)
        self.first = max(self.run.starting_step, run_folder.logged(parts) if self.run.offline else 0)
        """The step from which on lines are new."""
        self.run.define_metric("update")
        self.run.define_metric("*", step_metric="update")
        self.waiting: queue.Queue[tuple[int, dict[str, Any], Layers | None] | None] = queue.Queue(WAITING)
        self.fault: Exception | None = None
        for i, (line, layers) in enumerate(read_run(about.folder) if self.first < about.lines else ()):
            if self.first <= i < about.lines:  # a kill has cost W&B what the run's own files hold
                self.waiting.put_nowait((i, line, layers))
        self.thread = threading.Thread(target=self.hand_over, daemon=True, name="gradlab-wandb")
        self.thread.start()

    def identity(self, parts: list[Path]) -> dict[str, Any]:
        """What names the run."""
        option, about = self.option, self.about
        more = {
            "experiment": about.experiment,
            "overrides": about.overrides,
            "choices": about.choices,
            "remedies": "+".join(about.config.get("remedy") or {}) or None,
            "gradlab": __version__,
        }
        return {
            "project": option.project,
            "entity": option.entity,
            "group": option.group or run_folder.group_of(about.folder, about.experiment),
            "job_type": option.job_type,
            "name": option.name or run_folder.name_of(about.folder, about.overrides),
            "tags": option.tags or None,
            "notes": " ".join((about.config.get("story") or "").split()) or None,
            "dir": str(about.folder),
            "config": about.config | more,
            "id": run_folder.id_of(parts),
            "resume": "allow" if parts else None,
        }

    def settings(self) -> dict[str, Any]:
        """The code's state or not; of a run that is over nothing of the machine, which takes longer than its lines."""
        live = self.about.live
        return self.option.of_code | {"x_disable_stats": not live, "x_save_requirements": live}

    def log(self, metrics: dict[str, Any], layers: Layers | None) -> None:
        if self.fault is not None:
            raise self.fault
        self.step += 1
        if self.step > self.first:
            self.waiting.put_nowait((self.step - 1, metrics, layers))

    def hand_over(self) -> None:
        """Give W&B what waits, in another thread, until the end is among it."""
        while (line := self.waiting.get()) is not None:
            try:
                step, metrics, layers = line
                self.run.log(rows.with_nonfinite(metrics) | self.of_layers(metrics, layers), step=step, commit=True)
            except Exception as error:
                self.fault = error
                return

    def of_layers(self, metrics: dict[str, Any], layers: Layers | None) -> dict[str, Any]:
        """Norms of single parameters and a histogram of all, at the cadence that was asked for."""
        attempt, every = metrics.get("attempt", 0), self.option.layers_every
        if not every or not layers or (self.logged_at and attempt < self.logged_at + every):
            return {}
        import wandb

        self.logged_at = attempt
        made = rows.of_layers(self.about.layers.get("names") or [], layers, self.option.max_layers)
        if (histogram := rows.decades(layers.get("grad/layer") or [])) is not None:
            made["grad/layers_log10"] = wandb.Histogram(np_histogram=histogram)  # type: ignore[arg-type]
        return made

    def finish(self, diagnosis: dict[str, Any], folder: Path) -> None:
        """Hand over the summary, the findings and the files, and send what is left, within the time-out."""
        failed = diagnosis.get("outcome", {}).get("status") in ("failed", "error")
        self.waiting.put(None)

        def attempt(*steps: Callable[[dict[str, Any], Path], None]) -> None:
            for step in steps:
                try:
                    step(diagnosis, folder)
                except Exception as error:
                    self.fault = self.fault or error

        def conclude() -> None:
            self.thread.join()
            attempt(self.sum_up, self.alert)
            # these ask the service; were it silent, the end of the file would not be written
            service.within(self.option.timeout * service.ASKING, lambda: attempt(self.show, self.upload))
            self.run.finish(exit_code=int(failed))

        ended = service.end(conclude, self.option.timeout)
        if self.run.offline and run_folder.sweep_of(folder) is None:  # a sweep prints it once, for all its jobs
            service.print_address(
                self.run, *(shlex.quote(str(p)) for p in run_folder.earlier(folder) if run_folder.waits(p))
            )
        if ended and self.fault is not None:
            raise self.fault

    def sum_up(self, diagnosis: dict[str, Any], folder: Path) -> None:
        self.run.summary.update(summary(diagnosis))

    def show(self, diagnosis: dict[str, Any], folder: Path) -> None:
        import wandb

        if found := rows.findings(diagnosis):
            table = wandb.Table(columns=list(rows.FINDINGS), data=found)
            self.run.summary["findings"] = table  # no line of the history: a resumed run continues with the next

    def alert(self, diagnosis: dict[str, Any], folder: Path) -> None:
        for finding in rows.critical(diagnosis) if self.option.alerts else []:
            self.run.alert(title=finding["code"][:63], text=finding["sentence"], level="ERROR")

    def upload(self, diagnosis: dict[str, Any], folder: Path) -> None:
        import wandb

        for name, kind in KINDS[self.option.artifacts].items():
            if (folder / name).is_file():
                of_it = plain(summary(diagnosis))
                artifact = wandb.Artifact(f"run-{self.run.id}-{name.partition('.')[0]}", kind, metadata=of_it)
                artifact.add_file(str(folder / name), policy="immutable", skip_cache=True)  # no copies elsewhere
                self.run.log_artifact(artifact)
