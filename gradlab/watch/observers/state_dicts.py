"""States that are loaded into a module."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor, nn

from gradlab.watch.call_site import USER, call_site, origin
from gradlab.watch.graphs.networks_between import place
from gradlab.watch.instrumentation import Instrumentation
from gradlab.watch.loop_state import LoopState


class StateDictObserver:
    """Compares the memory of what is loaded with that of the module: `state_dict()` copies nothing."""

    def __init__(self, loop: LoopState) -> None:
        self.loop = loop
        self.taken: WeakKeyDictionary[nn.Module, tuple[int, list[int]]] = WeakKeyDictionary()
        """Module -> steps and version counters of its weights when its state was taken the last time."""

    def install(self, instrumentation: Instrumentation) -> None:
        instrumentation.patch(nn.Module, "state_dict", self.on_state)
        instrumentation.patch(nn.Module, "load_state_dict", self.on_load)

    def on_state(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if args and len(args) == 1 and kwargs.get("destination") is None:  # else of a part of it
            self.taken[args[0]] = self.steps(), versions(args[0])

    def steps(self) -> int:
        return sum(t.attempts for t in self.loop.trackers)

    def is_edited(self, module: nn.Module) -> bool:
        """Whether something else than a step has changed the weights since: what it wrote is loaded then."""
        steps, before = self.taken.get(module, (0, []))
        return steps == self.steps() and before != versions(module)

    def on_load(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given = args[1] if len(args) > 1 else kwargs.get("state_dict")
        trackers = [t for t in self.loop.trackers if t.attempts]
        if not trackers or not isinstance(given, Mapping) or not holds_itself(args[0], given):
            return
        if self.is_edited(args[0]):
            return
        site, ids = call_site(), {id(p) for p in args[0].parameters()}
        if site is not None and origin(site[0].co_filename) == USER:
            tracker = next((t for t in trackers if t.ids & ids), trackers[0])
            self.loop.add_fault("state-of-itself", site, tracker, type(args[0]).__name__)


def versions(module: nn.Module) -> list[int]:
    return [p._version for p in module.parameters() if not p.is_inference()]


def holds_itself(module: nn.Module, given: Mapping[str, Any]) -> bool:
    """Whether all of a module's parameters are given in the memory in which they are."""
    own = dict(module.named_parameters())
    return bool(own) and all(
        isinstance(value := given.get(name), Tensor) and 0 != place(p) == place(value) for name, p in own.items()
    )
