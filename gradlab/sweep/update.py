"""One optimizer update of many runs at once. The order of its lines is `gradlab.step.Update`'s own.

L lanes (runs that differ in numbers only; here those of one row are one), P parameters, N elements of all parameters
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import functional_call, vmap

from gradlab.checkpoint import mix
from gradlab.clip import Clipped
from gradlab.gradients import Gradients, total_norm
from gradlab.precision import FP16, LossScale
from gradlab.step import Update
from gradlab.sweep import sharing
from gradlab.sweep.kernels import Taps, lane_rules
from gradlab.sweep.lane_gradients import LaneGradients, lane_norms
from gradlab.sweep.stacking import Flat, chosen, stacked


class Batch(NamedTuple):
    """A micro-batch: shared by all lanes, or with a lane's own samples in each row of both tensors."""

    inputs: Tensor
    targets: Tensor
    own: bool

    @property
    def dim(self) -> int | None:
        return 0 if self.own else None


class StackedUpdate(Update):
    """The updates of L lanes, made of those of the lanes alone; everything that `Update` keeps has a lane dimension."""

    def __init__(
        self,
        alone: Sequence[Update],
        options: Sequence[Any],
        used: Sequence[str] | None = None,
        rows: list[sharing.Members] | None = None,
    ) -> None:
        """alone: the lanes' own updates, whose weights this one begins with. options: their configurations.

        used: names of the parameters that get a gradient; default: all. rows: lanes that begin as one (see `sharing`);
        default: none do.
        """
        self.rows = rows or [[(math.inf, lane)] for lane in range(len(alone))]
        """The lanes of each row, by their places in `alone`."""
        self.shares = any(len(row) > 1 for row in self.rows)
        self.origin: Tensor | None = None
        """Of which row each row was made in the last update; None if all are what they were."""
        leaders = [row[0][1] for row in self.rows]
        alone, options = [alone[i] for i in leaders], [options[i] for i in leaders]
        first, lanes = alone[0], len(alone)
        device = self.device = first.device
        self.model = self.module = first.module
        self.loss, self.world, self.in_kernel, self.halts = first.loss, first.world, False, first.halts
        trained = dict(zip(first.names, first.params, strict=True))
        self.names = [n for n in first.names if used is None or n in used]
        self.option = stacked([o.optimizer for o in options], device)
        self.clip, self.noise = (stacked([getattr(o, n) for o in options], device) for n in ("clip", "noise"))
        self.set_thresholds()
        self.schedule = stacked([update.schedule for update in alone], device)
        self.precision = first.precision.__class__(device, first.precision.dtype, None, first.precision.cpu_gemm)
        self.precision.one = torch.ones(lanes, device=device)
        if isinstance(options[0].precision, FP16):
            scale = LossScale(options[0].precision, device)
            scale.option = stacked([o.precision for o in options], device)
            scale.scale, scale.growth_tracker = (
                torch.stack([getattr(u.precision.loss_scale, n) for u in alone]) for n in ("scale", "growth_tracker")
            )
            self.precision.loss_scale = scale
        rates = [o.optimizer.lr for o in options]
        self.base_lr: Any = torch.tensor(rates, dtype=torch.float64, device=device)
        self.seeds = [o.seed for o in options]
        self.attempts = first.attempts
        self.applied = torch.zeros(lanes, dtype=torch.int64, device=device)
        self.halted = torch.zeros(lanes, device=device)
        self.clip_state = {k: torch.stack([u.clip_state[k] for u in alone]) for k in first.clip_state}
        shapes = [trained[n].shape for n in self.names]
        self.weights = Flat(lanes, shapes, device)
        self.moments = [Flat(lanes, shapes, device) for _ in self.option.moments()]
        for lane, update in enumerate(alone):
            own = dict(update.module.named_parameters())
            self.weights.fill(lane, [own[n].detach() for n in self.names])
        rest = {n: p.detach() for n, p in first.module.named_parameters() if n not in self.names}
        buffers = dict(first.module.named_buffers())
        self.kept = list(rest)
        """Names of parameters that are not trained."""
        self.buffers: dict[str, Tensor] = {}
        for n in [*rest, *buffers]:
            self.buffers[n] = torch.stack([state_of(update.module)[n].detach() for update in alone])
        self.has_buffers = bool(buffers)
        self.saved: dict[str, Tensor] = {}
        self.follows_time = False
        """Whether the next update measures the gradients of recurrent layers' inputs."""
        self.taps: Taps | None = None
        """Where those of the rows under way are put."""
        self.through_time: dict[str, Tensor] = {}
        """Their norms at each step, (L, T), by the layer's name."""
        self.width = lanes
        """Rows that go through the model together; more would leave the processor's cache."""
        self.slopes = torch.zeros(0, device=device)
        """(L, N): the gradient."""

    @property
    def lanes(self) -> int:
        return self.weights.matrix.shape[0]

    @property
    def row_of(self) -> dict[int, int]:
        """The row of every lane."""
        return {lane: i for i, row in enumerate(self.rows) for _, lane in row}

    def without(self, lanes: set[int]) -> None:
        """Go on without these lanes."""
        left = [[member for member in row if member[1] not in lanes] for row in self.rows]
        self.rows = [row for row in left if row]
        if len(self.rows) < len(left) and self.rows:
            self.keep(torch.tensor([i for i, row in enumerate(left) if row], device=self.device))
        self.set_thresholds()

    def set_thresholds(self) -> None:
        """Give every row the lowest threshold of its lanes."""
        if self.shares:
            lowest = [row[0][0] for row in self.rows]
            setattr(self.clip, str(self.clip.threshold), torch.tensor(lowest, dtype=torch.float64, device=self.device))

    def part(self, gradients: LaneGradients) -> LaneGradients:
        """Give a row of its own to each lane that is clipped where others of its row are not, or otherwise."""
        self.origin = None
        if all(len(row) == 1 for row in self.rows):
            return gradients
        self.rows, origin = sharing.split(self.rows, self.clip.reach(gradients).tolist())
        if len(origin) == self.lanes:
            return gradients
        self.origin = index = torch.tensor(origin, device=self.device)
        self.slopes = self.slopes[index]
        self.keep(index)
        self.set_thresholds()
        return self.gradients(gradients.norms[index])

    def keep(self, index: Tensor) -> None:
        """Go on with these rows, which may be some of them, or some more than once."""
        self.option, self.clip, self.noise, self.schedule = (
            chosen(option, index) for option in (self.option, self.clip, self.noise, self.schedule)
        )
        self.precision.one = self.precision.one[index]
        if (scale := self.precision.loss_scale) is not None:
            scale.option = chosen(scale.option, index)
            scale.scale, scale.growth_tracker = scale.scale[index], scale.growth_tracker[index]
        self.base_lr, self.applied, self.halted = self.base_lr[index], self.applied[index], self.halted[index]
        self.seeds = [self.seeds[i] for i in index.tolist()]
        self.clip_state = {k: v[index] for k, v in self.clip_state.items()}
        self.buffers = {k: v[index] for k, v in self.buffers.items()}
        self.saved = {k: v[index] for k, v in self.saved.items()}
        for flat in (self.weights, *self.moments):
            flat.keep(index)

    def sums(self, batch: Batch, weights: Tensor, rows: slice) -> Tensor:
        """Sums of the losses of a micro-batch, of some of the rows with these weights, (rows, N) -> (rows,)."""

        def one(params: dict[str, Tensor], buffers: dict[str, Tensor], inputs: Tensor, targets: Tensor) -> Tensor:
            return self.loss.sum(functional_call(self.module, (params, buffers), (inputs,)), targets)

        params = dict(zip(self.names, self.weights.cut(weights), strict=True))
        buffers = {name: buffer[rows] for name, buffer in self.buffers.items()}
        inputs, targets = (t[rows] if batch.own else t for t in (batch.inputs, batch.targets))
        with lane_rules(self.taps):
            each = vmap(one, in_dims=(0, 0, batch.dim, batch.dim), randomness="error")
            return each(params, buffers, inputs, targets)

    def count(self, batch: Batch) -> Tensor:
        """(L,) or (): the number of losses in a micro-batch."""
        return vmap(self.loss.count)(batch.targets) if batch.own else self.loss.count(batch.targets)

    def accumulate(self, window: Sequence[Any]) -> Tensor:
        count = sum((self.count(batch) for batch in window), torch.zeros((), dtype=torch.int64, device=self.device))
        count = count.clamp(min=1)  # type: ignore[union-attr]
        weight = (self.precision.scale / self.loss.divisor(count)).expand(self.lanes)
        total = torch.zeros(self.lanes, device=self.device)
        for i in range(len(window)):
            total += self.backward(window, i, weight)
        return total / count

    def backward(self, window: Sequence[Any], i: int, weight: Tensor) -> Tensor:
        """As alone, some rows after the other."""
        losses, times = [], list[Taps]()
        if not i:
            self.through_time = {}
            self.slopes = torch.zeros_like(self.weights.matrix)
        for begin in range(0, self.lanes, self.width):
            rows = slice(begin, begin + self.width)
            part: Tensor = self.weights.matrix[rows].detach().requires_grad_()
            self.taps = Taps() if self.follows_time else None
            with self.precision.arithmetic():
                with self.precision.autocast():
                    loss = self.sums(window[i], part, rows)
                (loss * weight[rows]).sum().backward()
            if part.grad is not None:
                self.slopes[rows] += part.grad
            losses.append(loss.detach())
            times.append(self.taps or Taps())
        for name in times[0]:
            self.through_time[name] = torch.cat([taps[name] for taps in times])
        return torch.cat(losses)

    def unscale(self) -> None:
        if (scale := self.precision.loss_scale) is not None:
            self.slopes.mul_(scale.scale.double().reciprocal().float().unsqueeze(1))

    def measure(self) -> LaneGradients:
        return self.part(self.gradients(lane_norms(self.weights.cut(self.slopes))))

    def gradients(self, norms: Tensor) -> LaneGradients:
        """What `slopes` holds, with its norms, (L, P)."""
        views = self.weights.cut(self.slopes)
        return LaneGradients(self.names, self.weights.views, views, norms, total_norm(norms), self.slopes)

    def add_noise(self, gradients: Gradients) -> Gradients:
        if not torch.as_tensor(self.noise.active).any():
            return gradients
        std = self.noise.std(self.applied).float()  # (L,)
        for seed in sorted(set(self.seeds)):  # the seed alone decides the draw
            lanes = torch.tensor([i for i, s in enumerate(self.seeds) if s == seed], device=self.device)
            generator = torch.Generator(self.device).manual_seed(mix(seed, self.attempts))
            for tensor in gradients.tensors:
                draw = torch.randn(tensor.shape[1:], generator=generator, device=self.device, dtype=tensor.dtype)
                tensor[lanes] += draw * std[lanes].reshape(-1, *[1] * draw.dim())
        return self.measure()

    def step(self, lr: Tensor, found_inf: Tensor) -> None:
        weights, *moments = parts = [self.weights.matrix, *(flat.matrix for flat in self.moments)]
        some = self.device.type != "cpu" or bool(found_inf.any())
        before = [part.clone() for part in parts] if some else []
        self.option.move_(weights, self.slopes, moments, lr, self.applied)
        for now, old in zip(parts, before):
            torch.where(found_inf.bool().unsqueeze(1), old, now, out=now)

    def commit(self, clipped: Clipped, found_inf: Tensor) -> None:
        self.attempts += 1
        self.applied = self.applied + (found_inf == 0)
        skipped = found_inf.bool()
        for k, v in clipped.state.items():
            self.clip_state[k] = torch.where(skipped.reshape(-1, *[1] * (v.dim() - 1)), self.clip_state[k], v)
        for k, before in self.saved.items():
            now = self.buffers[k]
            now.copy_(torch.where(skipped.reshape(-1, *[1] * (now.dim() - 1)), before, now))

    def save_buffers(self) -> None:
        if self.has_buffers:
            self.saved = {k: v.clone() for k, v in self.buffers.items() if k not in self.kept}

    def zero_grad(self) -> None:
        """The next update's gradient is a new one."""

    def hand_back(self, lane: int, alone: Update) -> None:
        """Put a row's weights and state into the update that a lane would be alone. lane: the row."""
        own, names = state_of(alone.module), dict(zip(self.names, self.weights.views, strict=True))
        with torch.no_grad():
            for name, rows in (*names.items(), *self.buffers.items()):
                own[name].copy_(rows[lane])
        alone.applied, alone.attempts, alone.halted = (
            self.applied[lane].clone(),
            self.attempts,
            self.halted[lane].clone(),
        )
        alone.clip_state = {k: v[lane].clone() for k, v in self.clip_state.items()}
        if (scale := self.precision.loss_scale) is not None and alone.precision.loss_scale is not None:
            alone.precision.loss_scale.scale = scale.scale[lane].clone()
            alone.precision.loss_scale.growth_tracker = scale.growth_tracker[lane].clone()
        if not int(alone.applied) or alone.optimizer.defaults.get("momentum") == 0:  # nothing is remembered
            return
        params = dict(zip(alone.names, alone.params, strict=True))
        for i, name in enumerate(self.names):
            state = alone.optimizer.state[params[name]]
            for key, flat in zip(self.option.moments(), self.moments, strict=True):
                state[key] = flat.views[i][lane].clone()
            if self.option.moments() and "momentum_buffer" not in state:
                state["step"] = alone.applied.float().clone()


def state_of(module: torch.nn.Module) -> dict[str, Tensor]:
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}
