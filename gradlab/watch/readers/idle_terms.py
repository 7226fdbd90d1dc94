"""Terms of a loss that are computed of nothing that is trained, as of a teacher's answers alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from gradlab.watch.call_site import CallSite, call_site
from gradlab.watch.events import Violation
from gradlab.watch.followed_update import tensors_in
from gradlab.watch.readers.hard_values import ADDITIONS, SCALINGS
from gradlab.watch.tracking.optimizer_tracker import OptimizerTracker


class IdleTerms:
    """Follows what loss functions return of tensors without a graph, in one update.

    Nothing is said of what weights of a model have made of which others are trained: they may be frozen for a while.
    """

    def __init__(self, models: Sequence[nn.Module]) -> None:
        self.models = models
        self.forget()

    def forget(self) -> None:
        self.trained: set[int] = set()
        """ids of the weights of models of which some are trained."""
        self.own: Any = WeakTensorKeyDictionary()
        """Tensors without a graph that were computed of such weights."""
        self.terms: Any = WeakTensorKeyDictionary()
        """Single number -> line of the loss function that it, or a term of it, comes from."""
        self.found: CallSite | None = None

    def begin(self, tracker: OptimizerTracker, without: list[Tensor], flat: list[Tensor]) -> bool:
        self.forget()
        parts = [{id(p) for p in m.parameters()} for m in self.models]
        self.trained = tracker.ids.union(*(part for part in parts if part & tracker.ids))
        return tracker.attempts == 1

    def follow(self, name: str, func: Any, args: list[Any], kwargs: dict[str, Any], result: Any) -> None:
        inputs, outputs = tensors_in([*args, *kwargs.values()]), tensors_in([result])
        if any(id(each) in self.trained or each.requires_grad or each in self.own for each in inputs):
            self.own.update((each, True) for each in outputs if not each.requires_grad)
        elif is_loss(name) and torch.is_grad_enabled() and len(outputs) == 1 and outputs[0].numel() == 1:
            self.terms[outputs[0]] = call_site()
        if name in ADDITIONS | SCALINGS and len(outputs) == 1 and all(each.numel() == 1 for each in inputs):
            known = [each for each in inputs if each in self.terms]
            if known and (name in SCALINGS or len(inputs) > 1):
                self.terms[outputs[0]] = self.terms[known[0]]

    def at_backward(self, roots: list[Tensor]) -> None:
        self.found = next((self.terms[each] for each in roots if each in self.terms), self.found)

    def end(self) -> Iterator[Violation]:
        if self.found is not None:
            yield "term-of-nothing-trained", self.found, ""
        self.forget()


def is_loss(name: str) -> bool:
    return name.endswith("_loss") or "entropy" in name or name == "kl_div"
