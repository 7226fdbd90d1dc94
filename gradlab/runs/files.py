"""What a run's folder says, read for whatever lists, compares and judges runs; a page needs more: `report.folder`.

What a kill has cut short, or another version has written, reads as nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gradlab.base.command import key

LINE = re.compile(r"( *)([^\s#'\"-][^:\s]*):(?: (.*))?$")
PLAIN = re.compile(r"- \+{0,2}[a-zA-Z][^'\"#:\s]*")
"""A line of overrides.yaml that means what it says."""
REFUSED = "does not apply"
"""Stands for the verdict of a job whose remedy changes nothing."""


def told_by(folder: Path) -> dict[str, Any]:
    """diagnosis.json; empty of a run that was killed."""
    try:
        found = json.loads((folder / "diagnosis.json").read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def jobs_of(sweep: Path) -> list[Path]:
    """The folders of a sweep's jobs, in their order."""
    found = (p.parent.parent for p in sweep.rglob(".hydra/overrides.yaml"))
    return sorted(found, key=lambda p: (not p.name.isdigit(), int(p.name) if p.name.isdigit() else 0, p.name))


def runs_below(folder: Path) -> str:
    """Where runs are, of a folder that is none's: what a refusal adds."""
    runs = sorted({str(p.parent.relative_to(folder)) for p in folder.rglob("metrics.jsonl")})
    more = f" and {len(runs) - 5} more" if len(runs) > 5 else ""
    return f"; runs are in {', '.join(runs[:5])}{more}" if runs else ""


def overrides_of(folder: Path) -> list[str]:
    """As typed; most files are read without YAML's slow parser."""
    content = (folder / ".hydra" / "overrides.yaml").read_text()
    lines = content.splitlines()
    if all(PLAIN.fullmatch(line) for line in lines):
        return [line[2:] for line in lines]
    import yaml

    return [str(o) for o in yaml.safe_load(content) or []]


def choices_of(folder: Path, told: dict[str, Any]) -> dict[str, str]:
    """Group -> option, without Hydra's own groups; of a treated run those of its remedies.

    Not through a YAML reader, which takes longer than all the rest: a sweep has many jobs.
    """
    block = re.search(r"^    choices:\n((?:      .*\n)+)", text(folder / ".hydra" / "hydra.yaml"), re.MULTILINE)
    pairs = re.findall(r"^      ([\w-]+): (.+)$", block[1], re.MULTILINE) if block else []
    choices = {group: name.strip("'\"") for group, name in pairs if name != "null"}
    changed = (told.get("remedy") or {}).get("changed") or {}
    return choices | {name: new for name, (_, new) in changed.items() if name in choices}


def fields_of(folder: Path) -> dict[str, Any]:
    """Dotted field -> value of its configuration."""
    return flat(text(folder / ".hydra" / "config.yaml") or text(folder / "config.yaml"))


def flat(yaml: str) -> dict[str, Any]:
    """Dotted field -> value, of what OmegaConf writes: a hundred times as fast as YAML's parser, scalars only."""
    found: dict[str, Any] = {}
    above: list[tuple[int, str]] = []
    for line in yaml.splitlines():
        if (read := LINE.match(line)) is None:
            continue
        depth, name, given = len(read[1]), read[2], read[3]
        while above and above[-1][0] >= depth:
            above.pop()
        full = f"{above[-1][1]}.{name}" if above else name
        above.append((depth, full))
        if given:
            found[full] = value(given.strip("'\""))
    return found


def dotted(config: dict[str, Any], before: str = "") -> dict[str, Any]:
    """{"clip": {"max_norm": 1}} -> {"clip.max_norm": 1}."""
    found: dict[str, Any] = {}
    for name, one in config.items():
        found |= dotted(one, f"{before}{name}.") if isinstance(one, dict) else {f"{before}{name}": one}
    return found


def value(given: str) -> Any:
    """What is typed of a field: a number where it is one, else as it is."""
    for kind in (int, float):
        try:
            return kind(given)
        except ValueError:
            pass
    return {"true": True, "false": False, "null": None}.get(given, given)


def text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def config_dirs(folder: Path) -> list[str]:
    """The folders of configurations that a run was given."""
    import yaml

    sources = yaml.safe_load((folder / ".hydra" / "hydra.yaml").read_text())["hydra"]["runtime"]["config_sources"]
    return [source["path"] for source in sources if source["provider"] == "command-line"]


def swept(overrides: Sequence[Sequence[str]]) -> list[str]:
    """Fields that are not the same in every job, in the order of the command."""
    values: dict[str, list[str | None]] = {}
    for i, job in enumerate(overrides):
        for o in job:
            values.setdefault(key(o), [None] * len(overrides))[i] = o.partition("=")[2]
    return [name for name, given in values.items() if len(set(given)) > 1]


def refused(told: dict[str, Any]) -> str | None:
    """What stands for the verdict of a job whose remedy does not apply."""
    remedy = told.get("remedy")
    return REFUSED if remedy and not remedy["applies"] else None
