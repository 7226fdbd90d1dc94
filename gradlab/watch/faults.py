"""Mistakes that were observed in a loop: call site, first update and count. `gradlab.codes` describes each kind."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass

from gradlab.codes import CODES_BY_NAME, Code
from gradlab.diagnosis.finding import Finding
from gradlab.watch.call_site import CallSite, format_site

DIAGNOSIS_SEVERITY = {"error": "critical", "warning": "warning", "advice": "info"}
"""Severity of a code -> severity of a diagnosis."""
CLIP_ORDER = {"clip-before-backward", "clip-after-step"}
"""One call may be either of these two; which one is known only at the next update."""


class Fault(RuntimeError):
    """Raised under `strict=True` at the first call site of an error."""

    def __init__(self, record: FaultRecord) -> None:
        super().__init__(f"{record.line}; {record.kind.fix}")
        self.code, self.name, self.record = record.code, record.name, record


@dataclass
class FaultRecord:
    """One mistake that was observed in a loop."""

    name: str
    site: CallSite | None
    update: int | None
    """The optimizer's update, counted from 1, from which it held, or at which it was first seen; None of a run that was
    judged as a whole."""
    detail: str = ""
    optimizer: int = 0
    """Index of the optimizer."""
    times: int = 1

    @property
    def kind(self) -> Code:
        return CODES_BY_NAME[self.name]

    @property
    def code(self) -> str:
        return self.kind.code

    @property
    def message(self) -> str:
        return f"{self.kind.message}{f' ({self.detail})' if self.detail else ''}"

    @property
    def line(self) -> str:
        """In the format of `gradlab.audit`."""
        return f"{format_site(self.site)}: {self.code} {self.kind.severity}: {self.message} [{self.name}]"

    @property
    def occurrences(self) -> str:
        """Since when, and how often, where that is known."""
        seen = [f"first seen at update {self.update}"] if self.update is not None else []
        return ", ".join([*seen, *[f"{self.times} times"] * (self.times > 1)])

    def finding(self) -> Finding:
        """As a finding of a diagnosis."""
        file, line = (self.site[0].co_filename, self.site[1]) if self.site else (None, None)
        evidence = {"file": file, "line": line, "rule": self.code, "times": self.times, "fix": self.kind.fix}
        sentence = f"{format_site(self.site)}: {self.message}"
        return Finding(self.name, DIAGNOSIS_SEVERITY[self.kind.severity], sentence, self.update, evidence)


class FaultLog:
    """All mistakes that a watch has observed; each is reported once."""

    def __init__(self, strict: bool, report: Callable[[str], None]) -> None:
        """strict: raise `Fault` at the first error. report: takes the message of a new mistake."""
        self.strict, self.report = strict, report
        self.records: list[FaultRecord] = []

    def add(self, record: FaultRecord) -> None:
        for known in self.records:
            either_order = known.site == record.site and {known.name, record.name} <= CLIP_ORDER
            if known.optimizer == record.optimizer and (known.name == record.name or either_order):
                known.times += 1
                return
        self.records.append(record)
        if self.strict and record.kind.severity == "error":
            raise Fault(record)
        when = f"; seen at update {record.update}" if record.update is not None else ""
        self.report(f"{record.line}{when}; {record.kind.fix}")

    def of(self, optimizer: int) -> list[FaultRecord]:
        """The mistakes of one optimizer, by its index."""
        return [record for record in self.records if record.optimizer == optimizer]


def print_message(text: str) -> None:
    print(f"gradlab.watch: {text}", file=sys.stderr, flush=True)
