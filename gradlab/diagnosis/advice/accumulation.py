"""Accumulation for a target batch size."""

from __future__ import annotations

from gradlab.diagnosis.advice.line import Advice


def batch_advice(wanted: int, batch_size: int, world_size: int) -> list[Advice]:
    """Accumulation for an update of `wanted` samples: exactly, or as close as possible."""
    rests = f"data.batch_size={batch_size} on {world_size} rank{'s' * (world_size > 1)}"
    unit = batch_size * world_size

    def steps(micro: int, number: int) -> Advice:
        total = micro * world_size * number
        override = f"accumulation=fixed accumulation.steps={number}"
        override = f"data.batch_size={micro} {override}" if micro != batch_size else override
        exact = "" if total == wanted else f", not {wanted}"
        says = f"{number} x {micro} samples on each of {world_size} ranks are {total} an update{exact}"
        says = says.replace(" on each of 1 ranks", "")
        numbers = {"steps": number, "batch_size": micro, "global_batch_size": total}
        return Advice("accumulation", says, override, rests, numbers)

    if wanted % unit == 0:
        return [steps(batch_size, wanted // unit)]
    found = []
    if wanted % world_size == 0:
        each = wanted // world_size
        fitting = [m for m in range(batch_size, 0, -1) if each % m == 0]
        if fitting and (each < batch_size or 2 * fitting[0] >= batch_size):  # micro-batches much smaller waste time
            found.append(steps(fitting[0], each // fitting[0]))
    near = sorted({max(wanted // unit, 1), wanted // unit + 1}, key=lambda number: abs(number * unit - wanted))
    return found + [steps(batch_size, number) for number in near]
