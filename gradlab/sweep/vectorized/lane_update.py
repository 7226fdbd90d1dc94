"""One optimizer update of many lanes at once: where its arithmetic differs from that of a run alone.

The order of an update, the weights of its samples, clipping, the learning rate, the loss scale and what an applied
update moves are inherited from `gradlab.update.step.Update`, and work on tensors with a dimension of lanes. Here is
the rest: forward and backward passes under vmap, and state that lies in one matrix.

L lanes (rows of them, see `stacked_state`), P parameters, N elements of all parameters
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import functional_call, vmap

from gradlab.base.randomness import mix
from gradlab.measure.samples import steps_shown
from gradlab.sweep.vectorized import sharing
from gradlab.sweep.vectorized.lane_gradients import LaneGradients, lane_norms
from gradlab.sweep.vectorized.lane_rules import LaneRules
from gradlab.sweep.vectorized.recurrent_rule import Taps
from gradlab.sweep.vectorized.stacked_state import StackedState
from gradlab.update.gradients import Gradients, total_norm
from gradlab.update.stepping import unless


class Batch(NamedTuple):
    """A micro-batch: shared by all lanes, or with a lane's own samples in each row of both tensors."""

    inputs: Tensor
    targets: Tensor
    own: bool
    counts: bool = True

    @property
    def dim(self) -> int | None:
        return 0 if self.own else None


class StackedUpdate(StackedState):
    """The updates of L lanes."""

    def part(self, gradients: LaneGradients) -> LaneGradients:
        """Give a row of its own to each lane that is clipped where others of its row are not, or otherwise."""
        self.origin = None
        if all(len(row) == 1 for row in self.rows):
            return gradients
        self.rows, origin = sharing.split(self.rows, self.clip.reach(gradients).tolist())
        if len(origin) == self.lanes:
            return gradients
        self.origin = index = torch.tensor(origin, device=self.device)
        self.grads = self.grads[index]
        self.keep(index)
        self.set_thresholds()
        return self.gradients(gradients.norms[index])

    def sums(self, batch: Batch, weights: Tensor, rows: slice) -> Tensor:
        """Sums of the losses of a micro-batch, of some of the rows with these weights, (rows, N) -> (rows,)."""

        def one(params: dict[str, Tensor], buffers: dict[str, Tensor], inputs: Tensor, targets: Tensor) -> Tensor:
            return self.loss.sum(functional_call(self.module, (params, buffers), (inputs,)), targets)

        params = dict(zip(self.names, self.weights.cut(weights), strict=True))
        buffers = {name: buffer[rows] for name, buffer in self.buffers.items()}
        inputs, targets = (t[rows] if batch.own else t for t in (batch.inputs, batch.targets))
        with steps_shown(self.module), LaneRules(self.taps):
            each = vmap(one, in_dims=(0, 0, batch.dim, batch.dim), randomness="error")
            return each(params, buffers, inputs, targets)

    def count(self, batch: Any) -> Tensor:
        """(L,) or (): the number of losses in a micro-batch."""
        return vmap(self.loss.count)(batch.targets) if batch.own else self.loss.count(batch.targets)

    def backward(self, window: Sequence[Any], i: int, weight: Tensor) -> Tensor:
        """Add the gradient of micro-batch i to every row, `width` rows at a time."""
        losses, times = [], list[Taps]()
        if not i:
            self.through_time = {}
            self.grads = torch.zeros_like(self.weights.matrix)
        for begin in range(0, self.lanes, self.width):
            rows = slice(begin, begin + self.width)
            part: Tensor = self.weights.matrix[rows].detach().requires_grad_()
            self.taps = Taps() if self.follows_time else None
            with self.precision.arithmetic():
                with self.precision.autocast():
                    loss = self.sums(window[i], part, rows)
                (loss * weight[rows]).sum().backward()
            if part.grad is not None:
                self.grads[rows] += part.grad
            losses.append(loss.detach())
            times.append(self.taps or Taps())
        for name in times[0]:
            self.through_time[name] = torch.cat([taps[name] for taps in times])
        return torch.cat(losses)

    def unscale(self) -> None:
        if (scale := self.precision.loss_scale) is not None:
            self.grads.mul_(scale.scale.double().reciprocal().float().unsqueeze(1))

    def measure(self) -> LaneGradients:
        return self.part(self.gradients(lane_norms(self.weights.cut(self.grads))))

    def gradients(self, norms: Tensor) -> LaneGradients:
        """What `grads` holds, with its norms, (L, P)."""
        views = self.weights.cut(self.grads)
        return LaneGradients(self.names, self.weights.views, views, norms, total_norm(norms), self.grads)

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

    def step(self, lr: Tensor, skipped: Tensor) -> None:
        weights, *moments = parts = [self.weights.matrix, *(flat.matrix for flat in self.moments)]
        some = self.device.type != "cpu" or bool(skipped.any())
        before = [part.clone() for part in parts] if some else []
        self.option.move_(weights, self.grads, moments, lr, self.applied)
        for now, old in zip(parts, before):
            torch.where(skipped.bool().unsqueeze(1), old, now, out=now)

    def restore_buffers(self, skipped: Tensor) -> None:
        for k, before in self.saved.items():
            self.buffers[k].copy_(unless(skipped, self.buffers[k], before))

    def save_buffers(self) -> None:
        if self.has_buffers:
            self.saved = {k: v.clone() for k, v in self.buffers.items() if k not in self.kept}

    def zero_grad(self) -> None:
        """The next update's gradient is a new one."""
