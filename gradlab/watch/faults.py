"""Mistakes that were seen in a loop: where, when first, and how often since. What each is says `gradlab.codes`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass

from gradlab.codes import NAMED, Code
from gradlab.diagnosis.finding import Finding
from gradlab.watch.where import Site, told

CRITICAL = {"error": "critical", "warning": "warning", "advice": "info"}
"""How bad -> what a diagnosis says."""
SAME = {"clip-before-backward", "clip-after-step"}
"""One and the same call may be either, seen from the next update."""


class Fault(RuntimeError):
    """An error in a loop, raised where it was seen first (`strict=True`)."""

    def __init__(self, seen: Seen) -> None:
        super().__init__(f"{seen.line}; {seen.kind.mend}")
        self.code, self.name, self.seen = seen.code, seen.name, seen


@dataclass
class Seen:
    """A mistake that was seen."""

    name: str
    site: Site | None
    update: int
    """The optimizer's update, counted from 1, in which it was seen first."""
    detail: str = ""
    optimizer: int = 0
    times: int = 1

    @property
    def kind(self) -> Code:
        return NAMED[self.name]

    @property
    def code(self) -> str:
        return self.kind.code

    @property
    def message(self) -> str:
        return f"{self.kind.message}{f' ({self.detail})' if self.detail else ''}"

    @property
    def line(self) -> str:
        """As `gradlab.audit` says it."""
        return f"{told(self.site)}: {self.code} {self.kind.severity}: {self.message} [{self.name}]"

    @property
    def when(self) -> str:
        often = f", {self.times} times" if self.times > 1 else ""
        return f"first at update {self.update}{often}; {self.kind.mend}"

    def finding(self) -> Finding:
        file, line = (self.site[0].co_filename, self.site[1]) if self.site else (None, None)
        evidence = {"file": file, "line": line, "rule": self.code, "times": self.times, "mend": self.kind.mend}
        says = f"{told(self.site)}: {self.message}"
        return Finding(self.name, CRITICAL[self.kind.severity], says, self.update, evidence)


class Faults:
    """All of a watch's, each told once."""

    def __init__(self, strict: bool, say: Callable[[str], None]) -> None:
        """strict: raise the first error."""
        self.strict, self.say = strict, say
        self.all: list[Seen] = []

    def add(self, seen: Seen) -> None:
        for known in self.all:
            same = known.name == seen.name or (known.site == seen.site and {known.name, seen.name} <= SAME)
            if same and known.optimizer == seen.optimizer:
                known.times += 1
                return
        self.all.append(seen)
        if self.strict and seen.kind.severity == "error":
            raise Fault(seen)
        self.say(f"{seen.line}; at update {seen.update}; {seen.kind.mend}")

    def of(self, optimizer: int) -> list[Seen]:
        return [seen for seen in self.all if seen.optimizer == optimizer]


def printed(text: str) -> None:
    print(f"gradlab.watch: {text}", file=sys.stderr, flush=True)
