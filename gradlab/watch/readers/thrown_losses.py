"""Losses that a line computes several times in an update, and of which only the latest goes backward."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor

from gradlab.watch.call_site import CallSite, call_stack, format_site
from gradlab.watch.events import Violation
from gradlab.watch.followed_update import argument, tensors_in
from gradlab.watch.order_sites import order_site
from gradlab.watch.readers.broadcasts import above_the_model
from gradlab.watch.source_lines import repeating_call
from gradlab.watch.tracking.optimizer_tracker import OptimizerTracker

IN_A_ROW = 4
"""Updates in a row in which it is the latest: the smallest of several losses may be the latest now and then."""
REDUCTIONS = {"mean", "sum"}
NUMBER = "gradlab_number"
"""Key of a loss's number in the metadata of its node: a node that is kept would keep its graph."""


class ThrownLosses:
    """Counts the losses of each stack of calls, in the second update and in those after it while it goes on."""

    def __init__(self, trackers: Sequence[OptimizerTracker]) -> None:
        self.trackers = trackers
        self.is_pending = False
        self.in_a_row = 0
        self.forget()

    def forget(self) -> None:
        self.tracker: OptimizerTracker | None = None
        self.num_losses = 0
        self.numbers: dict[tuple[tuple[CallSite, ...], tuple[int, ...], int], list[int]] = {}
        """Lines of the user's functions that were running, instructions, and steps of all optimizers so far -> numbers
        of the losses made there: a generator's may be computed at each step of the discriminator, and used rarely."""
        self.site: CallSite | None = None
        """The line of the latest backward pass."""
        self.used: set[int] = set()
        """Numbers of the losses that went backward."""

    def begin(self, tracker: OptimizerTracker, without: list[Tensor], flat: list[Tensor]) -> bool:
        self.forget()
        self.tracker = tracker
        return tracker.attempts == 1 or self.is_pending

    def follow(self, name: str, func: Any, args: list[Any], kwargs: dict[str, Any], result: Any) -> None:
        if name == "grad":
            self.at_backward(tensors_in([argument(args, kwargs, 0, "outputs")]))
        is_loss = "loss" in name or "entropy" in name or name == "kl_div"
        if not is_loss and (name not in REDUCTIONS or not isinstance(args[0], Tensor) or args[0].numel() < 2):
            return
        node: Any = result.grad_fn if isinstance(result, Tensor) and result.dim() == 0 else None
        if node is not None and node.metadata.setdefault(NUMBER, self.num_losses) == self.num_losses:
            steps = sum(each.attempts for each in self.trackers)
            self.numbers.setdefault((call_stack(), instructions(), steps), []).append(self.num_losses)
            self.num_losses += 1

    def at_backward(self, roots: list[Tensor]) -> None:
        self.site = order_site()
        for node in above_the_model(roots) if self.num_losses else ():
            if (number := node.metadata.get(NUMBER)) is not None:
                self.used.add(number)

    def end(self) -> Iterator[Violation]:
        thrown = {}
        for (stack, _, _), numbers in self.numbers.items():
            if len(numbers) > 1 and [n in self.used for n in numbers] == [False] * (len(numbers) - 1) + [True]:
                thrown[stack] = len(numbers)
        self.in_a_row = (self.in_a_row + 1) * bool(thrown)
        self.is_pending = 0 < self.in_a_row < IN_A_ROW
        if self.in_a_row == IN_A_ROW:
            stack, many = next(iter(thrown.items()))
            words = f"{many - 1} of {many} in an update, which are computed at {format_site(stack[0])}"
            repeated = repeating_call(stack)
            own = repeated is not None and self.site is not None and repeated[0] is not self.site[0]
            yield "losses-thrown-away", repeated if own else self.site or stack[0], words
        self.forget()


def instructions() -> tuple[int, ...]:
    """Of each function that is running: a line may compute one loss, and log another."""
    frame, found = sys._getframe(1), []
    while frame is not None:
        found.append(frame.f_lasti)
        frame = frame.f_back  # type: ignore[assignment]
    return tuple(found)
