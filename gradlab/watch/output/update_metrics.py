"""The line of metrics of each update of one optimizer, and the records of its layers.

Numbers on a CPU are read at once; numbers on a device are transferred while the next update runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from gradlab.diagnosis.gradient_check import fetched
from gradlab.diagnosis.replay.ranges import dense
from gradlab.measure.attempt import HostCopy
from gradlab.measure.monitor import Monitor
from gradlab.measure.record import Observed, Record, totals
from gradlab.update.gradients import Gradients, tensor_norms, total_norm, total_of
from gradlab.update.recorder import Layers
from gradlab.watch.call_site import CallSite

KEPT = 64
"""Elements of a weight that are kept, to see whether something else moves it: writes to `.data` are not counted."""
ZEROED = 10
"""Updates in which the gradients of weights are zeroed before the step, after which that is no experiment."""
Write = Callable[[dict[str, Any], "Layers | None"], None]


@dataclass
class PendingLine:
    """The line of an update whose numbers are on their way to the host."""

    line: dict[str, Any]
    remote: list[str]
    """Fields of the line that are transferred."""
    copy: HostCopy | None
    record: Record | None
    packed: HostCopy | None


class UpdateMetrics:
    """Measures an optimizer's gradients before they are clipped, once per update."""

    def __init__(
        self,
        monitor: Monitor,
        model: torch.nn.Module,
        names: list[str],
        params: list[torch.Tensor],
        write: Write,
    ) -> None:
        """write: takes the metrics of an update, and the record of its layers if there is one."""
        self.write = write
        self.replaced: Callable[[CallSite | None, int], None] = lambda site, update: None
        """Takes the line of a backward pass whose gradients were not finite and were at the step, and the update."""
        self.observed = Observed(
            monitor, model, names, [local(p) for p in params], [], compiled=True
        )  # no module hooks
        self.device = params[0].device
        self.without: dict[torch.Tensor, str] = {}
        """Parameters that had no gradient in any update so far, and their names, which two models may share."""
        self.first: dict[torch.Tensor, torch.Tensor] = {}
        """Some of the elements of these when they were asked first."""
        self.zeroing: dict[torch.Tensor, CallSite | None] = {}
        """Those of them that had a gradient since the latest step, and where it was zeroed."""
        self.zeroed: dict[torch.Tensor, tuple[CallSite | None, int]] = {}
        """Those that had one which was zeroed before another backward pass and a step: the latest line, the updates."""
        self.zeroed_from = 0
        """The first of these updates."""
        self.seen: set[int] = set()
        self.set_parameters(names, params)
        self.attempts = self.written = self.applied = self.clipped = 0
        self.line: dict[str, Any] | None = None
        """Of the latest update, until its loss scale is known too."""
        self.pending: list[PendingLine] = []
        self.packed: HostCopy | None = None
        self.start_update()

    def set_parameters(self, names: list[str], params: list[torch.Tensor]) -> None:
        """All parameters. Those that were added after the start are part of the total norm, and not of the records."""
        self.names, self.params = names, params
        kinds = {(p.device, p.dtype) for p in params}
        self.uniform = len(kinds) == 1 and params[0].dtype in (torch.float32, torch.float64)
        self.plain = self.uniform and params[0].device.type == "cpu" and not any(hasattr(p, "to_local") for p in params)
        """Whether norms are read at once, without a tensor of them."""
        self.without = {p: n for n, p in zip(names, params, strict=True) if p in self.without or id(p) not in self.seen}
        self.seen |= {id(p) for p in params}

    def note_present(self, refilled: bool) -> None:
        """At a step: which parameters have a gradient? Usually all do in the first update, and none is left to ask.

        refilled: there are backward passes after the latest call that zeroed gradients.
        """
        if self.without:
            self.first |= {p: elements(p).clone() for p in self.without if p not in self.first}
            self.without = {p: name for p, name in self.without.items() if p.grad is None}
        for p, site in self.zeroing.items():
            if refilled and p in self.without:
                self.zeroed_from = self.zeroed_from or self.attempts + 1
                self.zeroed[p] = site, self.zeroed.get(p, (site, 0))[1] + 1
        self.zeroing = {}

    def note_zeroing(self, site: CallSite | None) -> None:
        """Before gradients are zeroed that no step has used."""
        self.zeroing |= {p: site for p in self.without if p.grad is not None}

    def zeroed_names(self) -> dict[CallSite | None, list[str]]:
        """Line -> names of the parameters whose gradients are zeroed there before every step but a few."""
        names: dict[CallSite | None, list[str]] = {}
        for p, (site, count) in self.zeroed.items():
            if p in self.without and count >= max(ZEROED, self.attempts - ZEROED):
                names.setdefault(site, []).append(self.without[p])
        return names

    def never_trained(self) -> list[str]:
        """Names of the parameters that never had a gradient, and that nothing else has moved, as averages are."""
        first = self.first
        return [n for p, n in self.without.items() if p not in first or torch.equal(first[p], elements(p))]

    def start_update(self) -> None:
        """Discard what was measured: a new update begins."""
        self.norm: Any = None
        self.record: Record | None = None
        self.clipping: dict[str, Any] = {}
        self.before_writes: dict[str, Any] = {}

    def measure_before_writes(self, site: CallSite | None) -> None:
        """After a backward pass at this line: the norm of gradients that the loop may write to before the step."""
        earlier = self.before_writes.get("backward/norm", 0.0)
        self.before_writes = {"backward/norm": self.gradients().total + earlier, "backward/site": site}

    def measure(self, scale: Any, total: torch.Tensor | None = None, weights_unmoved: bool = True) -> None:
        """Measure the gradients as they are now, unless they were measured in this update.

        scale: the loss scale they are still multiplied by, or None. total: their norm, if it was computed already.
        weights_unmoved: whether the weights are those before the update.
        """
        if self.norm is not None:
            return
        record = self.observed.record(self.attempts + 1)
        if record is None and total is not None:
            self.norm = (total if scale is None else total / scale).detach()
            return
        if record is None and self.plain:
            grads = [g for p in self.params if (g := p.grad) is not None]
            if True not in [g.is_sparse for g in grads] and (norm := total_of(grads)) is not None:
                self.norm = norm if scale is None else norm / scale
                return
        gradients = self.gradients(scale)
        self.norm = gradients.total
        if record is not None and gradients.tensors:
            record.steps = record.steps and weights_unmoved
            self.record = record
            record.gradients(gradients)

    def set_global_norm(self, total: torch.Tensor, bound: float | None) -> None:
        """The norm over all ranks, as the model computed it, and the bound it was clipped at."""
        if self.norm is not None:
            self.norm = total.detach()
        if bound is not None:
            self.clipping = {"clip/bound": bound, "clip/total": total.detach()}

    def gradients(self, scale: Any = None) -> Gradients:
        """The gradients with their norms. scale: the loss scale they are still multiplied by."""
        present = [(n, p, g) for n, p in zip(self.names, self.params, strict=True) if (g := p.grad) is not None]
        grads = [local(g) for _, _, g in present]
        if self.uniform and not any(g.is_sparse for g in grads):
            norms = tensor_norms(grads, self.device)
        else:
            norms = torch.tensor(fetched([dense(g) for g in grads], None) if grads else [], dtype=torch.float64)
        if scale is not None:
            norms = norms / scale
        return Gradients([n for n, _, _ in present], [p for _, p, _ in present], grads, norms, total_norm(norms))

    def stepped(self, loss: Any, lr: Any, skipped: Any) -> None:
        """An update was attempted. skipped: whether the weights stayed as they are, perhaps a device's tensor."""
        self.attempts += 1
        if self.record is not None:
            self.record.stepped()
        self.line = {"grad/norm": self.norm, "lr": lr, "update/skipped": skipped, **self.clipping, **self.before_writes}
        if loss is not None:
            self.line["train/loss"] = loss
        self.packed = HostCopy(self.record.pack()) if self.record is not None else None

    def finish_update(self, scale: Any) -> None:
        """Complete the line of the latest update. scale: the loss scale of the next."""
        if self.line is None:
            return
        line, self.line = self.line, None
        line["amp/scale"] = scale
        remote = []
        for k, v in line.items():
            if isinstance(v, torch.Tensor):
                if v.device.type == "cpu":
                    line[k] = v.item()
                else:
                    remote.append(k)
        copy = HostCopy(torch.stack([line[k].detach().double().reshape(()) for k in remote])) if remote else None
        self.pending.append(PendingLine(line, remote, copy, self.record, self.packed))
        self.start_update()
        while len(self.pending) > (1 if remote else 0):
            self.drain_oldest()

    def drain_oldest(self) -> None:
        """Wait for the numbers of an update, and write its line."""
        pending = self.pending.pop(0)
        line, record, packed = pending.line, pending.record, pending.packed
        if pending.copy is not None:
            line |= zip(pending.remote, pending.copy.read(), strict=True)
        layers = record.unpack(packed.read()) if record is not None and packed is not None else None
        norm, skipped = line["grad/norm"], bool(line["update/skipped"])
        coefficient = clip_coefficient(norm, line)
        self.applied += not skipped
        if math.isfinite(norm) and not math.isfinite(line.get("backward/norm", 0.0)):
            self.replaced(line["backward/site"], self.written + 1)
        self.clipped += coefficient < 1 and not skipped
        self.written += 1
        metrics: dict[str, Any] = {"update": self.applied, "attempt": self.written, "epoch": 1}
        if "train/loss" in line:
            metrics["train/loss"] = line["train/loss"]
        metrics["grad/norm"] = norm
        metrics["clip/coefficient"] = coefficient
        metrics["clip/fraction"] = self.clipped / max(self.applied, 1)
        metrics["amp/scale"] = line["amp/scale"]
        metrics["update/skipped"] = skipped
        metrics["lr"] = line["lr"]
        self.write(metrics | totals(layers) if layers else metrics, layers)

    def close(self, scale: Any) -> None:
        """Write the lines of all updates."""
        self.finish_update(scale)
        while self.pending:
            self.drain_oldest()


def elements(p: torch.Tensor) -> torch.Tensor:
    """The first few of the first row."""
    row = local(p.detach())
    while row.dim() > 1:
        row = row[0]
    return row.reshape(-1)[:KEPT]


def local(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part of a tensor that is sharded over several."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def clip_coefficient(norm: float, line: dict[str, Any]) -> float:
    """||clipped|| / ||gradient||: from the bound, or from the norm that was measured after clipping."""
    if "clip/after" in line:
        after: float = line["clip/after"]
        return after / norm if norm and math.isfinite(norm) else 1.0 if not norm else 0.0
    if "clip/bound" not in line:
        return 1.0
    coefficient: float = line["clip/bound"] / (line["clip/total"] + 1e-6)  # as PyTorch computes it
    return min(1.0, coefficient)  # 1 for NaN
