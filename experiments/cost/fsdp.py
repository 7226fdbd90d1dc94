"""What an update costs under `trainer.parallel=fsdp`, beside a loop around PyTorch's fully_shard written by hand.

    torchrun --standalone --nproc-per-node=2 experiments/cost/fsdp.py

Both train the same transformer on the same batches in the same processes, in turn, clipped, with the same AdamW. Prints
the median and quartiles of the ratio of CPU seconds of all ranks (by the clock in brackets), for people and as one JSON
line. Two minutes, one thread a rank. Fails if their weights are not equal to rounding.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn import functional as F

from gradlab.base import distributed
from gradlab.config.compose import compose
from gradlab.config.schema import to_config
from gradlab.train.sink import FileSink
from gradlab.train.trainer import Trainer

MODEL = [
    "model=transformer",
    "model.width=128",
    "data=text",
    "data.batch_size=16",
    "data.length=64",
    "data.samples=50000",
]
QUIET = ["logger=none", "monitor=none", "trainer.progress=none", "trainer.device=cpu", "trainer.epochs=1"]
CLIPPED = ["clip=norm", "clip.max_norm=1.0", "optimizer=adamw", "schedule=constant"]
ROUNDS, TURN, WARMUP = 40, 4, 3
TARGET = 1.03


def by_hand(trainer: Trainer, fused: bool) -> tuple[nn.Module, Callable[[], None]]:
    """A divided model with the weights of a run that begins, and one update of it, on the run's batches."""
    world = trainer.world
    model: nn.Module = trainer.config.model.build(trainer.data.spec)
    model.load_state_dict({k: t.full_tensor() for k, t in trainer.module.state_dict().items()})
    mesh = init_device_mesh("cpu", (world.size,))
    for block in model.blocks:  # type: ignore[union-attr]
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=trainer.config.optimizer.lr, weight_decay=0.01, fused=fused)
    cursor = 0

    def update() -> None:
        nonlocal cursor
        (batch,), cursor = trainer.batches(0, cursor, 1)
        optimizer.zero_grad()
        F.cross_entropy(model(batch.inputs).flatten(0, 1), batch.targets.flatten()).backward()
        total = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        assert isinstance(total, DTensor) and total.full_tensor().isfinite()
        optimizer.step()

    return model, update


def turn(update: Callable[[], None]) -> torch.Tensor:
    """(2,) CPU seconds and seconds of the clock of some updates."""
    torch.distributed.barrier()
    cpu, clock = time.process_time(), time.perf_counter()
    for _ in range(TURN):
        update()
    return torch.tensor([time.process_time() - cpu, time.perf_counter() - clock], dtype=torch.float64)


def main() -> None:
    world = distributed.world()
    folder = Path(tempfile.mkdtemp())
    config = to_config(compose([*MODEL, *QUIET, *CLIPPED, "trainer.parallel=fsdp"]))
    trainer = Trainer(config, folder, world, (FileSink(),), say=lambda text: None)
    for sink in trainer.sinks:
        sink.begin(trainer, [0, 0])
    model, update = by_hand(trainer, fused=True)
    ratios: list[tuple[float, float]] = []
    for i in range(ROUNDS + WARMUP):
        first, second = (trainer.one_update, update) if i % 2 else (update, trainer.one_update)
        a, b = turn(first), turn(second)
        both = world.sum_(torch.stack([a, b] if i % 2 else [b, a]))
        if i >= WARMUP:
            ratios.append(tuple((both[0] / both[1]).tolist()))
    for (name, ours), theirs in zip(trainer.module.state_dict().items(), model.state_dict().values(), strict=True):
        torch.testing.assert_close(ours.full_tensor(), theirs.full_tensor(), rtol=1e-2, atol=1e-3, msg=name)
    if world.main:
        low, ratio, high = statistics.quantiles([cpu for cpu, _ in ratios], n=4, method="inclusive")
        clock = statistics.median(clock for _, clock in ratios)
        print(f"gradlab/fully_shard, {world.size} ranks: {ratio:.3f}, quartiles {low:.3f} to {high:.3f} ({clock:.3f})")
        rounded = {key: round(value, 4) for key, value in (("ratio", ratio), ("low", low), ("high", high))}
        print(json.dumps({"name": f"gradlab/fully_shard transformer, {world.size} ranks", **rounded, "target": TARGET}))
    trainer.close()
    distributed.leave()
    os._exit(0)  # a thread of the process group may abort the interpreter as it ends


if __name__ == "__main__":
    main()
