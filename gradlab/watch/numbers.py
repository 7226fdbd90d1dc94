"""The line of metrics of each update of one optimizer, and what is recorded of its layers.

A CPU's numbers are read at once; a device's travel while the next update runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from gradlab.diagnosis.oneshot import fetched
from gradlab.diagnosis.replay.ranges import dense
from gradlab.measure.attempt import HostCopy
from gradlab.measure.monitor import Monitor
from gradlab.measure.record import Observed, Record, totals
from gradlab.update.gradients import Gradients, tensor_norms, total_norm
from gradlab.update.recorder import Layers

Write = Callable[[dict[str, Any], "Layers | None"], None]


class Numbers:
    """Measures an optimizer's gradients before they are clipped, once an update."""

    def __init__(
        self,
        monitor: Monitor,
        model: torch.nn.Module,
        names: list[str],
        params: list[torch.Tensor],
        write: Write,
    ) -> None:
        self.write = write
        here = [local(p) for p in params]
        self.observed = Observed(monitor, model, names, here, [], compiled=True)  # no hooks on its modules
        self.device = params[0].device
        self.grown(names, params)
        self.attempts = self.written = self.applied = self.clipped = 0
        self.line: dict[str, Any] | None = None
        """Of the latest update, until its loss scale is known too."""
        self.under_way: list[tuple[dict[str, Any], list[str], HostCopy | None, Record | None, HostCopy | None]] = []
        self.packed: HostCopy | None = None
        self.begin()

    def grown(self, names: list[str], params: list[torch.Tensor]) -> None:
        """These are all parameters now; of those that came later only the norm of the whole is recorded."""
        self.names, self.params = names, params
        alike = {(p.device, p.dtype) for p in params}
        self.alike = len(alike) == 1 and params[0].dtype in (torch.float32, torch.float64)

    def begin(self) -> None:
        """Forget what was measured: another update begins."""
        self.norm: Any = None
        self.record: Record | None = None
        self.clipping: dict[str, Any] = {}

    def measure(self, scale: Any, total: torch.Tensor | None = None, moves: bool = True) -> None:
        """Look at the gradients as they are now, unless that was done.

        scale: what they are still multiplied with, or None. total: their norm, where somebody has computed it. moves:
        whether the weights are where they were before the update.
        """
        if self.norm is not None:
            return
        due = self.observed.record(self.attempts + 1)
        if due is None and total is not None:
            self.norm = (total if scale is None else total / scale).detach()
            return
        gradients = self.gradients(scale)
        self.norm = gradients.total
        if due is not None and gradients.tensors:
            due.steps = due.steps and moves
            self.record = due
            due.gradients(gradients)

    def of_all(self, total: torch.Tensor, bound: float | None) -> None:
        """The norm over all ranks, where somebody has computed it, and what it was clipped at."""
        if self.norm is not None:
            self.norm = total.detach()
        if bound is not None:
            self.clipping = {"clip/bound": bound, "clip/total": total.detach()}

    def gradients(self, scale: Any = None) -> Gradients:
        """Norms of all that there are; scale: what they are still multiplied with."""
        having = [(n, p, g) for n, p in zip(self.names, self.params, strict=True) if (g := p.grad) is not None]
        grads = [local(g) for _, _, g in having]
        if self.alike and not any(g.is_sparse for g in grads):
            norms = tensor_norms(grads, self.device)
        else:
            norms = torch.tensor(fetched([dense(g) for g in grads], None) if grads else [], dtype=torch.float64)
        if scale is not None:
            norms = norms / scale
        return Gradients([n for n, _, _ in having], [p for _, p, _ in having], grads, norms, total_norm(norms))

    def stepped(self, loss: Any, lr: Any, skipped: Any) -> None:
        """An update was tried. skipped: whether the optimizer was held back, as far as it is known here."""
        self.attempts += 1
        if self.record is not None:
            self.record.stepped()
        self.line = {"grad/norm": self.norm, "lr": lr, "update/skipped": skipped} | self.clipping
        if loss is not None:
            self.line["train/loss"] = loss
        self.packed = HostCopy(self.record.pack()) if self.record is not None else None

    def finish(self, scale: Any) -> None:
        """The line of the latest update is complete: with the loss scale of the next."""
        if self.line is None:
            return
        line, self.line = self.line | {"amp/scale": scale}, None
        names = [k for k, v in line.items() if isinstance(v, torch.Tensor)]
        away = [k for k in names if line[k].device.type != "cpu"]
        for k in names:
            if k not in away:
                line[k] = line[k].item()
        copy = HostCopy(torch.stack([line[k].detach().double().reshape(()) for k in away])) if away else None
        self.under_way.append((line, away, copy, self.record, self.packed))
        self.begin()
        while len(self.under_way) > (1 if away else 0):
            self.settle()

    def settle(self) -> None:
        """Read the numbers of an update, and hand its line on."""
        line, away, copy, record, packed = self.under_way.pop(0)
        if copy is not None:
            line |= zip(away, copy.read(), strict=True)
        layers = record.unpack(packed.read()) if record is not None and packed is not None else None
        norm, skipped = line["grad/norm"], bool(line["update/skipped"])
        coefficient = coefficient_of(norm, line)
        self.applied += not skipped
        self.clipped += coefficient < 1 and not skipped
        self.written += 1
        seen = {"train/loss": line["train/loss"]} if "train/loss" in line else {}
        metrics = {"update": self.applied, "attempt": self.written, "epoch": 1} | seen
        metrics |= {
            "grad/norm": norm,
            "clip/coefficient": coefficient,
            "clip/fraction": self.clipped / max(self.applied, 1),
            "amp/scale": line["amp/scale"],
            "update/skipped": skipped,
            "lr": line["lr"],
        }
        self.write(metrics | (totals(layers) if layers else {}), layers)

    def close(self, scale: Any) -> None:
        self.finish(scale)
        while self.under_way:
            self.settle()


def local(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part, where a tensor is spread over several."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor  # type: ignore[operator]


def coefficient_of(norm: float, line: dict[str, Any]) -> float:
    """||clipped|| / ||gradient||: from the bound, or from the norm that was measured afterwards."""
    if "clip/after" in line:
        after = line["clip/after"]
        return after / norm if norm and math.isfinite(norm) else 1.0 if not norm else 0.0
    if "clip/bound" not in line:
        return 1.0
    return min(1.0, line["clip/bound"] / (line["clip/total"] + 1e-6))  # PyTorch's; NaN stays 1.0
