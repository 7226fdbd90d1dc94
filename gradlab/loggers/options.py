"""The fields of `logger=`, and what every logger does."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional, Protocol

from gradlab.base.errors import Usage
from gradlab.base.option import one_of, option, require
from gradlab.update.recorder import Layers

MODES = ("auto", "online", "offline", "disabled")


@dataclass
class About:
    """What a logger is told of a run as it begins."""

    folder: Path
    config: dict[str, Any]
    """The resolved configuration, as plain values."""
    experiment: str
    """The experiment's name, or `run`."""
    layers: dict[str, list[str]] = field(default_factory=dict)
    """The first line of layers.jsonl: `names` are those of the columns of what `log` is given of layers."""
    overrides: list[str] = field(default_factory=list)
    """As typed."""
    live: bool = True
    """Whether the run is under way, and not told at its end."""
    choices: dict[str, str] = field(default_factory=dict)
    """Group -> option, which the configuration itself does not say."""
    lines: int = 0
    """Lines of metrics.jsonl that a resumed run leaves standing: earlier ones were logged before."""
    summarise: Callable[[Path], Sequence[str]] = lambda folder: ()
    """The lines that sum up the run in a folder, once it has ended with a verdict."""
    draw: Callable[[Path], Iterable[Path]] = lambda folder: ()
    """Draws the figures of the run in a folder, and returns their files."""


class Sink(Protocol):
    """A logger at work, on rank 0. What it raises costs the run that logger (see gradlab.loggers.several)."""

    def log(self, metrics: dict[str, Any], layers: Layers | None) -> None:
        """Take in one line of metrics.jsonl, in order, and what was recorded of layers then."""

    def finish(self, told: dict[str, Any], folder: Path) -> None:
        """Take in what diagnosis.json in the run's folder says; of a run that ended without one, its outcome alone."""


@dataclass
class LoggerOption:
    """Base of the options. Local files are always written, and are no option."""

    def check(self) -> None:
        """Raise `Invalid` where this machine cannot do what the fields ask for; before PyTorch is imported."""

    def build(self, about: About) -> Optional[Sink]:
        """The logger of one run; None where there is nothing to do."""
        return None


@option("logger", "wandb")
@dataclass
class WandbOption(LoggerOption):
    """Weights & Biases: online with an account, offline without."""

    project: str = "gradlab"
    """W&B project."""
    entity: Optional[str] = None
    """W&B user or team; null: the account's default."""
    group: Optional[str] = None
    """Group of the run; null: of a sweep's jobs their sweep, else the experiment."""
    job_type: str = "train"
    """Kind of the run; the one that holds a sweep's tables is of the kind `sweep`."""
    name: Optional[str] = None
    """Name of the run; null: its folder's, in a sweep with what the job's overrides add to the sweep's."""
    tags: list[str] = field(default_factory=list)
    """Tags of the run."""
    mode: str = "auto"
    """auto: online with an account, offline without, disabled in CI; online, offline, disabled."""
    timeout: float = 10.0
    """Seconds that a lost network may delay the start, and the end: also what sending may take there (artifacts!)."""
    code: str = "git"
    """git: the commit and the changes since, as W&B records them; none."""
    layers_every: int = 50
    """Updates between two lines that hold what was recorded of layers (see monitor.every); 0: never."""
    max_layers: int = 50
    """Parameters whose norms are logged, evenly spaced over the model; a histogram holds those of all."""
    artifacts: str = "none"
    """Files that are uploaded: none; crash: crash.pt; all: checkpoint.pt and the page too."""
    alerts: bool = True
    """Whether a critical finding sends an alert."""

    def __post_init__(self) -> None:
        one_of("mode", self.mode, MODES)
        one_of("code", self.code, ("git", "none"))
        one_of("artifacts", self.artifacts, ("none", "crash", "all"))
        require(0 < self.timeout < math.inf, "timeout", self.timeout, "> 0")
        require(self.layers_every >= 0, "layers_every", self.layers_every, ">= 0")
        require(self.max_layers >= 1, "max_layers", self.max_layers, ">= 1")
        for name in ("project", "entity", "group", "name", "job_type"):
            given = getattr(self, name)
            require(given is None or 0 < len(given) <= 128, name, repr(given), "of 1 to 128 characters")
        require(not set(self.project) & set("/\\#?%:"), "project", self.project, "without any of / \\ # ? % :")
        for tag in self.tags:
            require(0 < len(tag) <= 64, "tags", repr(tag), "of 1 to 64 characters each")

    def check(self) -> None:
        given = os.environ.get("WANDB_MODE")
        if self.mode == "auto" and given:
            one_of("mode", f"auto with WANDB_MODE={given}", [f"auto with WANDB_MODE={m}" for m in MODES[1:]])

    def build(self, about: About) -> Optional[Sink]:
        from gradlab.loggers.wandb.logger import WandbSink

        return WandbSink(self, about)


@option("logger", "tensorboard")
@dataclass
class TensorBoardOption(LoggerOption):
    """TensorBoard's event files, in the run's folder."""

    layers_every: int = 50
    """Updates between two looks at the layers, of those that `monitor` records; 0: none. Metrics are logged always."""
    max_layers: int = 50
    """Parameters at most that have curves of their own, evenly by depth; histograms are over all."""
    figures: bool = False
    """Whether the run's figures are drawn at its end, which takes some seconds."""

    def __post_init__(self) -> None:
        require(self.layers_every >= 0, "layers_every", self.layers_every, ">= 0")
        require(self.max_layers >= 1, "max_layers", self.max_layers, ">= 1")

    def check(self) -> None:
        from importlib.util import find_spec

        if find_spec("tensorboard") is None:
            raise Usage(
                "logger=tensorboard: needs a package that is not installed:\n  pip install 'gradlab[tensorboard]'"
            )

    def build(self, about: About) -> Optional[Sink]:
        from gradlab.loggers.tensorboard import TensorBoardSink

        return TensorBoardSink(self, about)
