"""What a run's page holds: the facts of its record, and the text of its long files."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from gradlab.base.command import command, pasted, untreated
from gradlab.base.option import Invalid
from gradlab.loggers.thinning import telling, thinned
from gradlab.runs.expectation import judged
from gradlab.runs.record import RunRecord

BYTES = 1_500_000
"""Of metrics.jsonl, and as much of layers.jsonl, that a page holds; of longer files some lines."""
READ = ("diagnosis.json", "environment.json", "replay.json", ".hydra/config.yaml", ".hydra/overrides.yaml")


def facts(run: RunRecord) -> dict[str, Any]:
    """All but the long texts. Raises `Invalid` where a file cannot be read."""
    run.check(*READ)
    return {
        "name": run.name,
        "folder": str(run.path.absolute()),
        "thinned": {},
        "diagnosis": run.diagnosis,
        "config": run.config,
        "choices": run.choices,
        "overrides": run.overrides,
        "environment": run.environment,
        "replay": run.replay,
        "crash": (run.path / "crash.pt").is_file(),
        "clip_threshold": run.clip_threshold,
        "sentence_of_overflow": str(run.first_overflow or ""),
        "expectation": judged(run)[1] if run.verdict else "",
        "commands": commands(run),
    }


def commands(run: RunRecord) -> dict[str, Any]:
    """To be pasted: the run again, each of its remedies, and what else can be done with its folder."""
    found, given = run.diagnosis.get("remedies") or [], untreated(run.overrides, run.remedy)
    return {
        "again": command(run.overrides),
        "remedies": [
            command([*pasted(given, t["overrides"]), "expect=healthy"]) if t["overrides"] else t.get("lines", "")
            for t in found
        ],
        "fix": command([str(run.path.absolute())], "gradlab.fix") if any(t["overrides"] for t in found) else None,
        "resume": command([f"resume={run.path.absolute()}"]),
        "replay": command([str(run.path.absolute())], "gradlab.replay"),
    }


def text_of(run: RunRecord, name: str, most: int = BYTES) -> tuple[str, dict[str, list[int]]]:
    """The whole lines of metrics or layers, no more than about `most` bytes.

    Of a longer file also its name -> [lines in the text, lines of the file]. Raises `Invalid` where it is no text.
    """
    keep = partial(telling, buckets=1000) if name == "metrics" else lambda lines: {0, 1}
    try:
        text, counts = lines_of(run.path / f"{name}.jsonl", most, keep)
    except ValueError as error:
        raise Invalid("FOLDER", run.path, f"holds a file that cannot be read ({name}.jsonl: {error})") from None
    return text, {f"{name}.jsonl": counts} if counts else {}


def lines_of(path: Path, most: int, keep: Callable[..., set[int]]) -> tuple[str, list[int]]:
    """The whole lines of a file, and if thinned, how many of how many."""
    if not path.is_file():
        return "", []
    text = path.read_bytes()
    text = text[: text.rfind(b"\n") + 1]  # a kill may have cut the last line short
    if len(text) <= most:
        return text.decode(), []
    lines = text.splitlines(keepends=True)
    shown = thinned(lines, max(20, int(most * len(lines) / len(text))), keep)
    return b"".join(shown).decode(), [len(shown), len(lines)]
