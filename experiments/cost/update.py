"""What an update costs beside a bare PyTorch loop: gradlab, Lightning and Accelerate.

    python experiments/cost/update.py

Prints medians and quartiles of ratios (see `turns`), for people and as one JSON line a ratio. Four minutes, on one
thread. Needs `lightning` and `accelerate`.
"""

from __future__ import annotations

import json
import logging
import statistics
import warnings
from collections.abc import Iterator
from typing import Any

from turns import RESNET18, TRANSFORMER, Batch, Case, Contender, Sized, Turn, adamw, bare, mean_loss, measure

# turns is the first to import torch: it chooses one thread.
# isort: split
from accelerate import Accelerator
from lightning import pytorch as lightning
from torch import Tensor, nn

MAX_NORM = 1.0
TARGET = 1.02
CASES = {
    "transformer": Case(TRANSFORMER, 2, 55.0),
    "resnet18": Case(RESNET18, 1, 75.0),
    # Hardly any arithmetic: shows the fixed cost.
    "transformer of 1 x 8 bytes": Case(
        ["model=transformer", "data=text", "data.batch_size=1", "data.length=8"], 5, 6.0
    ),
}


def bare_clip(model: nn.Module, batches: Iterator[Batch]) -> None:
    bare(model, batches, MAX_NORM)


def accelerate(model: nn.Module, batches: Iterator[Batch]) -> None:
    accelerator = Accelerator(cpu=True)
    model, optimizer = accelerator.prepare(model, adamw(model))
    for inputs, targets in batches:
        optimizer.zero_grad()
        accelerator.backward(mean_loss(model, inputs, targets))
        optimizer.step()


class Module(lightning.LightningModule):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def training_step(self, batch: Batch, index: int) -> Tensor:
        return mean_loss(self.model, *batch)

    def configure_optimizers(self) -> Any:
        return adamw(self.model)


def lightning_fit(model: nn.Module, batches: Iterator[Batch]) -> None:
    off = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
    lightning.Trainer(accelerator="cpu", max_epochs=1, **off).fit(Module(model), Sized(batches))


CONTENDERS = {
    "bare": Contender(bare, "bare"),
    "gradlab": Contender(["monitor=none"], "bare"),
    "bare, clip": Contender(bare_clip, "bare, clip"),
    # PyTorch takes max_norm / (norm + 1e-6), and training amplifies what differs in the last digits.
    "gradlab, clip": Contender(["monitor=none", "clip=norm", f"clip.max_norm={MAX_NORM}"], "bare, clip", exact=False),
    "lightning": Contender(lightning_fit, "bare"),
    "accelerate": Contender(accelerate, "bare"),
}


def report(label: str, case: Case, turns: dict[str, list[Turn]]) -> list[dict[str, Any]]:
    """Print what was measured; the JSON lines of the ratios."""
    print(f"{label}: {len(turns['bare'])} rounds of {case.turn} updates; CPU ms an update, their ratio (by the clock)")
    lines = []
    for name, reference in ((n, CONTENDERS[n].reference) for n in turns if not n.startswith("bare")):
        pairs = list(zip(turns[name], turns[reference], strict=True))
        low, ratio, high = statistics.quantiles([a.cpu / b.cpu for a, b in pairs], n=4, method="inclusive")
        clock = statistics.median(a.clock / b.clock for a, b in pairs)
        ms, bare_ms = (1e3 * statistics.median(t.cpu for t in turns[n]) for n in (name, reference))
        text = f"{ratio:.3f}, quartiles {low:.3f} to {high:.3f} ({clock:.3f})"
        print(f"  {name} {ms:.2f}, {reference} {bare_ms:.2f}: {text}", flush=True)
        framework, _, clip = name.partition(", ")
        rounded = {key: round(value, 4) for key, value in (("ratio", ratio), ("low", low), ("high", high))}
        target = TARGET if framework == "gradlab" and case.overrides in (TRANSFORMER, RESNET18) else None
        lines.append({"name": f"{framework}/bare {label} fp32" + ", clipped" * bool(clip), **rounded, "target": target})
    return lines


def main() -> None:
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")
    lines = []
    for label, case in CASES.items():
        # resnet18 takes long, and clipping has been seen to cost nothing there
        contenders = {n: c for n, c in CONTENDERS.items() if label != "resnet18" or "clip" not in n}
        teams = measure(case, contenders)
        lines += report(label, case, {name: [turn for team in teams for turn in team[name]] for name in contenders})
    for line in lines:
        print(json.dumps(line))


if __name__ == "__main__":
    main()
