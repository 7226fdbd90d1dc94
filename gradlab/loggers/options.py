"""The fields of `logger=`, and what every logger does."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional, Protocol

from gradlab.option import one_of, option, require


class Sink(Protocol):
    """Receives every line of metrics, in order, on rank 0."""

    def log(self, metrics: dict[str, Any]) -> None: ...

    def finish(self, summary: dict[str, Any]) -> None: ...


@dataclass
class LoggerOption:
    """Base of the options."""

    def build(self, folder: Path, config: dict[str, Any], group: str) -> Optional[Sink]:
        """The logger of one run; None where local files are all."""
        return None


@option("logger", "none")
@dataclass
class NoLogger(LoggerOption):
    """Local files only."""


@option("logger", "wandb")
@dataclass
class WandbOption(LoggerOption):
    """Weights & Biases: online with an account, offline without."""

    project: str = "gradlab"
    """W&B project."""
    entity: Optional[str] = None
    """W&B user or team; null: the account's default."""
    name: Optional[str] = None
    """Name of the run; null: its folder's."""
    tags: list[str] = field(default_factory=list)
    """Tags of the run."""
    mode: str = "auto"
    """auto: online with an account, offline without, disabled in CI; online, offline, disabled."""
    timeout: float = 10.0
    """Seconds that a lost network may delay the start or the end."""

    def __post_init__(self) -> None:
        one_of("mode", self.mode, ("auto", "online", "offline", "disabled"))
        require(self.timeout > 0, "timeout", self.timeout, "> 0")

    def build(self, folder: Path, config: dict[str, Any], group: str) -> Optional[Sink]:
        from gradlab.loggers.wandb import WandbSink

        return WandbSink(self, folder, config, group)
