"""Watch a training loop of your own: `with gradlab.watch(model, optimizer) as watch: ...`.

This package is callable: the call makes a `gradlab.watch.watch.Watch`, and imports PyTorch only then.

Mistakes have the codes of `gradlab.codes`, as in `gradlab.audit`, and are reported at the line that the audit reports,
except:

    GL605              at the backward pass of a loss that is kept: keeping it makes no call
    GL206              where the check skips; if that is in another function than the last call before it, at the call
                       that zeroes, or adds to, the gradient that was abandoned
    GL211              at the backward pass of the scaled loss: autocast is not observed
    GL303              at the backward pass whose gradient is multiplied: arithmetic is not observed
    GL307              if the remainder is zeroed, at the call that zeroes it
    GL306 GL402 GL404  from the second update if losses are undivided, or the schedule steps first: once may be intended
    GL403              at the end, when the number of micro-batches is known
    GL701              at the backward pass, if its loss was made anew; of one among several optimizers at the end
    GL703              at the end, where a module is frozen, or at a file's only `requires_grad = False`, or the step
    GL704              from the third update: the gradients must oppose each other every time
    GL707              at `eval()`, from the third update on in that mode; at the end, if it is that of all updates
    GL708              at the end, at the optimizer's making if it can be told, or the latest step on other weights
    GL709              at the end, at the assignment, if a function that runs then or at the beginning holds it
    GL609              in the second update; of predictions that have come to a bound in the 41st
    GL608 GL611 - GL616 GL618 GL623 GL714 GL721
                       in the second update alone, and not where anything was compiled, or under DDP or FSDP
    GL610              of a finite loss, in the updates after the first few only on the CPU
    GL717              of terms that are left out, in the 45th update if it holds in the second and from the 41st on,
                       and the text does not use them under a condition
    GL617              in the seventh update, if it holds in the sixth too
    GL619              in the sixth update, if it holds in those from the second on; a divergence in the second alone
    GL620              in the sixth update, if it holds in the second too; of outputs in the 41st
    GL610              at the backward pass, if the loop ends there: its line is that of the next update
    GL715              at the end, of weights whose gradient was zero in the first and the fifth update
    GL710              from the second update on that the loop writes to its gradients
    GL308              at the second update, of a first window that was shorter: at the check around the step
    GL405              of a cosine whose length is the number of epochs: in the first update after its end
    GL406              at the end; of a schedule that was not passed, if the text of the loop steps none
    GL409 GL410        at the end; GL409 if its length is known, and is the number of updates
    GL901              from the third time in the first updates; outside of closures only along the gradient
    GL902              from the third time on
    GL907              at the end, at the optimizer's assignment in a function that runs then, else at the step
    GL912              at the end, after 100 updates, if a copy as it was drawn makes targets of other inputs than the
                       trained network sees in the sixth, and the text does nothing else with it
    GL913              at the end, after 100 updates, of weights that are as they were drawn, at the optimizer's making
    GL905 GL906        after 48 updates; of weights of at least 8 elements, at the line that writes them
    GL903              at the end, of optimizers that are made while the watch runs and were not passed to it

Not detected, and why:

    GL212 GL810 GL811  names and arguments in the source have no effect here; the calls that they lead to are observed
    GL601 - GL604      what may become infinite: once it has, it is GL610
    GL803 GL806 GL807  the gradients themselves are measured: exploding and vanishing are verdicts
    GL2xx              of scalers that are no GradScaler and were not passed to the watch
    GL505              where gradients are copied into one tensor first, or all_reduce was imported by name before

Limits:

    targets that a model makes are seen in PyTorch's regression losses, or if the watched model runs without gradients
    freezing after the second update may be intended: GL703 is about what is frozen before
    GL704 needs a step on the other loss in between: of losses that are added up before both steps nothing is said
    the losses of gradients by torch.func, or written by hand, are not known; their norms are
    inside `no_sync()` of FullyShardedDataParallel the reported number of micro-batches may be too small
    FullyShardedDataParallel removes gradients between a forward pass and its backward pass itself (fully_shard does
        not): gradients that the loop sets to None there go unnoticed
    the divisor of a loss that is computed in a compiled function is not in the graph
    norms under FullyShardedDataParallel and fully_shard are of this rank's part, unless the model clips itself
    steps of a compiled optimizer without state (SGD without momentum), or under a loss scale, call no hooks and leave
        no trace: the verdict is `not_measured`
    one thread is observed: the one that enters the watch, or makes the first step; forked processes are not
    if the loop clips or unscales gradients manually, rules about what the gradients hold are off for that update
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from gradlab.watch.faults import Fault

if TYPE_CHECKING:
    from gradlab.watch.watch import Watch

__all__ = ["Fault"]


class CallableModule(ModuleType):
    """The type of this module: a plain module cannot be called."""

    def __call__(self, *args: Any, **kwargs: Any) -> Watch:
        from gradlab.watch.arguments import check_names
        from gradlab.watch.watch import Watch

        check_names(Watch.__init__, kwargs)
        return Watch(*args, **kwargs)


sys.modules[__name__].__class__ = CallableModule
