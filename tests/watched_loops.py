"""What the tests of watching share: a small task, and where a fault belongs: the line that ends in `# here`."""

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import gradlab
from gradlab.base.json_lines import read_lines

Batch = tuple[Tensor, Tensor]


def net(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))


def batches(count: int, seed: int = 1) -> Iterator[Batch]:
    draw = torch.Generator().manual_seed(seed)
    for _ in range(count):
        x = torch.randn(16, 8, generator=draw)
        yield x, x[:, :4].argmax(1)


def loss_of(model: nn.Module, batch: Batch) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def half_loss(model: nn.Module, batch: Batch) -> Tensor:
    with torch.autocast("cpu", dtype=torch.float16):
        return loss_of(model, batch)


def update(model: nn.Module, optimizer: Any, batch: Batch) -> None:
    """One that is right."""
    optimizer.zero_grad()
    loss_of(model, batch).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    optimizer.step()


def train(model: nn.Module, optimizer: Any, count: int = 6) -> None:
    for batch in batches(count):
        update(model, optimizer, batch)


def pair(seed: int = 0) -> tuple[nn.Module, torch.optim.SGD]:
    model = net(seed)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def lines(folder: str | Path) -> list[dict[str, Any]]:
    return list(read_lines(Path(folder) / "metrics.jsonl"))


def marked(function: Callable[..., Any]) -> int:
    """The line of a function that is marked."""
    lines, first = inspect.getsourcelines(function)
    return next(first + i for i, line in enumerate(lines) if line.rstrip().endswith("# here"))


def refused(call: Callable[[], Any]) -> None:
    """A call that PyTorch itself refuses."""
    try:
        call()
    except gradlab.watch.Fault:
        raise
    except RuntimeError as error:
        assert "already been called" in str(error)
    else:
        raise AssertionError("was not refused")


def run(loop: Callable[..., Any], tmp_path: Any, kept: list[Any] | None = None, **given: Any) -> Any:
    """Watch a loop that takes a model, its optimizer and a scaler. kept: takes the watch of a loop that raises."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.9)
    with gradlab.watch(model, optimizer, scaler, schedule, tmp_path, quiet=True, **given) as watch:
        if kept is not None:
            kept.append(watch)
        loop(model, optimizer, scaler, schedule)
    return watch
