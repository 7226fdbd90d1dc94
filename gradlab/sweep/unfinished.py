"""Whether a job of a sweep has to be run, or has been."""

from __future__ import annotations

import json
from pathlib import Path

from gradlab.cli import INTERRUPTED


def finished(folder: Path, overrides: list[str]) -> int | None:
    """The exit code of the job that ran here with these overrides to its end; None if there is none."""
    import yaml

    try:
        ran = yaml.safe_load((folder / ".hydra" / "overrides.yaml").read_text()) or []
        told = json.loads((folder / "diagnosis.json").read_text())
    except (OSError, ValueError, yaml.YAMLError):
        return None
    code = told.get("exit_code") if isinstance(told, dict) else None
    return code if list(ran) == list(overrides) and isinstance(code, int) and code != INTERRUPTED else None
