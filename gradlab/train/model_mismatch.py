"""Why a model does not fit its data, in words of both."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import torch

from gradlab.base.option import Invalid
from gradlab.data.base import Splits
from gradlab.data.stream import streamed
from gradlab.update.loss import Loss, class_axis


def too_small(model: torch.nn.Module, inputs: Any) -> str:
    """Which embedding is asked for a row that it does not have, and where; empty if none is.

    It is not looked up: on a CUDA device that ends the process.
    """
    found: list[str] = []

    def look(name: str, rows: int, given: tuple[Any, ...]) -> None:
        if given and given[0].numel() and int(given[0].max()) >= rows:
            found.append(f"{name} has {rows} rows, too few for {int(given[0].max())}, which is among its inputs")
            raise IndexError

    parts = [(name, part) for name, part in model.named_modules() if isinstance(part, torch.nn.Embedding)]
    if not parts:
        return ""
    hooks = [
        part.register_forward_pre_hook(lambda _, given, name=name, rows=part.num_embeddings: look(name, rows, given))
        for name, part in parts
    ]
    with suppress(Exception), torch.no_grad():
        model(inputs)
    for hook in hooks:
        hook.remove()
    return found[0] if found else ""


def check_classes(data: Splits, loss: Loss, outputs: Any, targets: Any, name: str) -> None:
    """Raise `Invalid` for a model with fewer outputs than the data has classes; tell streams how many it has."""
    classified = data.spec.targets in ("classes", "tokens") and loss.takes != "batch"  # one's own may need one fewer
    if not (classified and isinstance(outputs, torch.Tensor) and outputs.dim()):
        return
    classes = outputs.shape[class_axis(outputs, targets) if isinstance(targets, torch.Tensor) else -1]
    for split in (data.train, data.test):
        if (stream := streamed(split)) is not None and loss.takes == "targets":
            stream.classes = classes
    if classes < data.spec.outputs:
        raise Invalid("model", name, f"has {classes} outputs, but the data has {data.spec.outputs} classes")


def check_batch_norm(model: torch.nn.Module, data: Splits, samples: int, batch_size: int, world_size: int) -> None:
    """Batch norm cannot normalise one value a channel: find such a micro-batch before the run."""
    norms = [m for m in model.modules() if isinstance(m, torch.nn.modules.batchnorm._BatchNorm)]
    rest = samples % (batch_size * world_size)
    if not norms or not (batch_size == 1 or (rest and rest // world_size <= 1)):
        return
    single, training = list[bool](), model.training
    hooks = [m.register_forward_pre_hook(lambda _, x: single.append(x[0].numel() == x[0].shape[1])) for m in norms]
    inputs, _ = data.train.batch(torch.zeros(1, dtype=torch.int64, device=data.train.device))
    with torch.no_grad():
        model.eval()(inputs)
    model.train(training)
    for hook in hooks:
        hook.remove()
    if any(single):
        which = "every micro-batch" if batch_size == 1 else "the last micro-batch of an epoch"
        why = f"leaves {which} one sample on a rank, which batch norm cannot normalise: take another, "
        why += "" if batch_size == 1 else "data.drop_last=true, "
        raise Invalid("data.batch_size", batch_size, f"{why}or no batch norm (the set has {len(data.train)} samples)")
