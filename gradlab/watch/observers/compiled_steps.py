"""Steps of a compiled optimizer: they call no hooks, and are detected afterwards."""

from __future__ import annotations

from torch import Tensor

from gradlab.watch.events import BackwardPass
from gradlab.watch.loop_state import LoopState
from gradlab.watch.tracking.optimizer_tracker import OptimizerTracker
from gradlab.watch.updates import after_step, before_step

NUM_PARAMETERS = 2
"""Parameters whose optimizer state is compared."""


def state_versions(tracker: OptimizerTracker) -> list[int] | None:
    """Changes with every step of an optimizer that has state; None while the optimizer's hooks are called."""
    if tracker.calls_hooks:
        return None
    state = tracker.optimizer.state
    values = [v for p in tracker.sample[-NUM_PARAMETERS:] if p in state for v in state[p].values()]
    versions = [v._version for v in values if isinstance(v, Tensor)]
    return [len(values), *versions, *(v for v in values if type(v) is int)]


def detect(loop: LoopState, tracker: OptimizerTracker) -> None:
    """Before anything else happens: if the weights and the optimizer's state have changed, record a step."""
    unused: list[BackwardPass] = tracker.unused
    if tracker.closure.running or tracker.started or not unused or loop.scaler.enabled:
        return
    if all(tracker.unmoved_since(b) for b in unused):
        return
    if tracker.calls_hooks:  # the weights were moved without hooks: compare the state from the next update on
        tracker.calls_hooks = False
    if tracker.state_versions is None or state_versions(tracker) == tracker.state_versions:
        return
    tracker.detect_writes()
    loop.outputs[tracker.index].metrics.finish_update(loop.scaler.value())
    before_step(loop, tracker, unused[-1].site, None, weights_unmoved=False)
    after_step(loop, tracker, False)
