"""What one command has come to, in this process."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path

from gradlab.base.option import Invalid


@dataclass
class Session:
    """The jobs and sweeps of one command. Hydra creates its callback and its jobs by itself: they find it here."""

    exit_codes: list[int] = field(default_factory=list)
    """Of the jobs that this process ran, and of those that a sweep's folder holds at its end."""
    sweeps: dict[Path, list[list[str]] | None] = field(default_factory=dict)
    """Folder of each sweep that began, and the overrides of each of its jobs, where they are known beforehand."""
    refused: Invalid | None = None
    """Why a sweep has no job."""
    to_fix: Path | None = None
    """The run that `fix=true` asks to fix, should it be unhealthy."""
    stored_overrides: dict[Path, str] = field(default_factory=dict)
    """overrides.yaml of the run that is resumed, and its text before."""

    def restore_overrides(self) -> None:
        """Undo what Hydra wrote of a resumption that was refused."""
        for path, text in self.stored_overrides.items():
            path.write_text(text)


_CURRENT: ContextVar[Session | None] = ContextVar("session", default=None)


def begin() -> Session:
    """The session of a new command."""
    session = Session()
    _CURRENT.set(session)
    return session


def current() -> Session:
    """The session of the command; in a process that a launcher started, one of its own."""
    return _CURRENT.get() or begin()
