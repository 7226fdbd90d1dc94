"""What to change where a gradient vanishes: between layers, over time steps, or by the updates themselves."""

from __future__ import annotations

from collections.abc import Iterator

from gradlab.config.schema import Config
from gradlab.diagnosis.update_sizes import LARGE_UPDATE
from gradlab.remedies.evidence import Evidence
from gradlab.remedies.learning_rate import adaptive, rate_that_took
from gradlab.remedies.model_and_loss import identity, initial_sizes
from gradlab.remedies.proposal import Maker, Proposal, code, structural


def vanishing(e: Evidence, c: Config) -> Iterator[Proposal]:
    """Of a gradient that large updates took away the rate comes first; over time steps layers are no matter."""
    found = e.found.get("vanishing", {})
    paths = (structural("relu+he_init", "residual", "batch_norm"), adaptive, depth)  # layer norm has not been enough
    if "late_to_early_time" in found:
        makers: tuple[Maker, ...] = (structural("gated"), identity, time_steps)
    elif found.get("at_first", True):
        makers = (initial_sizes, *paths)
    else:
        lacks = bool(found.get("missing")) and e.largest_ratio <= LARGE_UPDATE
        # the initial weights let it pass
        of_paths = (structural("residual", "batch_norm"), adaptive, depth, rate_that_took)
        makers = of_paths if lacks else (rate_that_took, *paths[:2])
    for maker in makers:
        yield from maker(e, c)


def time_steps(e: Evidence, c: Config) -> Iterator[Proposal]:
    offered = e.found.get("vanishing", {}).get("gated") or hasattr(c.model, "cell")
    shorter = "shorten the sequences" + ", or use gated cells" * (not offered)
    yield code("time steps", shorter, "the first steps get next to no gradient")


def depth(e: Evidence, c: Config) -> Iterator[Proposal]:
    """What would carry a gradient through many layers, as far as the model lacks it."""
    lines = {"residual connections": "add residual connections", "normalisation": "add batch normalisation"}
    if missing := [lines[name] for name in e.found.get("vanishing", {}).get("missing", lines)]:
        yield code("depth", ", or ".join(missing), "early layers get next to no gradient")
