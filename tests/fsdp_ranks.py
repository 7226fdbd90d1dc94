"""What test_fsdp.py runs under torchrun: every parameter divided among the ranks.

torchrun ... fsdp_ranks.py CASE ...
"""

import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from helpers import metrics, trainer
from ranks import DIGITS, EVERYTHING, SAME, TEXT
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn import functional as F

from gradlab.base import distributed
from gradlab.base.distributed import World
from gradlab.base.json_lines import read_lines
from gradlab.data.base import IGNORE
from gradlab.train.fsdp import mesh_of
from gradlab.train.inspection import find_overflow, inspect
from gradlab.train.trainer import Trainer

FSDP = "trainer.parallel=fsdp"
SMALL = (*TEXT, "data.batch_size=4", "trainer.epochs=2")
NORM = ("clip=norm", "clip.max_norm=0.5")
WHOLES = 'optimizer.groups=[{match: "head|embed", optimizer: custom, target: "torch.optim:NAdam", lr: 0.01}]'
AS_DDP = {
    "bf16": (*SMALL, *NORM, "precision=bf16"),
    "fp16": (*SMALL, *NORM, "precision=fp16", f"precision.init_scale={2.0**20}"),
    "per_layer": (*SMALL, "clip=per_layer", "clip.max_norm=0.1"),
    "value": (*SMALL, "clip=value", "clip.max_value=0.003"),
    "zclip": (*SMALL, "clip=zclip", "clip.warmup=2", "clip.z_max=0.1"),
    "momentumless": (*SMALL, "optimizer.momentum=0", "trainer.fsdp_reshard=false"),
    "groups": (*SMALL, "optimizer=adamw", 'optimizer.groups=[{match: "norm|bias", weight_decay: 0, lr_scale: 0.1}]'),
    "optimizers": (
        *SMALL,
        'optimizer.groups=[{match: "head|embed", optimizer: adamw}, {match: norm, optimizer: lion}]',
    ),
    "one of wholes": (*SMALL, "optimizer=adamw", "optimizer.lr=0.01", WHOLES),
    "ema": (*SMALL, "trainer.ema=0.9", "trainer.fsdp_reshard=false"),
    "custom": (*SMALL, "optimizer=custom", "optimizer.target=torch.optim:NAdam", "optimizer.lr=0.01"),
    "tied": (*SMALL, "model.tie_embeddings=true", "model.layers=2", "trainer.fsdp_blocks=blocks\\.\\d+"),
    "lstm": ("model=lstm", "model.width=12", "model.layers=2", "data=text", "data.length=12", "data.samples=40"),
    "batch_norm": ("model=resnet", "model.norm=batch", "data.samples=48", "data.batch_size=8", "trainer.epochs=2"),
}
"""The same as under DDP on as many ranks."""


def finished(name: str, *overrides: str, world: World, cls: type = Trainer) -> tuple[Trainer, dict[str, Any]]:
    run = trainer(Path(name), *overrides, world=world, cls=cls)
    run.run()
    return run, run.full_state()


def result(run: Trainer, whole: dict[str, Any], folder: str) -> dict[str, Any]:
    found: dict[str, Any] = {"outcome": vars(run.outcome)}
    if run.world.main:
        found |= {
            "state": whole,
            "metrics": metrics(Path(folder)),
            "layers": list(read_lines(Path(folder, "layers.jsonl"))),
        }
    return found


def divided(world: World) -> tuple[str, str]:
    """Four ranks are two groups."""
    return FSDP, f"trainer.fsdp_replicas={1 + world.size // 4}"


def as_one(world: World, name: str) -> dict[str, Any]:
    """The same global micro-batch of 8 on any number of ranks."""
    given = (*SAME[name], *divided(world), "monitor=full")
    run, whole = finished(name, *given, f"data.batch_size={8 // world.size}", world=world)
    local = [p.numel() for p in run.update.params]
    return result(run, whole, name) | {"elements": sum(local)}


def as_ddp(world: World, name: str) -> dict[str, Any]:
    found = {}
    for how in ("ddp", "fsdp"):
        run, whole = finished(f"{name}_{how}", *AS_DDP[name], f"trainer.parallel={how}", world=world)
        found[how] = result(run, whole, f"{name}_{how}")
    return found


def half(world: World) -> dict[str, Any]:
    """Gathered in bf16; and a loop around PyTorch's fully_shard, written by hand, that reduces every micro-batch."""
    found = {}
    for how in ("true", "false"):
        given = (*SMALL, *NORM, "optimizer.momentum=0.9", "precision=bf16", f"trainer.fsdp_half={how}")
        given += divided(world)
        run, whole = finished(f"half_{how}", *given, world=world)
        found[how] = whole["model"] if world.main else {}
    model: Any = run.config.model.build(run.data.spec)
    begun = trainer(Path("half_begun"), *given, world=world)
    model.load_state_dict({name: t.full_tensor() for name, t in begun.module.state_dict().items()})
    policy = MixedPrecisionPolicy(torch.bfloat16, reduce_dtype=torch.float32, cast_forward_inputs=False)
    mesh = mesh_of(1 + world.size // 4, torch.device("cpu"), world)
    for block in (*model.blocks, model):
        fully_shard(block, mesh=mesh, mp_policy=policy)
    optimizer = torch.optim.SGD(model.parameters(), lr=run.config.optimizer.lr, momentum=0.9)
    for epoch in range(run.config.trainer.epochs):
        cursor = 0
        while cursor < begun.samples:
            window, cursor = begun.batches(epoch, cursor, run.config.accumulation.steps)
            counts = [(b.targets != IGNORE).sum() * b.counts for b in window]
            count = world.sum_(torch.stack(counts).sum())
            for b in window:
                with torch.autocast("cpu", torch.bfloat16):
                    outputs = model(b.inputs).flatten(0, 1)
                    loss = F.cross_entropy(outputs, b.targets.flatten(), ignore_index=IGNORE, reduction="sum")
                (loss * b.counts * world.size / count).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), run.config.clip.max_norm)
            optimizer.step()
            optimizer.zero_grad()
    return found | {"by_hand": {name: t.full_tensor() for name, t in model.state_dict().items()}}


def resumed(world: World) -> dict[str, Any]:
    """Dropout, fp16, noise and recomputed activations; then again from where a kill would have left it."""

    class Copying(Trainer):
        def stop_asked(self) -> bool:
            if self.update.attempts == 5 and self.world.main:
                shutil.copytree(self.folder, "resumed_killed")
            return super().stop_asked()

    given = (*EVERYTHING, *divided(world), f"data.batch_size={8 // world.size}")
    run, whole = finished("resumed", *given, world=world, cls=Copying)
    world.barrier()
    again = trainer(Path("resumed_killed"), *given, world=world)
    again.config = replace(again.config, resume="resumed_killed")
    again.run()
    return {"whole": result(run, whole, "resumed"), "resumed": result(again, again.full_state(), "resumed_killed")}


def elsewhere(world: World) -> dict[str, Any]:
    """A run that is stopped half way; and one that goes on with what a plain process has left."""
    finished("begun_by_two", *DIGITS, FSDP, "data.batch_size=4", "trainer.updates=5", world=world)
    if world.main:
        trainer(Path("begun_by_one"), *DIGITS, "data.batch_size=8", "trainer.updates=5").run()
    world.barrier()
    again = trainer(Path("begun_by_one"), *DIGITS, FSDP, "data.batch_size=4", world=world)
    again.config = replace(again.config, resume="begun_by_one")
    again.run()
    return result(again, again.full_state(), "begun_by_one")


def failing(world: World) -> dict[str, Any]:
    """One rank's gradient is NaN: all skip alike, then all stop alike, and rank 0 finds what broke."""
    found: dict[str, Any] = {}
    for nonfinite in ("skip", "stop"):
        custom = ("model=custom", "model.target=nets:NaNAt", f"+model.kwargs.at={4 if world.rank else 0}", FSDP)
        given = ("data.samples=64", "data.batch_size=4", f"precision.nonfinite={nonfinite}")
        run, whole = finished(f"nan_{nonfinite}", *custom, *given, world=world)
        found[nonfinite] = result(run, whole, f"nan_{nonfinite}")
        run.assemble()
        if world.main:
            found["overflow" if nonfinite == "stop" else "inspection"] = str(
                find_overflow(run) if nonfinite == "stop" else inspect(run)
            )
        world.barrier()
    if world.main:
        found["crash"] = torch.load(Path("nan_stop/crash.pt"), weights_only=True)
    return found


def collapse(world: World) -> dict[str, Any]:
    """The loss scale falls below 1 in updates 3 to 6; others come through before that is noticed, at update 8."""
    model = ("model=custom", "model.target=nets:Overflows", "+model.kwargs.after=2", "+model.kwargs.passes=4", FSDP)
    scale = ("precision=fp16", "precision.init_scale=2", "precision.min_scale=0.2", "precision.check_every=8")
    run, whole = finished("collapse", *model, *scale, "data.samples=128", "data.batch_size=4", world=world)
    found = result(run, whole, "collapse")
    return found | {"crash": torch.load(Path("collapse/crash.pt"), weights_only=True)} if world.main else found


def main() -> None:
    world = distributed.world()
    cases = {f.__name__: f for f in (half, resumed, elsewhere, failing, collapse)}
    for name in sys.argv[1:]:
        found = as_one(world, name) if name in SAME else as_ddp(world, name) if name in AS_DDP else cases[name](world)
        torch.save(found, f"{name}.{world.rank}.pt")
    distributed.leave()
    os._exit(0)  # a thread of the process group may abort the interpreter as it ends


if __name__ == "__main__":
    main()
