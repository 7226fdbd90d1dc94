"""The rules about models that are trained in eval()."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from gradlab.watch.events import Mode, Violation
from gradlab.watch.tracking.idle_statistics import is_idle
from gradlab.watch.tracking.optimizer_tracker import OptimizerTracker

UPDATES = 3
"""Updates in a row in eval(), after an evaluation, that are no intention: one may be part of a method."""
ALWAYS = 20
"""Updates after which a model that was in eval() in all of them is not about to be trained."""
DROPOUTS = (nn.RNNBase, nn.MultiheadAttention)
"""Modules with a probability of dropout as an attribute."""


def at_step(tracker: OptimizerTracker, models: Sequence[nn.Module], modes: Sequence[Mode]) -> Iterator[Violation]:
    """At a step: is a model in eval() that was in training mode, and evaluated since?

    Before it was trained, `eval()` may be meant for the training: unless the function that calls it evaluates and
    returns, and all of the model is trained.
    """
    unused = tracker.unused
    if not unused or not unused[-1].left_in_eval:
        return
    for i in set.intersection(*(b.left_in_eval for b in unused)):
        model, mode = models[i], modes[i]
        if not any(id(p) in tracker.ids for p in model.parameters()):
            continue
        if mode.untrained and any(not p.requires_grad for p in model.parameters()):
            continue
        if mode.matters is None:
            mode.matters = any(depends_on_mode(part) for part in model.modules() if not part.training)
        mode.updates += 1
        if mode.matters and mode.updates == UPDATES:
            site = mode.site or unused[-1].forward_site or unused[-1].site
            yield "training-in-eval", site, "", tracker.attempts + 2 - UPDATES


def at_end(tracker: OptimizerTracker, models: Sequence[nn.Module], modes: Sequence[Mode]) -> Iterator[Violation]:
    """Was a model never in training mode whose batch normalisation has no statistics? It normalises nothing then.

    With statistics, as those of an earlier training, they may be meant to stay.
    """
    for model, mode in zip(models, modes, strict=True):
        layers = [part for part in model.modules() if isinstance(part, _BatchNorm) and part.track_running_stats]
        own = [each for each in layers if id(each.weight) in tracker.ids]
        if tracker.attempts < ALWAYS or mode.trained or not mode.num_in_eval or not own:
            continue
        if not any(each.training for each in layers) and all(is_idle(each) for each in layers):
            detail = "its batch normalisation has the statistics that it was made with, and normalises nothing"
            yield "training-in-eval", mode.site or tracker.step_site, detail


def depends_on_mode(module: nn.Module) -> bool:
    """Whether a module computes something else in eval(): dropout, batch statistics, or a forward of the user's that
    asks."""
    if isinstance(module, nn.modules.dropout._DropoutNd):
        return module.p > 0
    if isinstance(module, nn.modules.batchnorm._NormBase):
        return bool(module.track_running_stats)
    if isinstance(module, DROPOUTS):
        return module.dropout > 0
    if type(module).__module__.startswith("torch."):
        return False
    code = getattr(type(module).forward, "__code__", None)
    return code is not None and "training" in code.co_names
