"""The state of one command, in this process."""

from __future__ import annotations

from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gradlab.sweep.progress import SweepWatch


RAISES: ContextVar[bool] = ContextVar("raises", default=False)
"""`Session.raises` of the sessions that begin now."""


@dataclass
class Resumed:
    """A run that is resumed, as it was before."""

    files: dict[Path, bytes]
    """What is in .hydra."""
    given: set[str]
    """The fields and groups of the overrides given now."""
    config: dict[str, Any] | None
    """The configuration that the run began with; None where its checkpoint holds it."""

    def restore(self) -> None:
        """Undo what Hydra wrote of a resumption that was refused."""
        for path, content in self.files.items():
            with suppress(OSError):  # then Hydra could not write it either
                path.write_bytes(content)


@dataclass
class Session:
    """The jobs and sweeps of one command. Hydra creates its callback and its jobs by itself: they find it here."""

    exit_codes: list[int] = field(default_factory=list)
    """Exit codes of the jobs that this process ran, and of those that a sweep's folder holds at its end."""
    folders: list[Path] = field(default_factory=list)
    """Folders of the jobs that this process ran."""
    failures: list[BaseException] = field(default_factory=list)
    """Why jobs could not be run: faults of the configuration, of a user's code or of gradlab."""
    raises: bool = field(default_factory=lambda: RAISES.get())
    """Whether a program called it: a run's failure is raised there, and not also printed."""
    sweeps: dict[Path, list[list[str]] | None] = field(default_factory=dict)
    """Folder of each sweep that began, and the overrides of each of its jobs, where they are known beforehand."""
    between_jobs: bool = False
    """Whether the job before has ended, and Hydra composes the next."""
    watch: SweepWatch | None = None
    """Says how far the sweep is."""
    to_fix: Path | None = None
    """The run that `fix=true` asks to fix, should it be unhealthy."""
    resumed: Resumed | None = None
    """The run that is resumed."""

    def stop_watching(self) -> None:
        """Stop reporting how far the sweep is."""
        if self.watch is not None:
            self.watch.stop()


_CURRENT: ContextVar[Session | None] = ContextVar("session", default=None)


def begin() -> Session:
    """The session of a new command."""
    session = Session()
    _CURRENT.set(session)
    return session


def current() -> Session:
    """The session of the command; in a process that a launcher started, one of its own."""
    return _CURRENT.get() or begin()
