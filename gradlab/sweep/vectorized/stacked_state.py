"""The state of many runs that train together: all that `Update` keeps, with a dimension of lanes.

L lanes (runs that differ in numbers only; here those of one row are one), P parameters, N elements of all parameters
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gradlab.sweep.vectorized import sharing
from gradlab.sweep.vectorized.lane_values import FlatTensors, select_lanes, stack_options
from gradlab.sweep.vectorized.recurrent_rule import Taps
from gradlab.update.precision import LossScale
from gradlab.update.step import Update


class StackedState(Update):
    """The state of L updates, made of those of the lanes alone; everything that `Update` keeps has a lane dimension."""

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
        """The row that each row was made of in the last update; None if none was made."""
        leaders = [row[0][1] for row in self.rows]
        alone, options = [alone[i] for i in leaders], [options[i] for i in leaders]
        first, lanes = alone[0], len(alone)
        device = self.device = first.device
        self.model = self.module = first.module
        self.loss, self.world, self.in_kernel, self.stops = first.loss, first.world, False, first.stops
        self.names = [n for n in first.names if used is None or n in used]
        self.attempts, self.counted, self.dtype = first.attempts, first.counted, first.dtype
        self.applied = torch.zeros(lanes, dtype=torch.int64, device=device)
        self.halted = torch.zeros(lanes, device=device)
        self.stack_settings(alone, options)
        self.stack_tensors(alone)
        self.follows_time = False
        """Whether the next update measures the gradients of recurrent layers' inputs."""
        self.taps: Taps | None = None
        """Where those of the rows under way are put."""
        self.through_time: dict[str, Tensor] = {}
        """Their norms at each step, (L, T), by the layer's name."""
        self.width = lanes
        """Rows that go through the model together; more would leave the processor's cache."""
        self.grads = torch.zeros(0, device=device)
        """(L, N): the gradient."""

    def stack_settings(self, alone: Sequence[Update], options: Sequence[Any]) -> None:
        """Stack the options of optimizer, clip, noise, schedule and precision."""
        first, device = alone[0], self.device
        self.option = stack_options([o.optimizer for o in options], device)
        self.clip, self.noise = (stack_options([getattr(o, n) for o in options], device) for n in ("clip", "noise"))
        self.clip_state = {k: torch.stack([u.clip_state[k] for u in alone]) for k in first.clip_state}
        self.set_thresholds()
        self.schedule = stack_options([update.schedule for update in alone], device)
        self.precision = first.precision.__class__(device, first.precision.dtype, None, first.precision.cpu_gemm)
        self.precision.one = torch.ones(len(alone), device=device)
        if first.precision.loss_scale is not None:
            scale = LossScale(first.precision.loss_scale.option, device)
            scale.option = stack_options([o.precision for o in options], device)
            scale.scale, scale.growth_tracker = (
                torch.stack([getattr(u.precision.loss_scale, n) for u in alone]) for n in ("scale", "growth_tracker")
            )
            self.precision.loss_scale = scale
        rates = [o.optimizer.lr for o in options]
        self.base_lr: Any = torch.tensor(rates, dtype=torch.float64, device=device)
        self.seeds = [o.seed for o in options]

    def stack_tensors(self, alone: Sequence[Update]) -> None:
        """The weights with the optimizer's moments, and all else that the module holds."""
        module, trained = alone[0].module, dict(zip(alone[0].names, alone[0].params, strict=True))
        shapes = [trained[n].shape for n in self.names]
        self.weights = FlatTensors(len(alone), shapes, self.device)
        self.moments = [FlatTensors(len(alone), shapes, self.device) for _ in self.option.moments()]
        for lane, update in enumerate(alone):
            own = dict(update.module.named_parameters())
            self.weights.fill(lane, [own[n].detach() for n in self.names])
        self.kept = [n for n, _ in module.named_parameters() if n not in self.names]
        """Names of parameters that are not trained."""
        buffers = dict(module.named_buffers())
        self.buffers: dict[str, Tensor] = {}
        for n in [*self.kept, *buffers]:
            self.buffers[n] = torch.stack([state_of(update.module)[n].detach() for update in alone])
        self.has_buffers = bool(buffers)
        self.saved: dict[str, Tensor] = {}

    @property
    def lanes(self) -> int:
        return self.weights.matrix.shape[0]

    @property
    def row_of(self) -> dict[int, int]:
        """The row of every lane."""
        return {lane: i for i, row in enumerate(self.rows) for _, lane in row}

    def without(self, lanes: set[int]) -> None:
        """Remove these lanes."""
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

    def keep(self, index: Tensor) -> None:
        """Keep these rows, which may be some of them, or some more than once."""
        self.option, self.clip, self.noise, self.schedule = (
            select_lanes(option, index) for option in (self.option, self.clip, self.noise, self.schedule)
        )
        self.precision.one = self.precision.one[index]
        if (scale := self.precision.loss_scale) is not None:
            scale.option = select_lanes(scale.option, index)
            scale.scale, scale.growth_tracker = scale.scale[index], scale.growth_tracker[index]
        self.base_lr, self.applied, self.halted = self.base_lr[index], self.applied[index], self.halted[index]
        self.counted = self.counted[index] if self.counted.dim() else self.counted
        self.seeds = [self.seeds[i] for i in index.tolist()]
        self.clip_state = {k: v[index] for k, v in self.clip_state.items()}
        self.buffers = {k: v[index] for k, v in self.buffers.items()}
        self.saved = {k: v[index] for k, v in self.saved.items()}
        for flat in (self.weights, *self.moments):
            flat.keep(index)

    def restore(self, lane: int, alone: Update) -> None:
        """Write a row's weights and state into the update of one run. lane: the row."""
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
