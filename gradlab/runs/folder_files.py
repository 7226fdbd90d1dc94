"""The files of a folder, read whatever state they are in."""

from __future__ import annotations

import json
import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

from gradlab.base.errors import BAD_VALUES, explain
from gradlab.base.json_lines import number
from gradlab.base.option import Invalid
from gradlab.base.regular_file import regular

NESTED = re.compile(r"[\[{][^\]}]{0,9}(?:[\[{][^\]}]{0,9}){50}|^ {200}|(?:- ){50}|(?:\? ){50}", re.MULTILINE)
"""YAML deeper than any that is written here."""


@contextmanager
def reading(folder: Path) -> Iterator[None]:
    """Turn what damaged values in a folder's files cause into `Invalid`, in one line."""
    try:
        yield
    except BAD_VALUES as error:
        if explain(error) is not None:
            raise
        frame = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(frame.filename).name}:{frame.lineno}"
        why = " ".join(f"{type(error).__name__} in {where}: {error}".split())[:200]
        raise Invalid("FOLDER", folder, f"holds values that were not written by this gradlab ({why})") from error


class FolderFiles:
    """Reads text, JSON, lines of JSON and YAML.

    A file that is missing reads as empty. So does one that cannot be read, because a kill cut it short or another
    program wrote it; `unreadable` then has its name and the reason.
    """

    parts: ClassVar[dict[str, str]] = {}
    """File -> the attribute that reads it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.unreadable: dict[str, str] = {}
        self._texts: dict[str, str] = {}

    def check(self, *names: str, field: str = "FOLDER") -> None:
        """Raise `Invalid` if one of these files is there and cannot be read."""
        for name in names:
            getattr(self, self.parts[name])
            if name in self.unreadable:
                why = " ".join(self.unreadable[name].split())[:200]
                raise Invalid(field, self.path, f"holds a file that cannot be read ({name}: {why})")

    def read_text(self, name: str) -> str:
        if name not in self._texts:
            self._texts[name] = ""
            try:
                with open(regular(self.path / name), encoding="utf-8", errors="replace") as file:
                    self._texts[name] = file.read()
            except (FileNotFoundError, NotADirectoryError):
                pass
            except OSError as error:
                self.unreadable[name] = str(error)
        return self._texts[name]

    def read_object(self, name: str) -> dict[str, Any]:
        """A JSON object."""
        text = self.read_text(name)
        if not text and not (self.path / name).exists():
            return {}
        try:
            found = json.loads(text)
        except (ValueError, RecursionError) as error:
            self.unreadable.setdefault(name, str(error))
            return {}
        if not isinstance(found, dict):
            self.unreadable[name] = "it holds no JSON object"
        return found if isinstance(found, dict) else {}

    def read_lines(self, name: str) -> list[dict[str, Any]]:
        """The whole lines of a file of JSON objects: a kill may have cut the last one short."""
        try:
            with open(regular(self.path / name), "rb") as file:
                text = file.read()
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            self.unreadable[name] = str(error)
            return []
        whole = text[: text.rfind(b"\n") + 1].rstrip()
        try:  # one call of the parser is three times as fast as one a line
            found = json.loads(b"[" + whole.replace(b"\n", b",") + b"]") if whole else []
            if not all(isinstance(line, dict) for line in found):
                raise ValueError("a line holds no JSON object")
            if b'"NaN"' in whole or b'Infinity"' in whole:
                found = [{k: number(v) for k, v in line.items()} for line in found]
        except (ValueError, RecursionError) as error:
            self.unreadable[name] = str(error)
            return []
        return found

    def read_yaml(self, name: str) -> Any:
        """A YAML file; interpolations stay as they were written. Empty: {}."""
        import yaml

        try:
            text = self.read_text(name)
            if NESTED.search(text):  # the parser calls itself, in C, until the process has no stack left
                raise ValueError("it is nested too deeply")
            return yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader)) or {}
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            self.unreadable[name] = str(error)
            return {}

    def read_hydra(self, name: str) -> dict[str, Any]:
        """The mapping under `hydra` in a YAML file."""
        whole = self.read_yaml(name)
        found = whole.get("hydra") if isinstance(whole, dict) else None
        if not isinstance(found, dict):
            if (self.path / name).exists():
                self.unreadable.setdefault(name, "it holds no hydra")
            return {}
        return found


def runs_below(folder: Path) -> str:
    """Where runs are below a folder that is no run: the end of a message."""
    runs = sorted({str(p.parent.relative_to(folder)) for p in folder.rglob("metrics.jsonl")})
    more = f" and {len(runs) - 5} more" if len(runs) > 5 else ""
    return f"; runs are in {', '.join(runs[:5])}{more}" if runs else ""
