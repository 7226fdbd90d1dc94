"""The fields of `logger=`."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field
from typing import Optional

from gradlab.base.errors import Usage
from gradlab.base.option import at_least, one_of, require
from gradlab.loggers.base import LoggerOption

MODES = ("auto", "online", "offline", "disabled")


@dataclass
class WandbSettings(LoggerOption):
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
        at_least(self, layers_every=0, max_layers=1)
        for name in ("project", "entity", "group", "name", "job_type"):
            given = getattr(self, name)
            require(given is None or 0 < len(given) <= 128, name, repr(given), "of 1 to 128 characters")
        require(not set(self.project) & set("/\\#?%:"), "project", self.project, "without any of / \\ # ? % :")
        for tag in self.tags:
            require(0 < len(tag) <= 64, "tags", repr(tag), "of 1 to 64 characters each")

    @property
    def of_code(self) -> dict[str, bool]:
        """W&B's own settings for the state of the code."""
        off = self.code == "none"
        return {"disable_git": off, "disable_code": off, "save_code": not off}

    def check(self) -> None:
        given = os.environ.get("WANDB_MODE")
        if self.mode == "auto" and given:
            one_of("mode", f"auto with WANDB_MODE={given}", [f"auto with WANDB_MODE={m}" for m in MODES[1:]])


@dataclass
class TensorBoardSettings(LoggerOption):
    """TensorBoard's event files, in the run's folder."""

    layers_every: int = 50
    """Updates between two records of the layers, of those that `monitor` makes; 0: none. Metrics are logged always."""
    max_layers: int = 50
    """Parameters at most that have curves of their own, evenly by depth; histograms are over all."""
    figures: bool = False
    """Whether the run's figures are drawn at its end, which takes some seconds."""

    def __post_init__(self) -> None:
        at_least(self, layers_every=0, max_layers=1)

    def check(self) -> None:
        from importlib.util import find_spec

        if find_spec("tensorboard") is None:
            why = "needs a package that is not installed:\n  pip install 'gradlab[tensorboard]'"
            raise Usage(f"logger=tensorboard: {why}")
