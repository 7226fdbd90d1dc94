"""The fields of a file of conf/remedy; how it changes a configuration is in remedy.py."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Remedy:
    """One file of conf/remedy."""

    why: str = ""
    """Why it should help; or why people try it, and it should not."""
    set: dict[str, Any] = field(default_factory=dict)
    """New values by field, such as clip.max_norm; `clip: norm` chooses an option, with its own defaults."""
    multiply: dict[str, float] = field(default_factory=dict)
    """Factors by field."""
