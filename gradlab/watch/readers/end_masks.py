"""Values of next states that count where an episode has ended, and not where it goes on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from gradlab.watch.call_site import CallSite, call_site
from gradlab.watch.events import Violation
from gradlab.watch.followed_update import FOLLOWED, LATE, NETWORKS, tensors_in
from gradlab.watch.graphs.bootstraps import LEAST
from gradlab.watch.tracking.optimizer_tracker import OptimizerTracker

PRODUCTS = {"mul", "__mul__", "__rmul__"}
SUMS = {"add", "__add__", "__radd__"}
ENOUGH = 64
"""Steps from which the share of those that end is known."""
RARE = 0.25
"""Share of the steps whose next value counts, at most: else episodes of a step or two may be what they are."""
Mask = tuple["CallSite | None", int, int]
"""Line of the product, ones, and elements."""


class EndMasks:
    """Follows values that networks make to the targets of a few updates: reward + discount * value * mask.

    Episodes are longer than one step, so that most steps go on.
    """

    def __init__(self) -> None:
        self.counts: dict[tuple[int, CallSite | None], tuple[int, int]] = {}
        """Index of an optimizer, and line -> ones, and elements."""
        self.reported: set[CallSite | None] = set()
        self.forget()

    def forget(self) -> None:
        self.values: Any = WeakTensorKeyDictionary()
        """What a network has computed, or was computed of that alone."""
        self.discounted: Any = WeakTensorKeyDictionary()
        self.masks: Any = WeakTensorKeyDictionary()
        """Product of such values and ones and zeros -> the mask."""

    def begin(self, tracker: OptimizerTracker, without: list[Tensor], flat: list[Tensor]) -> bool:
        self.forget()
        self.tracker = tracker
        return tracker.attempts in (*FOLLOWED, LATE)

    def follow(self, name: str, func: Any, args: list[Any], kwargs: dict[str, Any], result: Any) -> None:
        inputs, outputs = tensors_in([*args, *kwargs.values()]), tensors_in([result])
        if name in NETWORKS and any(type(each) is nn.Parameter for each in inputs):
            self.values.update((each, True) for each in outputs)
            return
        own = [each for each in inputs if each in self.values]
        if not own or not outputs or not outputs[0].is_floating_point():
            return
        others = [each for each in inputs if each not in self.values]
        numbers = [each for each in args if isinstance(each, float)]
        given = own[0]
        if name in SUMS and len(own) == len(others) == 1 and given in self.masks and given in self.discounted:
            if others[0].shape == given.shape:
                self.note(self.masks[given])
            return
        if others and name not in PRODUCTS:
            return
        self.values.update((each, True) for each in outputs)
        if name in PRODUCTS and len(own) == len(others) == 1:
            mask = others[0].detach()
            if mask.numel() == outputs[0].numel() and bool(((mask == 0) | (mask == 1)).all()):
                self.masks[outputs[0]] = call_site(), int(mask.sum()), mask.numel()
        elif given in self.masks and len(inputs) == 1:
            self.masks[outputs[0]] = self.masks[given]
        if given in self.discounted or (name in PRODUCTS and numbers and LEAST <= numbers[0] < 1):
            self.discounted[outputs[0]] = True

    def note(self, mask: Mask) -> None:
        site, ones, elements = mask
        key = self.tracker.index, site
        before = self.counts.get(key, (0, 0))
        self.counts[key] = before[0] + ones, before[1] + elements

    def at_backward(self, roots: list[Tensor]) -> None:
        """The calls are read."""

    def end(self) -> Iterator[Violation]:
        for (index, site), (ones, elements) in self.counts.items():
            new = index == self.tracker.index and site not in self.reported
            if new and elements >= ENOUGH and 0 < ones <= RARE * elements:
                self.reported.add(site)
                yield "end-mask-inverted", site, f"{ones} of {elements} steps"
        self.forget()
