"""What a run's page is made from: the texts in a run's folder, and what is known of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from gradlab.base.command import command, kept
from gradlab.base.option import Invalid
from gradlab.loggers.thinning import telling, thinned
from gradlab.runs.files import choices_of

BYTES = 1_500_000
"""Of metrics.jsonl, and as much of layers.jsonl, that a page holds; of longer ones some lines."""


@dataclass
class Folder:
    """A run, as its folder tells it. Nothing but metrics.jsonl or diagnosis.json has to be there."""

    path: Path
    metrics: str = ""
    layers: str = ""
    thinned: dict[str, list[int]] = field(default_factory=dict)
    """File -> lines that the page holds, lines that there are; of the files that were too long."""
    diagnosis: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    choices: dict[str, str] = field(default_factory=dict)
    """Group -> option."""
    overrides: list[str] = field(default_factory=list)
    environment: dict[str, Any] = field(default_factory=dict)
    replay: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return "/".join(self.path.resolve().parts[-2:])

    def facts(self) -> dict[str, Any]:
        """All but the two long texts."""
        return {
            "name": self.name,
            "folder": str(self.path.absolute()),
            "thinned": self.thinned,
            "diagnosis": self.diagnosis,
            "config": self.config,
            "choices": self.choices,
            "overrides": self.overrides,
            "environment": self.environment,
            "replay": self.replay,
            "crash": (self.path / "crash.pt").is_file(),
            "sentence_of_overflow": overflow(self.diagnosis.get("first_overflow")),
            "commands": self.commands(),
        }

    def commands(self) -> dict[str, Any]:
        """To be pasted: the run again, each of its remedies, and what else can be done with its folder."""
        tries = self.diagnosis.get("remedies") or []
        return {
            "again": command(self.overrides),
            "remedies": [
                command([*kept(self.overrides, t["overrides"]), *t["overrides"], "expect=healthy"]) for t in tries
            ],
            "resume": command([f"resume={self.path.absolute()}"]),
            "replay": command([str(self.path.absolute())], "gradlab.replay"),
        }


def read(path: Path, most: int = BYTES, config: dict[str, Any] | None = None) -> Folder:
    """The run in a folder; `Invalid` where what it holds cannot be read.

    most: bytes of each long text; 0: none of them. config: its configuration, where it is at hand.
    """
    run = Folder(path)
    try:
        run.diagnosis = loaded(path / "diagnosis.json")
        run.environment, run.replay = loaded(path / "environment.json"), loaded(path / "replay.json")
        for name in ("metrics", "layers") if most else ():
            keep = partial(telling, buckets=1000) if name == "metrics" else lambda lines: {0, 1}
            text, counts = lines_of(path / f"{name}.jsonl", most, keep)
            setattr(run, name, text)
            if counts:
                run.thinned[f"{name}.jsonl"] = counts
        run.config = yaml_of(path / ".hydra" / "config.yaml") if config is None else config
        run.choices = choices_of(path, run.diagnosis)
        run.overrides = run.diagnosis.get("overrides") or yaml_of(path / ".hydra" / "overrides.yaml") or []
    except ValueError as error:
        said = " ".join(str(error).split())[:200]
        raise Invalid("FOLDER", path, f"holds a file that cannot be read ({said})") from None
    return run


def loaded(path: Path) -> dict[str, Any]:
    """A JSON object; empty where there is no such file."""
    found = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    if not isinstance(found, dict):
        raise ValueError(f"{path.name} holds no JSON object")
    return found


def yaml_of(path: Path) -> Any:
    """A YAML file; empty where there is none. Interpolations stay as they were written."""
    import yaml

    if not path.is_file():
        return {}
    try:
        return yaml.load(path.read_text(encoding="utf-8"), getattr(yaml, "CSafeLoader", yaml.SafeLoader)) or {}
    except yaml.YAMLError as error:
        raise ValueError(f"{path.name}: {error}") from None


def lines_of(path: Path, most: int, keep: Callable[..., set[int]]) -> tuple[str, list[int]]:
    """The whole lines of a file, no more than about `most` bytes; if thinned, how many of how many."""
    if not path.is_file():
        return "", []
    text = path.read_bytes()
    text = text[: text.rfind(b"\n") + 1]  # a kill may have cut the last line short
    if len(text) <= most:
        return text.decode(), []
    lines = text.splitlines(keepends=True)
    shown = thinned(lines, max(20, int(most * len(lines) / len(text))), keep)
    return b"".join(shown).decode(), [len(shown), len(lines)]


def overflow(told: dict[str, Any] | None) -> str:
    """The sentence of diagnosis.json's first_overflow."""
    from gradlab.diagnosis.replay.overflow import Overflow, Range

    if not told:
        return ""
    try:
        ranges = {k: Range(**told[k]) if told.get(k) else None for k in ("outputs", "targets")}
        return str(Overflow(**told | ranges))  # type: ignore[arg-type]
    except (TypeError, ValueError):  # of another version
        return ""
