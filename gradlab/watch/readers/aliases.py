"""Averages and copies of weights that lie in the memory of the weights themselves: nothing was copied."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from torch import Tensor

from gradlab.watch.call_site import CallSite, call_site
from gradlab.watch.events import Violation
from gradlab.watch.followed_update import FOLLOWED, Reader
from gradlab.watch.graphs.networks_between import place
from gradlab.watch.tracking.optimizer_tracker import OptimizerTracker


class Aliases(Reader):
    """Looks for weights that are written with their own values."""

    def __init__(self) -> None:
        self.places: set[int] = set()
        self.factors: dict[int, float] = {}
        """Address of a weight -> number that it was multiplied by the last time."""
        self.found: CallSite | None = None

    def begin(self, tracker: OptimizerTracker, without: list[Tensor], flat: list[Tensor]) -> bool:
        self.places = {place(p) for p in tracker.params} - {0}
        self.factors, self.found = {}, None
        return tracker.attempts in FOLLOWED

    def follow(self, name: str, func: Any, args: list[Any], kwargs: dict[str, Any], result: Any) -> None:
        if name not in ("mul_", "add_", "lerp_", "copy_") or not isinstance(args[0], Tensor):
            return
        if (own := place(args[0])) not in self.places:
            return
        other = args[1] if len(args) > 1 else kwargs.get("other", kwargs.get("end"))
        if name == "mul_":
            self.factors[own] = other if isinstance(other, float) else math.nan
        elif isinstance(other, Tensor) and place(other) == own and other.shape == args[0].shape:
            shares = self.factors.get(own, math.nan) + kwargs.get("alpha", 1)
            if name != "add_" or math.isclose(shares, 1):
                self.found = self.found or call_site()

    def end(self) -> Iterator[Violation]:
        if self.found is not None:
            yield "state-of-itself", self.found, "an average or copy that is the memory of the weights"
