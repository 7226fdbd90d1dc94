"""The weights that a run begins with, where an experiment makes them: run once, then found again."""

from __future__ import annotations

import hashlib
import platform
import shutil
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf

from gradlab.base.distributed import World
from gradlab.base.lock import turn
from gradlab.base.version import __version__
from gradlab.config.compose import experiment
from gradlab.config.schema import Config, to_config
from gradlab.config.trainer import TrainerOption
from gradlab.loggers.progress import Progress
from gradlab.train.sink import FileSink, FunctionSink
from gradlab.train.trainer import Trainer


def pretrained(config: Config, world: World) -> str:
    """Folder of the final weights of the experiment that `pretrain` names: run once, then found again.

    The key is the whole configuration and the versions that decide the numbers. Rank 0 runs it, alone; DDP sends its
    weights to the others.
    """
    name = config.pretrain
    composed, key = compose_experiment(name, config.trainer, config.seed)
    folder = Path("outputs", "pretrained", f"{name}-{key}")
    if world.main and not (folder / "checkpoint.pt").is_file():
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock = folder.with_suffix(".lock")
        lock.touch()
        with turn(lock):  # of two runs at once, one trains and the other finds its weights
            if not (folder / "checkpoint.pt").is_file():
                partial = folder.with_suffix(".partial")  # renamed when complete: a kill leaves no half-trained weights
                shutil.rmtree(partial, ignore_errors=True)
                train(composed, partial, config.trainer.progress)
                partial.rename(folder)
    world.barrier()
    return str(folder)


def compose_experiment(name: str | None, trainer: TrainerOption, seed: int) -> tuple[DictConfig, str]:
    """An experiment's configuration with the run's device, threads and seed, and the key of its result."""
    where = [f"trainer.device={trainer.device}", f"trainer.threads={trainer.threads or 'null'}"]
    composed = experiment("pretrain", name, [*where, f"seed={seed}"])
    text = OmegaConf.to_yaml(composed, resolve=True, sort_keys=True)
    kind = "cuda" if trainer.device != "cpu" and torch.cuda.is_available() else "cpu"
    versions = f"{__version__} {platform.python_version()} {torch.__version__} {kind} {torch.get_num_threads()}"
    return composed, hashlib.sha256(f"{text}{versions}".encode()).hexdigest()[:8]


def train(composed: DictConfig, folder: Path, progress: str) -> None:
    """Run an experiment for its weights."""
    config = to_config(composed)
    shown = Progress(progress, True)
    folder.mkdir(parents=True, exist_ok=True)
    OmegaConf.save(composed, folder / "config.yaml", resolve=True)
    plain: Any = OmegaConf.to_container(composed, resolve=True)
    sinks = (FileSink(), FunctionSink(lambda metrics, layers: shown.log(metrics) if "train/loss" in metrics else None))
    trainer = Trainer(config, folder, sinks=sinks, plain_config=plain, say=shown.say)
    shown.total = trainer.planned
    shown.say(f"pretraining, once ({shown.total} updates, kept in {folder.parent}): {config.story.strip()}")
    shown.start()
    try:
        outcome = trainer.run()
    finally:
        shown.finish(trainer.outcome.attempts)
    if outcome.status == "interrupted":
        raise KeyboardInterrupt
    if outcome.status != "completed":
        raise RuntimeError(f"pretraining {folder.name} {outcome.status}: {outcome.error}")
