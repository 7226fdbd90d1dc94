"""What test_distributed.py runs under torchrun: many cases in one launch, results in the working directory.

torchrun ... ranks.py CASE ...
"""

import os
import shutil
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from helpers import load, losses, of_the_run, trainer, weights
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

from gradlab.base import distributed
from gradlab.base.distributed import World
from gradlab.train.inspection import find_overflow
from gradlab.train.sink import FunctionSink
from gradlab.train.trainer import Trainer
from gradlab.update.clip import NoClip
from gradlab.update.loss import CrossEntropy
from gradlab.update.noise import NoNoise
from gradlab.update.precision import FP32
from gradlab.update.schedule import Constant
from gradlab.update.sgd import SGD
from gradlab.update.stats import MicroBatch
from gradlab.update.step import Update

DIGITS = (
    *("model.layers=2", "model.activation=tanh", "model.norm=layer", "data.samples=50", "optimizer=sgd"),
    *("accumulation.steps=3", "trainer.epochs=3", "seed=7"),
)
"""Windows of 24, 24 and 2 samples an epoch: of the last, two of four ranks get none."""
TEXT = (
    *("model=transformer", "model.layers=1", "model.width=16", "data.length=16", "data.variable_length=true"),
    *("data.samples=45", "data.test_samples=7", "optimizer=sgd", "accumulation.steps=3", "trainer.epochs=3", "seed=7"),
)
"""Windows of 24 and 21 samples, of 1 to 16 tokens each."""
EVERYTHING = (
    *(*TEXT, "data.batch_size=4", "model.dropout=0.1", "model.activation_checkpointing=true", "precision=fp16"),
    *("precision.growth_interval=2", f"precision.init_scale={2.0**20}", "clip=norm", "clip.max_norm=0.5"),
    *("noise=gaussian", "schedule=warmup", "schedule.warmup=4", "trainer.checkpoint_every=2"),
)
SAME = {
    "digits": DIGITS,
    "text": TEXT,
    "noise_and_clip": (*TEXT, "noise=gaussian", "clip=norm", "clip.max_norm=0.5"),
    "unused": (
        *("model=custom", "model.target=nets:Unused", "trainer.find_unused_parameters=true", "data.samples=50"),
        *("optimizer=sgd", "accumulation.steps=3", "trainer.epochs=3", "seed=7"),
    ),
    "streamed": (
        *("model=custom", "model.target=streams:Net", "optimizer=sgd", "data=custom", "data.target=streams:augmented"),
        *("+data.kwargs.samples=50", "data.workers=1", "accumulation.steps=3", "trainer.epochs=3", "seed=7"),
    ),
    "terms": (
        *("model=custom", "model.target=streams:Tagger", "optimizer=sgd", "data=custom"),
        *("data.target=streams:sentences",),
        *("+data.kwargs.samples=50", "data.collate=streams:padded", "loss=custom", "loss.target=streams:terms"),
        *("accumulation.steps=3", "trainer.epochs=3", "seed=7"),
    ),
    "late": (
        *("model=custom", "model.target=streams:Tagger", "optimizer=sgd", "data=custom"),
        *("data.target=streams:sentences",),
        *("+data.kwargs.samples=50", "data.collate=streams:padded", "loss=custom", "loss.target=streams:pair"),
        *("accumulation.steps=3", "trainer.epochs=3", "seed=7"),
    ),
    "summed": (*DIGITS, "loss.reduction=sum", "optimizer.lr=0.005"),
}


def result(run: Trainer, folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = {"weights": weights(run.module), "outcome": vars(run.outcome), "rank": run.world.rank}
    return found | {"losses": losses(folder)} if run.world.main else found


def same(world: World, name: str) -> dict[str, Any]:
    """The same global micro-batch of 8 on any number of ranks."""
    run = trainer(Path(name), *SAME[name], f"data.batch_size={8 // world.size}", world=world)
    run.run()
    return result(run, Path(name))


def everything(world: World) -> dict[str, Any]:
    """All of it at once; then again from where a kill at the fourth update would have left it."""

    class Copying(Trainer):
        def stop_asked(self) -> bool:
            if self.update.attempts == 5 and self.world.main:
                shutil.copytree(self.folder, "everything_killed")
            return super().stop_asked()

    run = trainer(Path("everything"), *EVERYTHING, world=world, cls=Copying)
    run.run()
    world.barrier()
    again = trainer(Path("everything_killed"), *EVERYTHING, world=world)
    again.config = replace(again.config, resume="everything_killed")
    again.run()
    states = [of_the_run(load(Path(name))) for name in ("everything", "everything_killed")]
    found = {"whole": states[0], "resumed": states[1], "resumed_weights": weights(again.module)}
    return result(run, Path("everything")) | (found if world.main else {"resumed_weights": weights(again.module)})


def interrupted(world: World) -> dict[str, Any]:
    """The last rank alone is told to stop, during its third update."""

    def tell(line: dict[str, Any], layers: Any) -> None:
        if world.rank == world.size - 1 and line["attempt"] == 3:
            os.kill(os.getpid(), signal.SIGINT)

    run = trainer(Path("interrupted"), *TEXT, "data.batch_size=4", world=world, sinks=(FunctionSink(tell),))
    run.run()
    return result(run, Path("interrupted")) | {"checkpoint": Path("interrupted/checkpoint.pt").is_file()}


def overflow_of_one_rank(world: World) -> dict[str, Any]:
    """One rank's gradient is NaN: all skip alike, then all stop alike."""
    found = {}
    for nonfinite in ("skip", "stop"):
        custom = ("model=custom", "model.target=nets:NaNAt", f"+model.kwargs.at={4 if world.rank else 0}")
        folder = Path(f"nan_{nonfinite}")
        run = trainer(
            folder, *custom, "data.samples=64", "data.batch_size=4", f"precision.nonfinite={nonfinite}", world=world
        )
        run.run()
        found[nonfinite] = result(run, folder)
        if run.outcome.status == "failed":
            found["overflow"] = str(find_overflow(run))
            world.barrier()
            found["crash"] = torch.load(folder / "crash.pt", weights_only=True)["batches"]
    return found


def buckets(world: World) -> dict[str, Any]:
    """Which gradient buckets are reduced in each update of 3 micro-batches."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(3)])
    ddp = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=1, gradient_as_bucket_view=True)
    reduced: list[list[int]] = []

    def count(state: None, bucket: torch.distributed.GradBucket) -> torch.futures.Future[torch.Tensor]:
        reduced[-1].append(bucket.index())
        return allreduce_hook(torch.distributed.group.WORLD, bucket)

    ddp.register_comm_hook(None, count)
    parts = (SGD().build(ddp.parameters()), Constant(), FP32().build(torch.device("cpu")), NoNoise(), NoClip())
    update = Update(ddp, CrossEntropy(), *parts, lr=0.1, world=world)
    for length in (3, 3, 1, 2):
        reduced.append([])
        update([MicroBatch(torch.randn(4, 512), torch.randint(0, 512, (4,))) for _ in range(length)])
    return {"reduced": reduced}


def main() -> None:
    world = distributed.world()
    cases = {f.__name__: f for f in (everything, interrupted, overflow_of_one_rank, buckets)}
    for name in sys.argv[1:]:
        found = same(world, name) if name in SAME else cases[name](world)
        torch.save(found, f"{name}.{world.rank}.pt")
    distributed.leave()
    os._exit(0)  # a thread of the process group may abort the interpreter as it ends


if __name__ == "__main__":
    main()
