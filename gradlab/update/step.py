"""ONE optimizer update. Read `Update.__call__`: the order of its lines is the correct order.

Vectorized sweeps subclass `Update` (`gradlab.sweep.vectorized.lane_update`): they inherit this order and most of its
arithmetic.

Nothing here waits for the device. Whether an update is applied is decided on the device, and the host reads it later:
the number of applied updates, which the schedule reads, and the learning rate are tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from gradlab.base.distributed import World
from gradlab.base.option import Invalid
from gradlab.base.randomness import mix
from gradlab.update.buffers import Buffers
from gradlab.update.clip import Clip, Clipped
from gradlab.update.ema import EMA, evaluated
from gradlab.update.gradients import Gradients, measure
from gradlab.update.loss import Loss
from gradlab.update.noise import Noise
from gradlab.update.precision import Precision
from gradlab.update.recorder import NOTHING, Recorder
from gradlab.update.schedule import Schedule
from gradlab.update.stats import MicroBatch, Stats
from gradlab.update.stepping import changed_settings, load_optimizer, set_lr_, skips_in_kernel, step_unless_, unless
from gradlab.update.unwrapping import named_weights, trained_names, unwrapped


class Update:
    """The parts of an update, and the state that only applied updates move."""

    ema: EMA | None = None
    """The moving average of the weights, where that is evaluated in their place."""

    def __init__(
        self,
        model: torch.nn.Module,
        loss: Loss,
        optimizer: torch.optim.Optimizer,
        schedule: Schedule,
        precision: Precision,
        noise: Noise,
        clip: Clip,
        *,
        lr: float,
        stops: bool = True,
        seed: int = 0,
        world: World | None = None,
        ema_decay: float | None = None,
        add_parameter: Callable[[str, Any], None] | None = None,
    ) -> None:
        """stops: after a non-finite gradient no later update is applied either, since the run ends.

        ema_decay: of the moving average of the weights; None: there is none.
        add_parameter: makes the optimizer step a parameter that was frozen, by its name; None: it is added to the
            first parameter group.
        """
        self.model: Any = model
        self.loss, self.optimizer = loss, optimizer
        self.schedule, self.precision, self.noise, self.clip = schedule, precision, noise, clip
        self.world = world or World()
        self.seed, self.base_lr = seed, lr
        module = unwrapped(model)
        self.names = trained_names(model)
        self.params: list[torch.Tensor] = [p for p in module.parameters() if p.requires_grad]
        wide = any(p.dtype == torch.float64 for p in self.params)
        self.dtype = torch.float64 if wide else torch.float32
        """The type of the loss and of what its gradient is multiplied with."""
        self.frozen = {name: p for name, p in named_weights(model) if not p.requires_grad and p.is_floating_point()}
        self.thawed: list[str] = []
        """Parameters that were frozen when the run began, and have had a gradient since."""
        self.add_parameter = add_parameter or (lambda name, p: optimizer.param_groups[0]["params"].append(p))
        self.module, self.module_buffers = module, Buffers(module)
        self.initial_groups = [dict(group) for group in optimizer.param_groups]
        """The optimizer's groups with the settings that the configuration gives them."""
        device = self.device = precision.device
        self.in_kernel = skips_in_kernel(optimizer)
        self.attempts = 0
        self.applied = torch.zeros((), dtype=torch.int64, device=device)
        self.stops = stops
        self.halted = torch.zeros((), device=device)
        self.clip_state = clip.init(device)
        self.counted = torch.ones((), dtype=torch.int64, device=device)
        """The losses of the window under way, on all ranks."""
        self.terms: torch.Tensor | None = None
        if ema_decay is not None:
            self.ema = EMA.of(self.params, ema_decay)

    def __call__(self, window: Sequence[MicroBatch], recorder: Recorder = NOTHING) -> Stats:
        """One update from the micro-batches of a window: accumulate, unscale, measure, noise, clip, step."""
        self.save_buffers()
        with recorder.forward(window):
            loss = self.accumulate(window)  # () mean over the window and all ranks
        self.unscale()  # p.grad is now dL/dp
        gradients = self.measure()
        recorder.gradients(gradients)
        noisy = self.add_noise(gradients)
        found_inf = self.found_inf(noisy)  # () float32, 1 where the gradient is not finite
        skipped = self.skipped(found_inf)  # () float32, 1 where the update must not be applied
        clipped = self.clip_(noisy)
        lr, scale = self.lr(), self.precision.scale
        self.step(lr, skipped)
        recorder.stepped()
        self.update_scale(found_inf)
        self.commit(clipped, skipped)
        self.zero_grad()
        return Stats(
            loss=loss,
            grad_norm=gradients.total,
            clip_coefficient=clipped.coefficient,
            clip_acted=clipped.acted,
            scale=scale,
            next_scale=self.precision.scale,
            skipped=skipped,
            empty=self.counted == 0,
            lr=lr,
            applied=self.applied,
            terms=self.terms if self.loss.terms else None,
        )

    def accumulate(self, window: Sequence[MicroBatch]) -> torch.Tensor:
        """Add up the gradient of the mean over every sample (or token) of the window, on all ranks; or of the sum.

        Each micro-batch contributes the sum of its losses over the count of the whole window: with unequal
        micro-batches or ranks, dividing a mean by their number would be a mean of means. DDP averages over ranks,
        hence the factor `world.size`.
        """
        counts = [self.count(batch) for batch in window if batch.counts]
        count = sum(counts, torch.zeros((), dtype=torch.int64, device=self.device))
        self.counted = self.world.sum_(count)
        weight = self.precision.scale.to(self.dtype) * self.world.size / self.loss.divisor(self.counted.clamp(min=1))
        total = torch.zeros(weight.shape, dtype=self.dtype, device=self.device)
        for i in range(len(window)):
            total += self.backward(window, i, weight)
        return self.world.sum_(total) / self.counted  # 0 / 0 of an empty window

    def count(self, batch: MicroBatch) -> torch.Tensor:
        """The number of losses in a micro-batch."""
        return self.loss.count(batch.targets)

    def backward(self, window: Sequence[MicroBatch], i: int, weight: torch.Tensor) -> torch.Tensor:
        """Add the gradient of micro-batch i; weight: what its sum of losses is multiplied with. Returns that sum.

        All but the window's last run forward and backward without synchronisation.
        """
        batch, local = window[i], i + 1 < len(window) and self.world.size > 1
        with self.model.no_sync() if local else nullcontext(), self.precision.arithmetic():
            with self.precision.autocast():
                loss = self.losses(batch)
            loss = loss if batch.counts else loss * 0.0
            (loss * weight).backward()
        self.look_for_thawed()
        return loss.detach()

    def look_for_thawed(self) -> None:
        """A parameter that was frozen is trained from its first gradient on."""
        for name, p in list(self.frozen.items()):
            if self.world.size > 1 and (p.requires_grad or p.grad is not None):
                why = "was frozen at the start, so that several ranks do not add up its gradient: let it begin unfrozen"
                raise Invalid("model", type(self.module).__name__, f"unfreezes {name}, which {why}")
            if p.grad is not None:
                self.thaw(name)

    def thaw(self, name: str) -> None:
        p = self.frozen.pop(name)
        self.precision.check_held(name, p)
        trained = p.requires_grad  # it may have been frozen again since the forward pass
        self.add_parameter(name, p.requires_grad_())
        p.requires_grad_(trained)
        self.initial_groups += [dict(group) for group in self.optimizer.param_groups[len(self.initial_groups) :]]
        self.names, self.params = [*self.names, name], [*self.params, p]  # records keep those of the start
        self.thawed.append(name)
        if self.ema is not None:
            self.ema.tensors += EMA.of([p], self.ema.decay).tensors

    def losses(self, batch: MicroBatch) -> torch.Tensor:
        """() the sum of the losses of a micro-batch."""
        return self.loss.sum(self.model(batch.inputs), batch.targets)

    def unscale(self) -> None:
        self.precision.unscale_([p.grad for p in self.params if p.grad is not None])

    def measure(self) -> Gradients:
        return measure(self.names, self.params, self.device)

    def found_inf(self, gradients: Gradients) -> torch.Tensor:
        """() float32, 1 if any element of the gradient is not finite: exactly then its norm is not finite.

        A window without a target that counts has no gradient.
        """
        bad = gradients.total - gradients.total != 0  # inf - inf and NaN - NaN are NaN, which is not 0
        found = (bad & (self.counted > 0)).float()
        if self.stops:
            found = self.halted = torch.maximum(self.halted, found)
        return found

    def skipped(self, found_inf: torch.Tensor) -> torch.Tensor:
        """() float32, 1 if the gradient is not finite, or no target of the window counts."""
        return torch.maximum(found_inf, (self.counted == 0).float())

    def add_noise(self, gradients: Gradients) -> Gradients:
        if not self.noise.active:
            return gradients
        self.noise.add_(gradients.tensors, self.applied, seed=mix(self.seed, self.attempts))
        return self.measure()  # the gradient has changed, and its norm

    def clip_(self, gradients: Gradients) -> Clipped:
        return self.clip.clip_(gradients, self.clip_state)

    def lr(self) -> torch.Tensor:
        """() float64, the rate of this update."""
        return self.base_lr * self.schedule.factor(self.applied)

    def step(self, lr: torch.Tensor, skipped: torch.Tensor) -> None:
        set_lr_(self.optimizer, lr)
        step_unless_(self.optimizer, skipped, self.in_kernel)

    def update_scale(self, found_inf: torch.Tensor) -> None:
        """Move the loss scale by whether the gradient was finite; an empty window had no gradient."""
        self.precision.update(found_inf, self.counted == 0)

    def commit(self, clipped: Clipped, skipped: torch.Tensor) -> None:
        """Advance the counter and the clip's state if the update was applied; else restore the buffers."""
        self.attempts += 1
        self.applied = self.applied + (skipped == 0)
        skipped = skipped.bool()
        self.clip_state = {k: unless(skipped, v, self.clip_state[k]) for k, v in clipped.state.items()}
        self.restore_buffers(skipped)
        if self.ema is not None:
            self.ema.follow_(self.params, self.applied, skipped)

    def save_buffers(self) -> None:
        self.module_buffers.save()

    def restore_buffers(self, skipped: torch.Tensor) -> None:
        self.module_buffers.restore_(skipped, readable=self.device.type == "cpu")

    def zero_grad(self) -> None:
        for p in self.params:  # optimizer.zero_grad takes four times as long
            p.grad = None

    def evaluated_weights(self) -> AbstractContextManager[bool]:
        """The model with the weights that are evaluated; whether they are others than those that are trained.

        They are the average, or what an optimizer with `eval()` makes of them, as schedule-free ones do.
        """
        return evaluated(self.params, self.optimizer, self.ema)

    def averages(self) -> dict[str, torch.Tensor]:
        """The weights that are evaluated, by name, where they are others than those that are trained."""
        if self.ema is not None:
            return dict(zip(self.names, self.ema.tensors, strict=True))
        with self.evaluated_weights() as others:
            return {name: p.detach().clone() for name, p in zip(self.names, self.params) if others}

    def state_dict(self) -> dict[str, Any]:
        groups = zip(self.optimizer.param_groups, self.initial_groups, strict=True)
        return {
            "average": self.averages(),
            "optimizer": self.optimizer.state_dict(),
            "moved": [changed_settings(now, begun) for now, begun in groups],
            "precision": self.precision.state_dict(),
            "clip": dict(self.clip_state),
            "schedule": self.schedule.state_dict(),
            "applied": self.applied.clone(),
            "attempts": self.attempts,
            "thawed": {name: p.requires_grad for name, p in zip(self.names, self.params) if name in self.thawed},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, trained in state.get("thawed", {}).items():
            if name in self.frozen:
                self.thaw(name)
                self.params[-1].requires_grad_(trained)
        load_optimizer(self.optimizer, state["optimizer"], state.get("moved"))
        self.precision.load_state_dict(state["precision"])
        shapes = [{k: v.shape for k, v in clip.items()} for clip in (state["clip"], self.clip_state)]
        if shapes[0] == shapes[1]:  # another clip starts without a history
            self.clip_state = {k: v.to(self.device) for k, v in state["clip"].items()}
        self.schedule.load_state_dict(state.get("schedule", {}))
        if self.ema is not None:  # where there was none, it begins now
            held = state.get("average", {})
            begun = [held.get(n, p).to(p.device) for n, p in zip(self.names, self.params, strict=True)]
            self.ema = EMA.of(begun, self.ema.decay)
        self.applied = state["applied"].to(self.device)
        self.attempts = int(state["attempts"])
