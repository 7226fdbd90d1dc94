"""The update of a loss with several terms, or whose number of losses only its outputs tell: each mean is exact.

K terms
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from gradlab.base.randomness import random_state_restored
from gradlab.update.custom_loss import or_one
from gradlab.update.recorder import NOTHING, Recorder
from gradlab.update.stats import MicroBatch, Stats
from gradlab.update.step import Update


class TermsUpdate(Update):
    """The loss is the weighted sum of the means of its terms, each over all its losses of the window, on all ranks."""

    loss: Any
    ahead: torch.Tensor | None = None
    """(K,) the numbers of this rank's losses, where they were counted before."""

    def __call__(self, window: Sequence[MicroBatch], recorder: Recorder = NOTHING) -> Stats:
        if self.loss.ahead:
            self.ahead = self.counted_ahead(window)
        return super().__call__(window, recorder)

    @random_state_restored()
    def counted_ahead(self, window: Sequence[MicroBatch]) -> torch.Tensor:
        """(K,) counted by a forward pass without gradients; the next one draws the same random numbers again."""
        self.save_buffers()
        counts = torch.zeros(len(self.loss.forms), dtype=torch.float64, device=self.device)
        with torch.no_grad(), self.precision.arithmetic(), self.precision.autocast():
            for batch in window:
                # of a divided model on all ranks, also those whose batch does not count
                _, found = self.loss.term_sums(self.module(batch.inputs), batch.targets)
                counts += found if batch.counts else 0.0
        self.restore_buffers(torch.ones((), dtype=torch.bool, device=self.device))
        return counts

    def accumulate(self, window: Sequence[MicroBatch]) -> torch.Tensor:
        """As for one term, but each with the number of its own losses.

        Where that of the only one is not known before, the gradient is corrected by how many there were.
        """
        expected = torch.zeros(len(self.loss.forms), dtype=torch.float64, device=self.device)
        for batch in window:
            if batch.counts and self.ahead is None:
                expected += self.loss.expected(batch.targets)
        expected = or_one(self.world.sum_(expected if self.ahead is None else self.ahead))
        self.factors = self.loss.weighted(torch.ones_like(expected) / self.loss.divisor(expected))
        self.sums, self.found = torch.zeros_like(expected), torch.zeros_like(expected)
        for i in range(len(window)):
            self.backward(window, i, self.precision.scale * self.world.size)
        self.sums, self.found = self.world.sum_(torch.stack([self.sums, self.found]))
        self.counted = self.found.sum()
        if self.loss.late and self.loss.reduction == "mean":
            self.correct(expected / or_one(self.found))
        self.terms = self.sums / or_one(self.found)
        return torch.where(self.counted > 0, self.loss.total(self.terms), torch.nan)

    def losses(self, batch: MicroBatch) -> torch.Tensor:
        """() the sum of the losses of each term, over how many there are of them in the window, weighted."""
        sums, counts = self.loss.term_sums(self.model(batch.inputs), batch.targets)
        self.sums += sums.detach() if batch.counts else 0.0
        self.found += counts if batch.counts else 0.0
        weighted: torch.Tensor = (sums * self.factors).sum()
        return weighted.to(sums.dtype)

    def correct(self, factor: torch.Tensor) -> None:
        """Multiply all gradients."""
        grads = [p.grad for p in self.params if p.grad is not None]
        torch._foreach_mul_(grads, factor.to(torch.float32).reshape(()))
