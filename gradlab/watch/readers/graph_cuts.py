"""Where the graph between weights and a loss ends: one update of those without a gradient is followed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from gradlab.watch.call_site import USER, CallSite, call_site, definition_site, origin
from gradlab.watch.events import Violation
from gradlab.watch.followed_update import FLAT, tensors_in
from gradlab.watch.output.update_metrics import elements
from gradlab.watch.readers.gradient_reads import GRADIENT
from gradlab.watch.source_lines import cutting_line
from gradlab.watch.tracking.optimizer_tracker import OptimizerTracker, listed
from gradlab.watch.tracking.unheld_weights import UPDATES, ids

CONVERSIONS = {"item", "tolist", "numpy", "__array__", "__float__", "__int__", "__index__", "__bool__"}
"""Functions of a tensor whose results are followed no further."""
LAST_TRY = 5
"""The latest update of an optimizer after which its next one is followed, if none was yet."""
Ids = frozenset[int]
Ends = frozenset[tuple[int, bool]]
"""Number of a call that ends a graph, and whether its result has only chosen among other values since: an index or a
condition never has a graph, and nothing is lost there."""


class GraphCuts:
    """Calls that take what the graph of such weights has made, and return what has none, and on which a loss depends.

    Updates are read in loops in which something is wrong already: of each optimizer its own. Of several losses the last
    one counts, which is that of the step: the others may be those of other networks.
    """

    def __init__(self) -> None:
        self.found: dict[int, tuple[torch.Tensor, CallSite | None]] = {}
        """id of a weight -> weight, and where its graph ends."""
        self.first: dict[int, torch.Tensor] = {}
        """id of a weight -> its elements when it was followed, to see whether something else moves it."""
        self.unused: dict[int, torch.Tensor] = {}
        """id of a weight that no call of a whole update was given -> weight."""
        self.tried: set[int] = set()
        """Indices of the optimizers of which an update was followed."""
        self.forget()

    def forget(self) -> None:
        self.starved: dict[int, torch.Tensor] = {}
        self.given: set[int] = set()
        """ids of those that calls were given."""
        self.live: Any = WeakTensorKeyDictionary()
        """Tensor -> ids of the weights that its graph reaches."""
        self.made_of: Any = WeakTensorKeyDictionary()
        """Tensor -> the calls without whose results it would be another one."""
        self.cuts: list[tuple[CallSite | None, Ids]] = []
        """Line, and weights."""
        self.converted: Ends = frozenset()
        """Calls whose results became Python numbers or arrays."""
        self.ends: dict[int, tuple[torch.Tensor, CallSite | None]] = {}
        """The same as `found`, of this update."""
        self.reached: set[int] = set()
        """ids of the weights that a loss of it reaches."""
        self.disabled_at: CallSite | None = None
        """Where gradients were disabled."""

    def begin(self, tracker: OptimizerTracker, without: list[torch.Tensor], flat: list[torch.Tensor]) -> bool:
        starved = self.starved_of(tracker, [*without, *flat])
        self.tried.add(tracker.index)
        self.starved = {id(p): p for p in starved}
        self.first |= {id(p): elements(p).clone() for p in starved}
        return bool(starved)

    def starved_of(self, tracker: OptimizerTracker, without: list[torch.Tensor]) -> list[torch.Tensor]:
        return [p for p in without if p.requires_grad and id(p) in tracker.ids and id(p) not in self.found]

    def wants(self, tracker: OptimizerTracker, without: list[torch.Tensor]) -> bool:
        """Whether the next update may show what those before did not, as while that of another one was followed."""
        few = tracker.index not in self.tried and 1 < tracker.attempts <= LAST_TRY
        return few and bool(self.starved_of(tracker, without))

    def end(self) -> Iterator[Violation]:
        """What was found is judged when the watch ends."""
        self.found |= {key: found for key, found in self.ends.items() if key not in self.reached}
        self.unused |= {key: p for key, p in self.starved.items() if key not in self.given}
        self.forget()
        yield from ()

    def follow(self, name: str, func: Any, args: list[Any], kwargs: dict[str, Any], result: Any) -> None:
        if name == "_set_grad_enabled":
            self.disabled_at = None if args[0] else decorated_site() or call_site()
        if name == "__get__" and func == GRADIENT:
            return
        inputs = tensors_in([*args, *kwargs.values()])
        live, made_of = self.reached_by(inputs), self.depends_on(inputs)
        self.given |= ids(inputs) & self.starved.keys()
        if not live and not made_of:
            return
        outputs = tensors_in([args[0]] if name == "__setitem__" else [result])
        ends = [each for each in outputs if not each.requires_grad or name in FLAT]
        if live and (ends or name in CONVERSIONS):
            site = call_site() if torch.is_grad_enabled() else self.disabled_at or call_site()
            self.cuts.append((site, live))
        new: Ends = frozenset([(len(self.cuts) - 1, False)]) if live else frozenset()
        if name in CONVERSIONS:
            self.converted |= made_of | new
        for each in outputs:
            is_end = any(each is end for end in ends)
            self.live[each] = frozenset() if is_end else live
            known = made_of | new if is_end else made_of
            self.made_of[each] = known if each.is_floating_point() else frozenset((i, True) for i, _ in known)

    def reached_by(self, tensors: list[torch.Tensor]) -> Ids:
        known = [self.live.get(each, frozenset()) for each in tensors]
        return frozenset[int]().union(*known, ids(tensors) & self.starved.keys())

    def depends_on(self, tensors: list[torch.Tensor]) -> Ends:
        return frozenset[tuple[int, bool]]().union(*(self.made_of.get(each, frozenset()) for each in tensors))

    def at_backward(self, roots: list[torch.Tensor]) -> None:
        """A backward pass begins: which of the calls does its loss depend on?

        Of two on one way the earlier one, and of an index and a value the value. What was converted to a number or an
        array may be part of any loss.
        """
        reached = self.reached_by(roots)
        self.reached |= reached
        found: dict[int, tuple[torch.Tensor, CallSite | None]] = {}
        for numbers in (self.depends_on(roots), self.converted):
            for i, _ in sorted(numbers, key=lambda end: (end[1], end[0])):
                site, weights = self.cuts[i]
                for each in weights - reached - found.keys():
                    found[each] = self.starved[each], site
        self.ends |= found

    def site_of(self, tracker: OptimizerTracker) -> CallSite | None:
        """Where the graph of an optimizer's weights ends."""
        return next((site for p, site in self.found.values() if id(p) in tracker.ids), None)

    def at_end(self, tracker: OptimizerTracker) -> Iterator[Violation]:
        """Of weights that nothing has moved: where the graphs of most of them end."""
        sites: dict[CallSite | None, list[str]] = {}
        moved: set[CallSite | None] = set()
        reached = (
            tracker.feeding.fed and not tracker.feeding.empty_steps
        )  # else all gradients are zeroed before the step
        judged = reached and tracker.attempts >= UPDATES
        outside = [(p, self.made_outside(p, tracker)) for p in tracker.params if judged and id(p) in self.unused]
        known = [self.found[id(p)] for p in tracker.params if judged and id(p) in self.found]
        for p, site in [*known, *((p, site) for p, site in outside if site is not None and id(p) not in self.found)]:
            if torch.equal(elements(p), self.first[id(p)]):
                sites.setdefault(site, []).append(tracker.name_of(p))
            else:
                moved.add(site)  # a loss that came later trains them; those of dead units stay what they are
        for site in sorted(sites.keys() - moved, key=lambda each: -len(sites[each])):
            yield "graph-cut", site, f"no gradient reaches {listed(sites[site])}"

    def made_outside(self, weight: torch.Tensor, tracker: OptimizerTracker) -> CallSite | None:
        """The line that computes something of a weight that the update itself never uses: once, before it."""
        name = tracker.name_of(weight).rpartition(".")[2]
        sites = [tracker.step_site, tracker.backward_site, tracker.loss_site]
        codes = [site[0] for site in sites if site is not None and origin(site[0].co_filename) == USER]
        return cutting_line(name, codes) if name.isidentifier() and name not in ("weight", "bias") else None


def decorated_site() -> CallSite | None:
    """The function of the user's that is being called, if a decorator disables its gradients."""
    frame: Any = sys._getframe(1)
    while frame is not None and origin(frame.f_code.co_filename) != USER:
        if frame.f_globals.get("__name__") == "torch.utils._contextlib" and "func" in frame.f_locals:
            return definition_site(frame.f_locals.get("func"))
        frame = frame.f_back
    return None
