"""Hooks of the loop's own on weights and modules, which stay until they are removed."""

from __future__ import annotations

from functools import partial
from types import CellType
from typing import Any
from weakref import ReferenceType, ref

from torch import Tensor, nn

from gradlab.watch.call_site import USER, CallSite, call_site, origin
from gradlab.watch.instrumentation import Instrumentation
from gradlab.watch.loop_state import LoopState
from gradlab.watch.tracking.optimizer_tracker import OptimizerTracker

KINDS = {
    (Tensor, "register_hook"): "_backward_hooks",
    (Tensor, "register_post_accumulate_grad_hook"): "_post_accumulate_grad_hooks",
    (nn.Module, "register_forward_hook"): "_forward_hooks",
    (nn.Module, "register_forward_pre_hook"): "_forward_pre_hooks",
    (nn.Module, "register_full_backward_hook"): "_backward_hooks",
    (nn.Module, "register_full_backward_pre_hook"): "_backward_pre_hooks",
}
"""Class and method -> where what is registered is kept."""
OFTEN = 3
"""Times that the same hook is there, each registered after other updates."""


class HookObserver:
    """Compares a hook that is registered with those that are there."""

    def __init__(self, loop: LoopState) -> None:
        self.loop = loop
        self.updates: dict[tuple[int, str, int], set[int]] = {}
        """ids of a weight or module that has such hooks, and of their code -> updates before which they were
        registered."""
        self.found: list[tuple[ReferenceType[Any], str, Any, CallSite, int]] = []
        """Such a weight or module, where its hooks are kept, the hook, where it is registered and at which update."""

    def install(self, instrumentation: Instrumentation) -> None:
        for (owner, name), kept in KINDS.items():
            instrumentation.patch(owner, name, partial(self.on_register, kept))

    def on_register(self, kept: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.loop.seen.ask(self.compare, kept, args[0], args[1] if len(args) > 1 else kwargs.get("hook"))

    def compare(self, kept: str, thing: Any, hook: Any) -> None:
        if isinstance(thing, Tensor) and not (isinstance(thing, nn.Parameter) and thing.is_leaf):
            return  # of an activation, with which it goes
        same = those_of(thing, kept, hook)
        key = id(thing), kept, id(getattr(hook, "__code__", hook))
        if not same:  # also of one that is gone, whose id another one has now
            self.updates.pop(key, None)
        updates = self.updates.setdefault(key, set())
        if len(updates) < OFTEN:
            updates.add(sum(t.attempts for t in self.loop.trackers))
        site = call_site() if len(same) + 1 == OFTEN == len(updates) and self.loop.trackers else None
        if site is not None and origin(site[0].co_filename) == USER:
            self.found.append((ref(thing), kept, hook, site, self.tracker_of(thing).attempts + 1))

    def tracker_of(self, thing: Any) -> OptimizerTracker:
        ids = {id(p) for p in ([thing] if isinstance(thing, Tensor) else thing.parameters())}
        return next((t for t in self.loop.trackers if t.ids & ids), self.loop.trackers[0])

    def at_end(self) -> None:
        """The loop is over: are they there still?"""
        for reference, kept, hook, site, update in self.found:
            if (thing := reference()) is not None and len(same := those_of(thing, kept, hook)) >= OFTEN:
                detail = f"{len(same)} copies are there"
                self.loop.add_fault("hook-registered-again", site, self.tracker_of(thing), detail, update=update)


def those_of(thing: Any, kept: str, hook: Any) -> list[Any]:
    return [each for each in (getattr(thing, kept, None) or {}).values() if are_one(each, hook)]


def are_one(one: Any, two: Any) -> bool:
    """Whether two hooks do the same: functions of the same code that have kept the same values."""
    if one == two:
        return True
    if any(hasattr(each, "__self__") or not hasattr(each, "__code__") for each in (one, two)):
        return False  # of another object, which may do something else
    values = [
        [*(f.__defaults__ or ()), *(f.__kwdefaults__ or {}).values(), *map(value_of, f.__closure__ or ())]
        for f in (one, two)
    ]
    alike = [a is b or (isinstance(a, (int, float, str)) and a == b) for a, b in zip(*values, strict=False)]
    return one.__code__ is two.__code__ and len(values[0]) == len(values[1]) and all(alike)


def value_of(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # it is not set yet
        return cell
