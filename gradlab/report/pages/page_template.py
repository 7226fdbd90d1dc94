"""Pages: the parts in gradlab/report/pages/assets, filled with a title and with escaped data."""

from __future__ import annotations

import html
import json
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
