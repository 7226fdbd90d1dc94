"""What a watch says at its end: for a page, and as text."""

from __future__ import annotations

import linecache
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from gradlab.watch.faults import Seen
from gradlab.watch.output import Output
from gradlab.watch.where import told


def lines(outputs: Sequence[Output], of: Callable[[Any], list[Seen]], scaled: bool) -> list[str]:
    """Of each optimizer, first what is wrong with the loop."""
    several = len(outputs) > 1
    return [line for o in outputs for line in o.report(of(o.follower), scaled, several)]


def facts(output: Output, outputs: Sequence[Output], faults: list[Seen], says: list[str]) -> dict[str, Any]:
    """For diagnosis.json, and the page of one of several optimizers. says: the report on it."""
    index = output.follower.index
    return {
        "program": Path(sys.argv[0]).name if sys.argv else "",
        "optimizer": index,
        "optimizers": [
            {
                "kind": type(o.follower.optimizer).__name__,
                "verdict": o.final.verdict if o.final else None,
                "ill": o.final is not None and o.final.ill,
                "page": page(index, o.follower.index),
            }
            for o in outputs
        ],
        "faults": [fault(seen) for seen in faults],
        "report": says,
    }


def page(here: int, there: int) -> str | None:
    """From one optimizer's to another's; None for its own."""
    if here == there:
        return None
    up = "../" if here else ""
    return f"{up}optimizer{there}/report.html" if there else f"{up}report.html"


def fault(seen: Seen) -> dict[str, Any]:
    file, line = (seen.site[0].co_filename, seen.site[1]) if seen.site else ("", 0)
    kind = seen.kind
    return {
        "code": seen.code,
        "name": seen.name,
        "severity": kind.severity,
        "place": told(seen.site),
        "text": linecache.getline(file, line).strip(),
        "message": seen.message,
        "update": seen.update,
        "times": seen.times,
        "mend": kind.mend,
        "why": kind.why,
        "example": kind.example,
    }
