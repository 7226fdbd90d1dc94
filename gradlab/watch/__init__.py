"""Follow the calls of a training loop of one's own: `with gradlab.watch(model, optimizer) as watch: ...`.

This package can be called: that makes a `gradlab.watch.session.Watch`. PyTorch is imported then, and not before.

What is seen is one of `gradlab.codes`, as in `gradlab.audit`, told at the line that the audit names too, but for:

    GL605            at the backward pass of a loss that is kept: what keeps it has no call of its own
    GL206            at what clears, or adds to, the gradient that was given up
    GL303            at the backward pass whose gradient is multiplied: arithmetic is not followed
    GL307            where what is left is cleared, at what clears it
    GL306 GL402 GL404  from the second update, where losses are undivided or the schedule moves first of all: once may
                     be meant
    GL403            at the end, when it is known how many micro-batches there were

Not seen, and why:

    GL212 GL810 GL811  names and arguments in the text, without effect here; the calls they lead to are followed
    GL601 - GL604    a loss is seen when it is not finite: `diagnosis` says so, with the update
    GL803 GL806 GL807  the gradients themselves are measured: exploding and vanishing are verdicts
    GL2xx            of scalers that are no GradScaler and were not handed over
    GL505            where gradients are copied into one tensor first, or all_reduce was imported by name before
    the number of micro-batches, in what is told of them, inside of FullyShardedDataParallel's no_sync(): it may be too
        small
    gradients of FullyShardedDataParallel that are set to None between a forward and its backward pass: it takes them
        away there itself (fully_shard does not)
    losses that are made in a compiled function: what they were divided by is not in the graph
    norms over all ranks of FullyShardedDataParallel and fully_shard, where the model does not clip itself: those that
        are recorded are of this rank's part
    steps of a compiled optimizer that remembers nothing (SGD without momentum), or under a loss scale: they call no
        hooks, and are noticed afterwards by what changed; the verdict is then `not_measured`
    what other threads do: the one that enters, or steps first, is followed; and what copies of the process do
    clipping and unscaling by hand: rules that rest on what the gradient holds are silent for that update
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from gradlab.watch.faults import Fault

if TYPE_CHECKING:
    from gradlab.watch.session import Watch

__all__ = ["Fault"]


class Callable(ModuleType):
    """The type of this module: what a package cannot be otherwise."""

    def __call__(self, *args: Any, **kwargs: Any) -> Watch:
        from gradlab.watch.parts import check
        from gradlab.watch.session import Watch

        check(Watch.__init__, kwargs)
        return Watch(*args, **kwargs)


sys.modules[__name__].__class__ = Callable
