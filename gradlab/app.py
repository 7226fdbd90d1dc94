"""The command: compose a configuration, run it, diagnose it, and end with what was expected or not."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from gradlab.distributed import World


def main() -> None:
    """Entry point of `python -m gradlab` and of the `gradlab` script."""
    from gradlab import cli

    arguments = sys.argv[1:]
    if {"--help", "-h"} & set(arguments):
        print(cli.help_text())
        return
    try:
        sys.exit(launch(arguments))
    except KeyboardInterrupt:
        sys.exit(130)


def launch(arguments: list[str]) -> int:
    """Run Hydra on the arguments; returns the exit code."""
    from gradlab import cli
    from gradlab.distributed import leave, under_torchrun
    from gradlab.lazy import lazy_import

    if not under_torchrun():
        lazy_import("torch")
    main_rank = os.environ.get("RANK", "0") == "0"
    try:
        sys.path.insert(0, os.getcwd())  # a user's own modules, from a console script too
        return cli.run_hydra(cli.resumed(arguments), main_rank)
    except Exception as error:
        message = cli.explain(error)
        if message is None:
            raise
        if main_rank:
            print(f"gradlab: {message}", file=sys.stderr)
        return 2
    finally:
        leave()


def run_job(cfg: DictConfig) -> int:
    """One job, from its composed configuration; never raises for what a user did, so that a sweep goes on."""
    from hydra.core.hydra_config import HydraConfig

    from gradlab import cli
    from gradlab.distributed import world

    place = world()
    hydra = HydraConfig.get()
    folder = Path(hydra.runtime.output_dir)
    overrides = list(hydra.overrides.task)
    group = hydra.runtime.choices.get("experiment") or "run"
    try:
        return execute(cfg, folder, overrides, group, place)
    except Exception as error:
        message = cli.explain(error)
        if place.size > 1:
            abandon(place, message)
        if message is None:
            raise
        print(f"gradlab: {message}", file=sys.stderr)
        if set(p.name for p in folder.iterdir()) <= {".hydra", "gradlab.log"} and not cfg.get("resume"):
            shutil.rmtree(folder, ignore_errors=True)  # nothing ran
        return 2


def abandon(place: World, message: str | None) -> None:
    """One rank failed: say why and leave at once, so that the launcher ends the others instead of letting them wait."""
    import traceback

    if message is None:
        traceback.print_exc()
    elif place.main:
        print(f"gradlab: {message}", file=sys.stderr)
    else:
        print(f"gradlab: rank {place.rank}: {message}", file=sys.stderr)
    sys.stderr.flush()
    sys.stdout.flush()
    os._exit(1 if message is None else 2)


def execute(cfg: DictConfig, folder: Path, overrides: list[str], group: str, place: World) -> int:
    """Build, run, diagnose, say."""
    from omegaconf import OmegaConf

    from gradlab import verdict
    from gradlab.config import to_config
    from gradlab.diagnosis.rules import Stream, diagnose
    from gradlab.loggers.local import read_lines
    from gradlab.loggers.progress import Progress

    config = to_config(cfg)
    verdict.check_expectation(config.expect)
    plain: dict[str, Any] = OmegaConf.to_container(cfg, resolve=True)  # type: ignore[assignment]
    if config.pretrain:
        config.init_from = pretrained(config, place)

    from gradlab import snapshot
    from gradlab.trainer import Trainer

    stream = Stream(config.diagnosis)  # type: ignore[arg-type]
    progress = Progress(config.trainer.progress, 0, place.main)
    trainer = Trainer(config, folder, place, plain_config=plain, say=progress.say)
    stream.names = [name for name, _ in trainer.update.parameters]
    sink = config.logger.build(folder, plain, group) if place.main else None

    def observe(metrics: dict[str, Any], layers: list[float | None] | None) -> None:
        stream.observe(metrics, layers)
        if "train/loss" in metrics:
            progress.log(metrics)
        if sink is not None:
            sink.log(metrics)

    trainer.sinks = (observe,)
    if config.resume:
        cli_layers = {line["attempt"]: line["grad/layer"] for line in read_lines(folder / "layers.jsonl") if "attempt" in line}
        for line in read_lines(folder / "metrics.jsonl"):
            stream.observe(line, cli_layers.get(line["attempt"]))
    if config.story:
        progress.say(config.story.strip())
    progress.total = trainer.planned
    progress.start()
    try:
        outcome = trainer.run()
    finally:
        progress.finish({"update": trainer.outcome.applied})
    diagnosis = diagnose(stream, outcome.status, outcome.error, config.diagnosis)  # type: ignore[arg-type]
    overflow = snapshot.find_overflow(trainer) if outcome.status == "failed" else None
    code, expectation = verdict.judge(config.expect, diagnosis)
    if outcome.status == "interrupted":
        code = 130
    if not place.main:
        return code
    verdict.write(folder, diagnosis, outcome, overflow, code)
    if sink is not None:
        sink.finish(verdict.summary(diagnosis, outcome))
    lines = verdict.tell(diagnosis, outcome, overflow, config.optimizer.lr, overrides, folder)
    if outcome.status == "interrupted":
        lines.insert(1, f"to go on: {verdict.command([f'resume={folder}'])}")
    verdict.show(f"verdict: {diagnosis.verdict}", lines + [expectation] * bool(expectation), code == 0, place.main)
    return code


def pretrained(config: Any, place: World) -> str:
    """Folder of the final weights of the experiment that `pretrain` names: run once, then found again.

    The key is the whole configuration and the versions that decide the numbers. Rank 0 runs it, alone; DDP hands its weights
    to the others.
    """
    import fcntl

    from gradlab import cli

    name = config.pretrain
    composed, key = cli.compose_experiment(name, config.trainer.device)
    folder = Path("outputs", "pretrained", f"{name}-{key}")
    if place.main and not (folder / "checkpoint.pt").is_file():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with folder.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # of two runs at once, one trains and the other finds its weights
            if not (folder / "checkpoint.pt").is_file():
                cli.pretrain(composed, folder, config.trainer.progress)
    place.barrier()
    return str(folder)
