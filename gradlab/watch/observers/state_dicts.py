"""States that are loaded into a module."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary, ref

from torch import Tensor, nn

from gradlab.watch.call_site import USER, CallSite, call_site, format_site, origin
from gradlab.watch.graphs.networks_between import place
from gradlab.watch.instrumentation import Instrumentation
from gradlab.watch.loop_state import LoopState
from gradlab.watch.patches import AfterCall


class StateDictObserver:
    """Compares the memory of what is loaded with that of the module: `state_dict()` copies nothing."""

    def __init__(self, loop: LoopState) -> None:
        self.loop = loop
        self.taken: WeakKeyDictionary[nn.Module, tuple[int, list[int]]] = WeakKeyDictionary()
        """Module -> steps and version counters of its weights when its state was taken the last time."""
        self.sites: WeakKeyDictionary[nn.Module, dict[CallSite, Any]] = WeakKeyDictionary()
        """Module -> lines that take its state, with weak references to what they took the last time."""

    def install(self, instrumentation: Instrumentation) -> None:
        instrumentation.patch(nn.Module, "state_dict", self.on_state)
        instrumentation.patch(nn.Module, "load_state_dict", self.on_load)

    def on_state(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> AfterCall | None:
        if len(args) != 1 or kwargs.get("destination") is not None:  # of a part of it
            return None
        module, site = args[0], call_site()
        self.taken[module] = self.steps(), versions(module)

        def after(result: Any, error: bool) -> None:
            if site is not None and not error:
                self.sites.setdefault(module, {})[site] = ref(result)

        return after

    def site_of(self, module: nn.Module, given: Any) -> CallSite | None:
        """Where a state was taken; None if that is unknown."""
        known = self.sites.get(module, {})
        same = [site for site, state in known.items() if state() is given]
        return next(iter(same or known)) if same or len(known) == 1 else None

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
            taken, detail = self.site_of(args[0], given), type(args[0]).__name__
            if taken is not None and taken != site:
                detail += f": the state is taken here without a copy, and loaded at {format_site(site)}"
            self.loop.add_fault("state-of-itself", taken or site, tracker, detail)


def versions(module: nn.Module) -> list[int]:
    return [p._version for p in module.parameters() if not p.is_inference()]


def holds_itself(module: nn.Module, given: Mapping[str, Any]) -> bool:
    """Whether all of a module's parameters are given in the memory in which they are."""
    own = dict(module.named_parameters())
    return bool(own) and all(
        isinstance(value := given.get(name), Tensor) and 0 != place(p) == place(value) for name, p in own.items()
    )
