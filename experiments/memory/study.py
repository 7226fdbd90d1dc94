"""What an update keeps for its backward pass, and what it costs to keep less."""

from __future__ import annotations

import statistics
from collections.abc import Callable

from lab import Claim, Measured, Run, Runs, Study, Sweep, check, depends

WHOLE, PARTS = 32, 8
"""Samples of a micro-batch; the global batch is 32."""
MIB = 2**20


def of(runs: Runs, recomputed: bool, batch: int) -> Runs:
    return runs.where(model__activation_checkpointing=str(recomputed), data__batch_size=batch)


def first(name: str) -> Callable[[Run], float]:
    """A metric of the first update."""
    return lambda run: run.series(name)[0]


KEPT, MADE = first("memory/activation_bytes"), first("memory/update_bytes")


def backward_share(run: Run) -> float:
    """Time of the backward pass over that of the forward pass of the same update: what slows both cancels."""
    ratios = [b / f for f, b in zip(run.series("time/forward"), run.series("time/backward"), strict=True)]
    return statistics.median(ratios)


def passes_ms(run: Run) -> float:
    """Both passes, at the fastest tenth of the updates: others share the machine, and only ever slow it down."""
    both = sorted(f + b for f, b in zip(run.series("time/forward"), run.series("time/backward"), strict=True))
    return 1e3 * both[len(both) // 10]


def pairs(runs: Runs, others: Runs) -> list[tuple[Run, Run]]:
    """Runs of the same seed."""
    return [(a, b) for a in runs for b in others if a.overrides["seed"] == b.overrides["seed"]]


def largest_difference(runs: list[tuple[Run, Run]], name: str, updates: int | None = None) -> float:
    """Relative, over seeds and updates."""
    values = [(x, y) for a, b in runs for x, y in list(zip(a.series(name), b.series(name), strict=True))[:updates]]
    return max(abs(x - y) / abs(x) for x, y in values)


def same(runs: list[tuple[Run, Run]]) -> Measured:
    norm = largest_difference(runs, "grad/norm", 1)
    loss, eval_loss = largest_difference(runs, "train/loss"), largest_difference(runs, "eval/loss")
    text = f"in {len(runs)} pairs of runs the first gradient's norm differs by at most {norm:.1g} of itself, "
    text += f"the loss of any update by {loss:.1g}, that of the evaluation by {eval_loss:.1g}"
    return check(norm < 1e-6 and loss < 1e-4, text)


def accumulation_is_the_same(runs: Runs) -> Measured:
    return same(pairs(of(runs, False, WHOLE), of(runs, False, PARTS)))


def checkpointing_is_the_same(runs: Runs) -> Measured:
    both = pairs(of(runs, False, WHOLE), of(runs, True, WHOLE)) + pairs(of(runs, False, PARTS), of(runs, True, PARTS))
    return same(both)


def less(runs: Runs, fewer: Runs) -> tuple[float, float]:
    """How many times less is kept for the backward pass, and is made in all."""
    return runs.median(KEPT) / fewer.median(KEPT), runs.median(MADE) / fewer.median(MADE)


def sizes(runs: Runs, fewer: Runs) -> str:
    kept, made = less(runs, fewer)
    text = f"kept for the backward pass: {runs.median(KEPT) / MIB:.1f} to {fewer.median(KEPT) / MIB:.1f} MiB, "
    return text + f"{kept:.1f} times less; all tensors of the update, gradients too: {made:.1f} times less"


def accumulation_saves(runs: Runs) -> Measured:
    whole, parts = of(runs, False, WHOLE), of(runs, False, PARTS)
    kept, made = less(whole, parts)
    return check(kept > 3.5 and made > 2, f"4 micro-batches of 8 instead of 32 at once: {sizes(whole, parts)}")


def checkpointing_saves(runs: Runs) -> Measured:
    whole, again = of(runs, False, WHOLE), of(runs, True, WHOLE)
    text = f"{sizes(whole, again)}, for one block at a time is there again in the backward pass"
    return check(less(whole, again)[1] > 1.5, text)


def checkpointing_time(runs: Runs) -> Measured:
    """Medians over seeds; single runs scatter where others share the machine."""
    plain, again = ([of(runs, r, b).median(backward_share) for b in (WHOLE, PARTS)] for r in (False, True))
    more = [a / p - 1 for p, a in zip(plain, again, strict=True)]
    text = f"{more[0]:+.1%} with 32 samples at once, {more[1]:+.1%} with 8: one more forward pass, where the backward "
    return depends([0.3 <= m <= 0.5 for m in more], text + f"pass takes {plain[0]:.2f} and {plain[1]:.2f} of them")


def accumulation_time(runs: Runs) -> Measured:
    whole, parts = (min(map(passes_ms, of(runs, False, batch))) for batch in (WHOLE, PARTS))
    text = f"{whole:.0f} ms for both passes of 32 samples at once, {parts:.0f} ms in four parts"
    return check(parts / whole < 1.1, f"{text} ({parts / whole - 1:+.0%})")


def both_together(runs: Runs) -> Measured:
    whole, both = of(runs, False, WHOLE), of(runs, True, PARTS)
    found, how = same(pairs(whole, both))
    text = f"{sizes(whole, both)}; {how}; {both.verdicts().get('healthy', 0)} of {len(both)} healthy"
    return check(found == "confirmed" and less(whole, both)[1] > 4 and both.all("healthy"), text)


STUDY = Study(
    title="what an update keeps for its backward pass",
    about="""A transformer of six blocks on bytes of text, AdamW, 48 updates of 32 samples: at once or in four
micro-batches, with and without computing activations again. The first update counts bytes of tensors: those that
autograd saves for the backward pass (`memory/activation_bytes`; parameters and inputs apart, which are there
anyway) and all that the forward and backward passes make, at the moment when they are most (`memory/update_bytes`).
Every later one times both passes.""",
    sweeps=[
        Sweep(
            "grid",
            [
                "-m",
                "+experiment=memory",
                "seed=0,1,2",
                "model.activation_checkpointing=false,true",
                f"data.batch_size={WHOLE},{PARTS}",
            ],
        )
    ],
    claims=[
        Claim(
            "Accumulation gives the same result as one large batch",
            "GM: What gradient accumulation does",
            accumulation_is_the_same,
        ),
        Claim(
            "and fits in memory: less of it, for the same global batch",
            "GM: What gradient accumulation does",
            accumulation_saves,
        ),
        Claim(
            "Accumulating over N steps costs no time (within 10%)",
            "GM: Why Gradient Accumulation Matters",
            accumulation_time,
        ),
        Claim(
            "Checkpointing trades computation for memory",
            "GM: Solution 6: Gradient Checkpointing",
            checkpointing_saves,
        ),
        Claim(
            "Checkpointing leaves the gradients as they are",
            "GM: Gradient Checkpointing Interaction",
            checkpointing_is_the_same,
        ),
        Claim(
            "Checkpointing makes the backward pass 30 to 50% longer",
            "GM: Gradient Checkpointing Interaction",
            checkpointing_time,
        ),
        Claim(
            "Checkpointing and accumulation combine without special handling",
            "GM: Gradient Checkpointing Interaction",
            both_together,
        ),
    ],
    by=("model.activation_checkpointing", "data.batch_size"),
    figure=("train/loss", "time/backward"),
)
