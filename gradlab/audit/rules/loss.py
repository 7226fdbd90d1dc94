"""Losses kept with their graphs."""

from __future__ import annotations

from collections.abc import Iterator

from gradlab.audit.rules import Hit, rule
from gradlab.audit.trace import Run


@rule(
    "GL605",
    "loss-kept-with-graph",
    "warning",
    "a loss is kept with its graph, memory grows with every batch: keep loss.detach() or loss.item()",
    "Measured on eight small layers: 25 kB of graph stay a batch; and all that a backward pass would "
    "need, where none freed it. loss.item() waits for the device, loss.detach() does not.",
    "total += loss.detach()",
)
def kept(run: Run) -> Iterator[Hit]:
    unit = run.unit
    if unit.loop is None:
        return
    backwards = [e for e in [*unit.events, *unit.after] if e.kind == "backward" and e.value is not None]
    texts = {e.data.get("text", "") for e in backwards}
    used = frozenset().union(*(e.value.data.get("roots", frozenset()) for e in backwards if e.value is not None))
    for keep in run.of("keep"):
        into = keep.event.data["into"]
        if keep.event.data["token"] in used:
            continue
        if into and any(text == into or text.startswith((f"{into}.", f"{into} ", f"({into}")) for text in texts):
            continue
        roots = keep.event.value.data.get("roots", frozenset()) if keep.event.value is not None else frozenset()
        for backward in run.of("backward"):
            value = backward.event.value
            if backward.k == keep.k and value is not None and value.data.get("roots", frozenset()) & roots:
                yield Hit(keep, (backward,))
                break
