"""Pages: the parts in gradlab/report/pages/assets, filled with a title and with escaped data."""

from __future__ import annotations

import html
import json
import math
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from gradlab.base.json_lines import plain

PARTS = Path(__file__).parent / "assets"


@cache
def part(name: str) -> str:
    """The text of a file in gradlab/report/pages/assets."""
    return (PARTS / name).read_text(encoding="utf-8")


def joined(names: Sequence[str]) -> str:
    """Several parts, one after the other."""
    return "\n".join(part(name) for name in names)


def filled(template: str, **values: str) -> str:
    """A text with `{{name}}` replaced, in one pass: what is filled in is not replaced again."""
    pieces = template.split("{{")
    ended = [piece.split("}}", 1) for piece in pieces[1:]]
    return "".join([pieces[0], *(text for name, rest in ended for text in (values[name], rest))])


def page(template: str, title: str, styles: Sequence[str], programs: Sequence[str], **contents: Any) -> str:
    """A self-contained page. `{{title}}`, `{{style}}`, `{{program}}` are filled in, and each of contents by its name:

    an object as JSON, a string as it is (see `safe`), to stand in a script element.
    """
    data = {k: safe(v) if isinstance(v, str) else embedded(v) for k, v in contents.items()}
    return filled(part(template), title=html.escape(title), style=joined(styles), program=joined(programs), **data)


def embedded(content: Any) -> str:
    """JSON that can stand in a script element; numbers that are not finite are strings, as in metrics.jsonl."""
    try:
        text = json.dumps(content, separators=(",", ":"), allow_nan=False)
    except ValueError:
        text = json.dumps(plain(content), separators=(",", ":"), allow_nan=False)
    return safe(text)


def safe(text: str) -> str:
    """JSON, or lines of it, that neither end the script element that it stands in nor begin a comment there.

    These characters stand in JSON's strings alone, which read the same when they are escaped.
    """
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def short(value: Any, digits: int = 4) -> Any:
    """A number in few bytes; what JSON cannot hold as a string, and nothing for what is no number."""
    if not isinstance(value, float):
        return value
    if not math.isfinite(value):
        return None if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    value = float(f"{value:.{digits}g}")
    return int(value) if value.is_integer() and abs(value) < 1e15 else value
