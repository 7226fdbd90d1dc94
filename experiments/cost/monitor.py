"""What watching the gradients costs: `monitor=summary` and `full`, and what others do.

    python experiments/cost/monitor.py

All train with clipping. What is recorded differs from update to update, so a ratio is the mean over a period of 50
updates of the median of each kind of turn: no record hides behind a median. Prints them with their quartiles (see
`turns`), for people and as one JSON line a ratio. Six minutes, on one thread. Needs `lightning` and `wandb`.
"""

from __future__ import annotations

import json
import logging
import os
import statistics
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from turns import RESNET18, TRANSFORMER, WARMUP, Batch, Case, Contender, Sized, Team, adamw, bare, mean_loss, measure

# turns is the first to import torch: it chooses one thread.
# isort: split
import lightning.pytorch
import wandb
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.utilities import grad_norm
from torch import Tensor, nn

from gradlab.measure.monitor import Summary

MAX_NORM = 1.0
PERIOD = 50
"""Updates after which `summary` and `full` repeat themselves."""
CLIP = ["clip=norm", f"clip.max_norm={MAX_NORM}"]
Watch = Callable[[nn.Module], None]


def watched(watch: Watch, model: nn.Module, batches: Iterator[Batch]) -> None:
    """The bare loop, with a look at the gradients before they are clipped."""
    optimizer = adamw(model)
    for inputs, targets in batches:
        optimizer.zero_grad(set_to_none=True)
        mean_loss(model, inputs, targets).backward()
        watch(model)
        nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
        optimizer.step()


def norm_by_item(model: nn.Module) -> float:
    """The norm of the whole gradient, as tutorials compute it: one number read a parameter."""
    squares = (p.grad.norm(2).item() ** 2 for p in model.parameters() if p.grad is not None)
    return sum(squares) ** 0.5


def statistics_by_item(model: nn.Module) -> dict[str, float]:
    """Norm, mean, spread, largest element and ratio to the weights of every parameter, each number read by itself."""
    seen = {}
    for name, p in model.named_parameters():
        if p.grad is None:
            continue
        norm, weight = p.grad.norm(2).item(), p.detach().norm(2).item()
        seen |= {f"{name}/norm": norm, f"{name}/mean": p.grad.mean().item(), f"{name}/std": p.grad.std().item()}
        seen[f"{name}/max"] = p.grad.abs().max().item()
        if weight > 0:
            seen[f"{name}/ratio"] = norm / weight
    return seen


def bare_clip(model: nn.Module, batches: Iterator[Batch]) -> None:
    bare(model, batches, MAX_NORM)


def by_item(model: nn.Module, batches: Iterator[Batch]) -> None:
    watched(norm_by_item, model, batches)


def all_by_item(model: nn.Module, batches: Iterator[Batch]) -> None:
    watched(statistics_by_item, model, batches)


class Module(lightning.pytorch.LightningModule):
    """Logs the norm of every parameter's gradient, as Lightning's documentation does."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def training_step(self, batch: Batch, index: int) -> Tensor:
        return mean_loss(self.model, *batch)

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        self.log_dict(grad_norm(self.model, norm_type=2))

    def configure_optimizers(self) -> Any:
        return adamw(self.model)


def lightning_fit(model: nn.Module, batches: Iterator[Batch]) -> None:
    off = {"enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = lightning.pytorch.Trainer(
        accelerator="cpu", max_epochs=1, gradient_clip_val=MAX_NORM, logger=CSVLogger("."), **off
    )
    trainer.fit(Module(model), Sized(batches))


def wandb_watch(model: nn.Module, batches: Iterator[Batch]) -> None:
    """Histograms of every gradient at every update; the process that writes them is not counted."""
    with wandb.init(mode="offline", dir=".") as run:
        run.watch(model, log="gradients", log_freq=1)
        optimizer = adamw(model)
        for inputs, targets in batches:
            optimizer.zero_grad(set_to_none=True)
            loss = mean_loss(model, inputs, targets)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
            optimizer.step()
            run.log({"train/loss": loss.item()})


# Not exact: PyTorch takes max_norm / (norm + 1e-6), and training amplifies what differs in the last digits.
GRADLAB = {
    "bare": Contender(bare_clip, "bare"),
    "none": Contender([*CLIP, "monitor=none"], "bare", exact=False),
    "summary": Contender([*CLIP, "monitor=summary"], "none"),
    "full": Contender([*CLIP, "monitor=full"], "none"),
}
OTHERS = {
    "bare": GRADLAB["bare"],
    "norm, .item() a parameter": Contender(by_item, "bare"),
    "five statistics, .item() a parameter each": Contender(all_by_item, "bare"),
    "lightning, grad_norm": Contender(lightning_fit, "bare"),
    "wandb.watch": Contender(wandb_watch, "bare"),
}
TARGETS = {"summary": 1.02, "full": 1.30}
# On a slow machine too, each set of processes does every kind of turn: at least a period.
CASES = {
    ("transformer", "gradlab"): (Case(TRANSFORMER, 5, 110.0, teams=6, least=PERIOD // 5), GRADLAB),
    ("transformer", "others"): (Case(TRANSFORMER, 5, 70.0, least=PERIOD // 5), OTHERS),
    ("resnet18", "gradlab"): (Case(RESNET18, 1, 120.0, teams=3, least=PERIOD), GRADLAB),
}


def kind(first: int, turn: int) -> tuple[bool, bool]:
    """What `summary` and `full` do in the turn that begins with an update, counted from 1."""
    updates, monitor = range(first, first + turn), Summary()
    return any(map(monitor.norms, updates)), any(map(monitor.steps, updates))


def over_a_period(case: Case, teams: list[Team], name: str, reference: str, field: str) -> list[float]:
    """Quartile, median and quartile of the ratio by kind of turn; their mean over a period."""
    ratios: dict[Any, list[float]] = {}
    for team in teams:
        for i, (a, b) in enumerate(zip(team[name], team[reference], strict=True), WARMUP):
            ratio = getattr(a, field) / getattr(b, field)
            ratios.setdefault(kind(1 + i * case.turn, case.turn), []).append(ratio)
    weights = Counter(kind(first, case.turn) for first in range(1, PERIOD + 1, case.turn))
    by_kind = [(n, quartiles(ratios[k])) for k, n in weights.items()]
    return [sum(n * q[i] for n, q in by_kind) / weights.total() for i in range(3)]


def quartiles(values: list[float]) -> list[float]:
    return statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3


def report(model: str, case: Case, contenders: dict[str, Contender], teams: list[Team]) -> list[dict[str, Any]]:
    """Print what was measured; the JSON lines of the ratios."""
    turns = {name: [turn for team in teams for turn in team[name]] for name in contenders}
    ms = 1e3 * statistics.median(t.cpu for t in turns["bare"])
    print(f"{model}, clipped: {len(turns['bare'])} rounds of {case.turn} updates in {case.teams} sets of processes")
    print(f"  bare: {ms:.2f} ms of CPU an update; ratios of CPU seconds (by the clock)")
    lines = []
    for name, contender in contenders.items():
        for reference in dict.fromkeys([contender.reference, "bare"]) if name != "bare" else ():
            low, ratio, high = over_a_period(case, teams, name, reference, "cpu")
            _, clock, _ = over_a_period(case, teams, name, reference, "clock")
            print(f"  {name} / {reference}: {ratio:.3f}, quartiles {low:.3f} to {high:.3f} ({clock:.3f})", flush=True)
            rounded = {key: round(value, 4) for key, value in (("ratio", ratio), ("low", low), ("high", high))}
            target = TARGETS.get(name) if reference != "bare" else None
            lines.append({"name": f"{name} / {reference}, {model} clipped", **rounded, "target": target})
        if isinstance(contender.loop, list):
            rules = 1e6 * statistics.fmean(t.rules for t in turns[name])
            print(f"    of which the rules: {rules:.0f} us an update", flush=True)
            lines.append({"name": f"rules, {name}, {model}: us an update", "microseconds": round(rules, 1)})
    return lines


def main() -> None:
    os.environ["WANDB_SILENT"] = "true"
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")
    lines = []
    for (model, _), (case, contenders) in CASES.items():
        lines += report(model, case, contenders, measure(case, contenders))
    for line in lines:
        print(json.dumps(line))


if __name__ == "__main__":
    main()
