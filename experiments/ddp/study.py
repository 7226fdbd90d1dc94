"""Accumulation under DDP: how often gradients are reduced, and what no_sync must surround."""

import statistics

from lab import Claim, Runs, Study, Sweep, check

BASE = [
    *("model=transformer", "model.layers=2", "data.samples=1024", "data.test_samples=64", "data.batch_size=8"),
    *("accumulation.steps=4", "trainer.epochs=1", "seed=0", "expect=any"),
]
WRONG = ("ddp_sync_every_micro_batch", "no_sync_around_backward_only", "no_sync_off_by_one")


def value(runs: Runs, pitfall: str, name: str) -> float:
    return statistics.median(v for r in runs.where(pitfall) for v in r.series(f"pitfall/{name}") if v == v)


def every(runs: Runs):
    n = value(runs, "ddp_sync_every_micro_batch", "all_reduces")
    return check(n == 4, f"{n:g} all-reduces an update of 4 micro-batches; 1 with no_sync")


def same(runs: Runs):
    d = value(runs, "ddp_sync_every_micro_batch", "distance")
    return check(d < 1e-3, f"the update differs by {d:.1g} of itself")


def speed(runs: Runs):
    right, wrong = (runs.where(s)[0].seconds for s in ("right", "timed"))
    ratio = wrong / right
    return check(
        2 <= ratio <= 4, f"an update takes {ratio:.2f} times as long without no_sync, on two processes of one machine"
    )


def around(runs: Runs):
    n = value(runs, "no_sync_around_backward_only", "all_reduces")
    return check(n == 4, f"{n:g} all-reduces: DDP decides in the forward pass")


def off(runs: Runs):
    d = value(runs, "no_sync_off_by_one", "distance")
    return check(d > 0.1, f"the update differs by {d:.2g} of the right one, and the ranks' weights part")


STUDY = Study(
    title="no_sync and accumulation",
    about="""Two processes (gloo, one machine), a transformer of two blocks, four micro-batches an update.""",
    sweeps=[
        Sweep("right", BASE, ranks=2),
        Sweep("timed", ["+pitfall=ddp_sync_every_micro_batch", "pitfall.measure_every=0", *BASE], ranks=2),
        *(Sweep(name, [f"+pitfall={name}", *BASE], ranks=2) for name in WRONG),
    ],
    by=("pitfall",),
    claims=[
        Claim(
            "without no_sync gradients are reduced at every micro-batch", "GM: Gradient accumulation with DDP", every
        ),
        Claim("the result is the same, only slower", "GM: Gradient accumulation with DDP", same),
        Claim("no_sync makes an update 2 to 4 times faster", "GM: Performance comparison", speed),
        Claim("no_sync around the backward pass alone does not help", "what recipes often show", around),
        Claim("no_sync at the wrong micro-batch trains on local gradients", "what recipes often show", off),
    ],
)
