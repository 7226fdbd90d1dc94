"""What every logger is and is given."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional, Protocol

if TYPE_CHECKING:
    from gradlab.update.recorder import Layers  # which imports PyTorch


@dataclass
class About:
    """What a logger is given of a run as it begins."""

    folder: Path
    config: dict[str, Any]
    """The resolved configuration, as plain values."""
    experiment: str
    """The experiment's name, or `run`."""
    layers: dict[str, list[str]] = field(default_factory=dict)
    """The first line of layers.jsonl: `names` are those of the columns of what `log` is given of layers."""
    overrides: list[str] = field(default_factory=list)
    """The overrides as typed."""
    live: bool = True
    """Whether the run is under way, and not logged at its end."""
    choices: dict[str, str] = field(default_factory=dict)
    """Group -> option, which the configuration itself does not say."""
    lines: int = 0
    """Lines of metrics.jsonl that a resumed run leaves standing: earlier ones were logged before."""
    summarise: Callable[[Path], Sequence[str]] = lambda folder: ()
    """The lines that sum up the run in a folder, once it has ended with a verdict."""
    draw: Callable[[Path], Iterable[Path]] = lambda folder: ()
    """Draws the figures of the run in a folder, and returns their files."""


class RunLogger(Protocol):
    """A logger at work, on rank 0. What it raises costs the run that logger (see gradlab.loggers.several)."""

    def log(self, metrics: dict[str, Any], layers: Layers | None) -> None:
        """Take in one line of metrics.jsonl, in order, and what was recorded of layers then."""

    def finish(self, diagnosis: dict[str, Any], folder: Path) -> None:
        """Take in the content of diagnosis.json; of a run that ended without one, its outcome alone."""


@dataclass
class LoggerOption:
    """Base of the options. Local files are always written, and are no option."""

    def check(self) -> None:
        """Raise `Invalid` where this machine cannot do what the fields ask for; before PyTorch is imported."""

    def build(self, about: About) -> Optional[RunLogger]:
        """The logger of one run; None where there is nothing to do."""
        return None
