"""The calls of one update in their order: what a loop does, for the page, also where no mistake is found."""

from __future__ import annotations

import linecache
import sys
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from gradlab.watch.call_site import CallSite, call_site, format_site
from gradlab.watch.followed_update import Reader
from gradlab.watch.readers.gradient_reads import PACKAGE
from gradlab.watch.tracking.optimizer_tracker import OptimizerTracker

AFTER = 5
"""Attempts of an optimizer after which its next update is listed: the first ones may be unlike all others."""
MAX_CALLS = 120
"""Calls that are listed at most."""
WITHOUT_GRAPH = {"detach", "detach_", "item", "tolist", "numpy", "argmax", "argmin", "__int__", "__float__", "__bool__"}
"""Calls whose result is no part of the graph that their tensor belongs to."""


@dataclass
class Call:
    """A call of the loop, or several of one line."""

    site: CallSite | None
    what: str
    detail: str = ""
    """What may differ from one call to the next, as the value of a loss."""
    times: int = 1

    @property
    def key(self) -> tuple[CallSite | None, str]:
        return self.site, self.what

    def facts(self) -> dict[str, Any]:
        """For diagnosis.json."""
        file, line = (self.site[0].co_filename, self.site[1]) if self.site else ("", 0)
        code = linecache.getline(file, line).strip()
        text = ": ".join(filter(None, (self.what, self.detail)))
        return {"place": format_site(self.site), "code": code, "text": text, "times": self.times}


class UpdateCalls(Reader):
    """Takes the calls that observers see, and those of PyTorch's functions that compute losses or leave the graph."""

    def __init__(self) -> None:
        self.tracker: OptimizerTracker | None = None
        """The optimizer whose update is listed."""
        self.calls: list[Call] = []
        self.recording = False

    def note(self, site: CallSite | None, what: str, detail: str = "") -> None:
        if self.recording and len(self.calls) < MAX_CALLS:
            self.calls.append(Call(site, what, detail))

    def begin(self, tracker: OptimizerTracker, without: list[Tensor], flat: list[Tensor]) -> bool:
        return tracker.attempts == AFTER and not self.calls

    def follow(self, name: str, func: Any, args: list[Any], kwargs: dict[str, Any], result: Any) -> None:
        first = args[0] if args else None
        if not self.recording or not isinstance(first, Tensor) or not first.requires_grad or by_this_package():
            return
        if name in WITHOUT_GRAPH:
            self.note(call_site(), f"{name}() of a tensor of shape {tuple(first.shape)}", "its graph ends here")
        elif isinstance(result, Tensor) and result.dim() == 0 and first.dim() and result.grad_fn is not None:
            self.note(call_site(), name, f"{float(result.detach()):.4g}")

    def facts(self) -> list[dict[str, Any]]:
        return [call.facts() for call in folded(self.calls)]


def folded(calls: list[Call]) -> list[Call]:
    """Repetitions of the same lines, as of micro-batches, become one, with how often it was made."""
    found: list[Call] = []
    start = 0
    while start < len(calls):
        period, times = repetition([call.key for call in calls[start:]])
        found += [replace(call, times=times) for call in calls[start : start + period]]
        start += period * times
    return found


def repetition(keys: list[tuple[CallSite | None, str]]) -> tuple[int, int]:
    """Of what these begin with: how many calls are repeated, and how often; (1, 1) if none are."""
    for period in range(1, len(keys) // 2 + 1):
        times = 1
        while keys[times * period : (times + 1) * period] == keys[:period]:
            times += 1
        if times > 1:
            return period, times
    return 1, 1


def by_this_package() -> bool:
    """Whether a function of PyTorch's that is followed was called by an observer, and not by the loop."""
    frame: Any = sys._getframe(1)
    while frame.f_code.co_name != "__torch_function__":
        frame = frame.f_back
    return bool(frame.f_back.f_code.co_filename.startswith(PACKAGE))
