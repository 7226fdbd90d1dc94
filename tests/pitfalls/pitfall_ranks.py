"""What test_pitfalls.py runs under torchrun: each pitfall of DDP on two ranks, results in the working directory."""

from pathlib import Path
from typing import Any

import torch
from helpers import trainer, weights
from test_pitfalls import RANKS, TINY

from gradlab.base import distributed
from gradlab.base.distributed import World
from gradlab.pitfalls.impact import Impact

OVERRIDES = (*TINY, "data.samples=48", "data.batch_size=4", "accumulation.steps=4", "optimizer=sgd", "trainer.epochs=1")
"""6 micro-batches a rank: windows of 4 and 2."""


def fall(world: World, name: str) -> dict[str, Any]:
    """The weights before, between and after the two updates, what was measured, and the weights without measuring."""
    found: dict[str, Any] = {"weights": [], "right_all_reduces": []}
    for every in (0, 1):
        chosen = [f"+pitfall={name}", f"pitfall.measure_every={every}"] if name != "none" else []
        run = trainer(Path(name, str(every)), *OVERRIDES, "optimizer.momentum=0", *chosen, world=world)
        if not every:
            run.run()
            found["unmeasured"] = weights(run.module)
            continue
        found["weights"].append(weights(run.module))
        for k, cursor in enumerate((0, 32)):
            assert run.cursor == cursor and run.update.attempts == k
            if run.impact:
                before = run.impact.all_reduces
            run.one_update()
            if run.impact:
                both = run.impact.all_reduces - before
                found["right_all_reduces"].append(both - run.impact.seen["pitfall/all_reduces"][-1])
            found["weights"].append(weights(run.module))
        if isinstance(run.impact, Impact):
            found |= {metric.removeprefix("pitfall/"): values for metric, values in run.impact.seen.items()}
    return found


def main() -> None:
    world = distributed.world()
    names = ("none", *sorted(RANKS), "unscaled_accumulation", "missing_zero_grad")
    torch.save({name: fall(world, name) for name in names}, f"pitfalls.{world.rank}.pt")
    distributed.leave()


if __name__ == "__main__":
    main()
