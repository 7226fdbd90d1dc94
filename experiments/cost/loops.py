"""What a loader, parameter groups and an average of the weights cost, beside PyTorch's own loop doing the same.

    python experiments/cost/loops.py

Both sides read the same images with PyTorch's DataLoader (the loop by a DataLoader of its own), hold the same groups of
AdamW, or follow the weights (the loop by `torch.optim.swa_utils.AveragedModel`), and clip. Prints medians and quartiles
of ratios (see `turns`), for people and as one JSON line a ratio. Five minutes, on one thread. Of CPU seconds, but with
workers by the clock, which shows whether they read while the loop computes.
"""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Iterator
from functools import partial
from typing import Any

from turns import TRANSFORMER, Batch, Case, Contender, Loop, bare, measure

# turns is the first to import torch: it chooses one thread.
# isort: split
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from gradlab.data.order import epoch_order

SAMPLES, SIZE = 100_000, 32
CLIPPED = ["monitor=none", "clip=norm", "clip.max_norm=1.0"]


class Images(torch.utils.data.Dataset[tuple[Tensor, int]]):
    """Images cropped and mirrored as their places say: both sides see the same."""

    def __init__(self) -> None:
        self.pixels = torch.randint(256, (1000, 3, 40, 40), generator=torch.Generator().manual_seed(0)).byte()

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, place: int) -> tuple[Tensor, int]:
        down, left = place % 7, place % 5
        image = self.pixels[place % 1000, :, down : down + 32, left : left + 32].float().div(127.5).sub(1)
        return (image.flip(-1) if place % 2 else image), place % 10


def convolutions() -> nn.Module:
    """A classifier."""
    widths, parts = (3, 16, 32, 64, 64), []
    for i, stride in enumerate((1, 2, 1, 2)):
        parts += [nn.Conv2d(widths[i], widths[i + 1], 3, stride, 1), nn.ReLU()]
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(64 * 16, 10))


def loader(workers: int = 0) -> torch.utils.data.DataLoader[Any]:
    order = [part.tolist() for part in epoch_order(SAMPLES, 0, 0).split(SIZE)]
    return torch.utils.data.DataLoader(Images(), batch_sampler=order, num_workers=workers)


def grouped(model: nn.Module, batches: Iterator[Batch]) -> None:
    """No weight decay for norms and biases, and smaller rates for the first of the blocks."""
    groups: dict[tuple[int, float], list[Tensor]] = {}
    for name, p in model.named_parameters():
        above = 3 - int(name.split(".")[1]) if name.startswith("blocks.") else 0
        groups.setdefault((above, 0.0 if "norm" in name or "bias" in name else 0.01), []).append(p)
    own = [{"params": ps, "lr": 1e-3 * 0.75**above, "weight_decay": decay} for (above, decay), ps in groups.items()]
    bare(model, batches, 1.0, own)


def averaged(model: nn.Module, batches: Iterator[Batch]) -> None:
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.999))
    bare(model, batches, 1.0, after=average.update_parameters)


GROUPS = r'[{match: "norm|bias", weight_decay: 0}, {match: "blocks\.(\d+)", lr_decay: 0.75}]'
CUSTOM = [
    "model=custom",
    "model.target=loops:convolutions",
    "data=custom",
    "data.stream=true",
    "data.outputs=10",
    f"data.batch_size={SIZE}",
    "optimizer=adamw",
    "optimizer.lr=1e-3",
]
READ = [*CUSTOM, "data.target=loops:Images"]
OWN = [*CUSTOM, "data.target=loops:loader"]
CLIP = partial(bare, max_norm=1.0)
CASES: dict[str, tuple[Case, Loop, list[str]]] = {
    "set": (Case(READ, 10, 40.0, batches=lambda: iter(loader())), CLIP, []),
    "set, 2 workers": (Case([*READ, "data.workers=2"], 20, 60.0, batches=lambda: iter(loader(2))), CLIP, []),
    "DataLoader": (Case(OWN, 10, 40.0, batches=lambda: iter(loader())), CLIP, []),
    "groups": (Case(TRANSFORMER, 2, 55.0), grouped, [f"optimizer.groups={GROUPS}"]),
    "ema": (Case(TRANSFORMER, 2, 55.0), averaged, ["trainer.ema=0.999"]),
}


def main() -> None:
    lines = []
    for name, (case, loop, more) in CASES.items():
        ours = Contender([*CLIPPED, *more], "loop", exact=False)  # PyTorch takes max_norm / (norm + 1e-6)
        teams = measure(case, {"loop": Contender(loop, "loop"), "gradlab": ours})
        pairs = [pair for team in teams for pair in zip(team["gradlab"], team["loop"], strict=True)]
        by_clock = "workers" in name
        both = [(a.cpu / b.cpu, a.clock / b.clock) for a, b in pairs]
        (cpu, clock) = (statistics.quantiles(ratios, n=4, method="inclusive") for ratios in zip(*both, strict=True))
        ms = 1e3 * statistics.median(b.clock for _, b in pairs)
        print(f"{name}: {len(pairs)} rounds of {case.turn} updates; the loop: {ms:.2f} ms an update; gradlab over it")
        for kind, (low, ratio, high) in (("CPU", cpu), ("clock", clock)):
            print(f"  {kind} {ratio:.3f}, quartiles {low:.3f} to {high:.3f}", flush=True)
        low, ratio, high = clock if by_clock else cpu
        rounded = {key: round(value, 4) for key, value in (("ratio", ratio), ("low", low), ("high", high))}
        lines.append({"name": f"gradlab/loop, {name}", **rounded, "target": 1.02})
    print(f"load {os.getloadavg()[0]:.1f}")
    for line in lines:
        print(json.dumps(line))


if __name__ == "__main__":
    main()
