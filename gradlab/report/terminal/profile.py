"""The norms of layers, in the order in which they run, as bars in a terminal."""

from __future__ import annotations

import math

from gradlab.base.option import Invalid
from gradlab.report.layers import by_layer
from gradlab.runs.record import RunRecord

Line = list[tuple[str, str]]
BAR = 12
"""Characters that a bar is worth having."""


def lines(run: RunRecord, at: int | None, wide: int, ascii: bool) -> list[Line]:
    """The profile at an update, with the numbers of the first and of the middle record beside it."""
    run.check("layers.jsonl")
    records = run.layer_records
    if not records:
        raise Invalid("--layers", run.path, "holds no record of layers (monitor=summary and full make them)")
    attempts = [line["attempt"] for line in records]
    if at is not None and at not in attempts:
        near = min(attempts, key=lambda a: abs(a - at))
        raise Invalid("--at", at, f"no record of that update; the nearest is {near}, the last {attempts[-1]}")
    finite = [r for r in records if all(v is None or math.isfinite(v) for v in r["grad/layer"])]
    chosen = (finite or records)[-1] if at is None else records[attempts.index(at)]
    shown = {line["attempt"]: line for line in (records[0], records[len(records) // 2], chosen)}
    names, order = run.layer_header["names"], run.layer_header["order"]
    profiles = {attempt: by_layer(names, order, line["grad/layer"]) for attempt, line in shown.items()}
    main = {layer: norm for layer, norm in profiles[chosen["attempt"]].items() if norm is not None}
    seen = [v for v in main.values() if 0 < v < math.inf]
    low, high = (math.log10(f(seen, default=1.0)) for f in (min, max))
    width = max(map(len, main))
    room = max(wide - width - 10 * len(profiles) - 4, BAR)
    heads = "".join(f"{f'at {attempt}':>10}" for attempt in profiles)
    found: list[Line] = [
        [(f"{'layer':<{width}}{heads}  norm of its gradient at {chosen['attempt']}, log scale", "bold")]
    ]
    for layer, norm in main.items():
        every = [profile[layer] for profile in profiles.values()]
        numbers = "".join(f"{'-':>10}" if v is None else f"{v:>10.3g}" for v in every)
        part = (math.log10(norm) - low) / (high - low) if 0 < norm < math.inf and high > low else float(norm > 0)
        bar = ("#" if ascii else "█") * max(round(part * room), 1 if norm > 0 else 0)
        text, style = (bar, "curve") if math.isfinite(norm) else ("! not finite", "mark")
        found.append([(f"{layer:<{width}}", ""), (numbers, "label"), ("  ", ""), (text, style)])
    return found
