"""Rules about weights that follow others between two steps, as averages of them do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gradlab.watch.call_site import CallSite
from gradlab.watch.events import Violation
from gradlab.watch.making_lines import WEIGHTS, made_at
from gradlab.watch.tracking.followers import Follower
from gradlab.watch.tracking.optimizer_tracker import OptimizerTracker

COPY = 0.9
"""Share of the distance from which an average is hardly another weight than the one that it follows."""


def at_check(
    tracker: OptimizerTracker, followers: Iterable[Follower], writes: dict[int, CallSite | None], run: set[int]
) -> Iterator[Violation]:
    """writes: address of a tensor -> where the loop wrote to it before this step. run: ids of weights of networks that
    were called: of those that no optimizer holds, others are what a weight decays to."""
    for each in followers:
        if not each.is_held and not each.leaders & run:
            continue
        site = writes.get(each.weight.data_ptr()) or tracker.step_site
        share = f"by {each.share:.4g} of the distance after each update"
        if each.trained:
            other = "another weight" if each.is_held else "a weight that nothing moves,"
            detail = f"{tracker.name_of(each.weight)} follows {other} {share}"
            used, name = "the optimizer made here holds it, and it is moved at", "average-in-optimizer"
            made = made_at(name, tracker.optimizer, site, detail, part=WEIGHTS, used=used)
            yield made if each.is_held else (name, site, detail)  # else the sides of the average are exchanged
        elif each.share > COPY:
            yield "average-inverted", site, share
