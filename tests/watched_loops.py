"""Shared by the tests of the watch: a small task, and the mark `# here` on the line of a mistake."""

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
    """A correct update."""
    optimizer.zero_grad()
    loss_of(model, batch).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    optimizer.step()


def train(model: nn.Module, optimizer: Any, count: int = 6, seed: int = 1) -> None:
    for batch in batches(count, seed):
        update(model, optimizer, batch)


def pair(seed: int = 0) -> tuple[nn.Module, torch.optim.SGD]:
    model = net(seed)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def lines(folder: str | Path) -> list[dict[str, Any]]:
    return list(read_lines(Path(folder) / "metrics.jsonl"))


def marked(function: Callable[..., Any]) -> int:
    """The line of a function that is marked with `# here`."""
    lines, first = inspect.getsourcelines(function)
    return next(first + i for i, line in enumerate(lines) if line.rstrip().endswith("# here"))


def raises_in_torch(call: Callable[[], Any]) -> None:
    """Make a call for which PyTorch itself raises."""
    try:
        call()
    except gradlab.watch.Fault:
        raise
    except RuntimeError as error:
        assert "already been called" in str(error)
    else:
        raise AssertionError("PyTorch did not raise")


def run(loop: Callable[..., Any], tmp_path: Any, watches: list[Any] | None = None, **given: Any) -> Any:
    """Watch a loop that takes a model, an optimizer, a scaler and a schedule. watches: receives the watch, for a loop
    that raises."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.9)
    with gradlab.watch(model, optimizer, scaler, schedule, tmp_path, quiet=True, **given) as watch:
        if watches is not None:
            watches.append(watch)
        loop(model, optimizer, scaler, schedule)
    return watch


def codes(watch: Any) -> list[str]:
    """The codes of all mistakes that a watch has reported."""
    assert not watch.broken
    return [fault.code for fault in watch.faults]
