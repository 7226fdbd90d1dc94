"""ONE optimizer update. Read `Update.__call__`: the order of its lines is the correct order.

Vectorized sweeps subclass `Update` (`gradlab.sweep.vectorized.lane_update`): they inherit this order and most of its
arithmetic.

Nothing here waits for the device. Whether an update is applied is decided on the device, and the host reads it later:
the number of applied updates, which the schedule reads, and the learning rate are tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import torch

from gradlab.base.distributed import World
from gradlab.base.option import Invalid
from gradlab.base.randomness import mix
from gradlab.update.clip import Clip, Clipped
from gradlab.update.ema import EMA
from gradlab.update.gradients import Gradients, measure
from gradlab.update.loss import Loss
from gradlab.update.noise import Noise
from gradlab.update.precision import Precision
from gradlab.update.recorder import NOTHING, Recorder
from gradlab.update.schedule import Schedule
from gradlab.update.stepping import set_lr_, skips_in_kernel, step_unless_


class MicroBatch(NamedTuple):
    """Samples of one forward and backward pass. In a remainder a rank without samples has one that does not count."""

    inputs: torch.Tensor
    targets: torch.Tensor
    counts: bool = True


class Stats(NamedTuple):
    """What one update measured: () tensors on the device."""

    loss: torch.Tensor
    """Mean over all samples or tokens of the window and all ranks."""
    grad_norm: torch.Tensor
    """L2 norm of the true gradient, before noise and clipping."""
    clip_coefficient: torch.Tensor
    """||clipped|| / ||gradient||."""
    clip_acted: torch.Tensor
    scale: torch.Tensor
    """The loss scale that this update used."""
    next_scale: torch.Tensor
    skipped: torch.Tensor
    empty: torch.Tensor
    """Whether no target of the window counts: it is skipped, and its loss is NaN, a mean of nothing."""
    lr: torch.Tensor
    applied: torch.Tensor
    """Updates applied so far, this one included if it was."""
    terms: torch.Tensor | None = None
    """(K,) means of the terms of the loss, where it has several."""


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
        """Of the loss and of what its gradient is multiplied with."""
        self.frozen = {name: p for name, p in named_weights(model) if not p.requires_grad and p.is_floating_point()}
        self.thawed: list[str] = []
        """Parameters that were frozen when the run began, and have had a gradient since."""
        self.add_parameter = add_parameter or (lambda name, p: optimizer.param_groups[0]["params"].append(p))
        self.module, self.has_buffers = module, True
        self.buffers_of_each = [part._buffers for part in module.modules()]
        self.begun_as_none = {(id(held), name) for held in self.buffers_of_each for name in held if held[name] is None}
        self.initial_groups = [dict(group) for group in optimizer.param_groups]
        """The optimizer's groups with the settings that the configuration gives them."""
        self.saved_buffers: dict[str, torch.Tensor] = {}
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
        check_held(self.precision, name, p)
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
        """By what the gradient was; an empty window had none."""
        self.precision.update(found_inf, self.counted == 0)

    def commit(self, clipped: Clipped, skipped: torch.Tensor) -> None:
        """Advance the counter and the clip's state if the update was applied; else restore the buffers."""
        self.attempts += 1
        self.applied = self.applied + (skipped == 0)
        skipped = skipped.bool()
        self.clip_state = {k: unless(skipped, v, self.clip_state[k]) for k, v in clipped.state.items()}
        if self.has_buffers or any(self.buffers_of_each):  # in this forward pass the first may have been registered
            self.restore_buffers(skipped)
        if self.ema is not None:
            self.ema.follow_(self.params, self.applied, skipped)

    def restore_buffers(self, skipped: torch.Tensor) -> None:
        buffers = dict(self.module.named_buffers())
        self.has_buffers = bool(buffers)
        if self.device.type == "cpu" and not skipped:
            return
        for name, buffer in buffers.items():
            before = self.saved_buffers.get(name)
            if before is not None and before.shape == buffer.shape:
                buffer.copy_(torch.where(skipped, before, buffer))
            elif skipped:  # registered in this forward pass, or of another shape since
                inside, _, last = name.rpartition(".")
                part = self.module.get_submodule(inside)
                if before is None and (id(part._buffers), last) not in self.begun_as_none:
                    delattr(part, last)
                else:
                    setattr(part, last, None if before is None else before.clone())

    def save_buffers(self) -> None:
        """A forward pass that overflows leaves NaN in running statistics; a skipped update must not."""
        if not self.has_buffers:
            return
        buffers = dict(self.module.named_buffers())  # again: a module may have replaced one
        saved = self.saved_buffers
        if {name: b.shape for name, b in buffers.items()} != {name: b.shape for name, b in saved.items()}:
            saved = self.saved_buffers = {name: torch.empty_like(b) for name, b in buffers.items()}
        if buffers:
            torch._foreach_copy_(list(saved.values()), list(buffers.values()))

    def zero_grad(self) -> None:
        for p in self.params:  # optimizer.zero_grad takes four times as long
            p.grad = None

    @contextmanager
    def evaluated_weights(self) -> Iterator[bool]:
        """The model with the weights that are evaluated; whether they are others than those that are trained.

        They are the average, or what an optimizer with `eval()` makes of them, as schedule-free ones do.
        """
        switch = getattr(self.optimizer, "eval", None)
        if self.ema is None and not callable(switch):
            yield False
            return
        params = [p.detach() for p in self.params]
        trained = [p.clone() for p in params]
        if callable(switch):
            switch()
        if self.ema is not None:
            torch._foreach_copy_(params, self.ema.tensors)
        try:
            yield True
        finally:
            if callable(switch):
                self.optimizer.train()  # type: ignore[attr-defined]
            torch._foreach_copy_(params, list(trained))  # the way back rounds

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
        groups, given = self.optimizer.param_groups, state["optimizer"]["param_groups"]
        if [g.keys() for g in groups] != [g.keys() for g in given]:
            raise ValueError("its parameter groups have other fields")
        if [g.get("names") for g in groups] != [g.get("names") for g in given]:
            raise ValueError("its parameter groups hold other parameters")
        taken = [{"params", "lr", *names} for names in state.get("moved", [()] * len(groups))]
        own = [{k: v for k, v in group.items() if k not in names} for group, names in zip(groups, taken, strict=True)]
        self.optimizer.load_state_dict(state["optimizer"])
        for group, fields in zip(self.optimizer.param_groups, own, strict=True):
            group.update(fields)  # keep the current configuration, such as weight_decay
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


def trained_names(model: Any) -> list[str]:
    """Names of the parameters that need a gradient, of a model that may be compiled and wrapped in DDP."""
    return [name for name, p in named_weights(model) if p.requires_grad]


def named_weights(model: Any) -> Iterator[tuple[str, torch.nn.Parameter]]:
    return unwrapped(model).named_parameters()


def unwrapped(model: Any) -> torch.nn.Module:
    """The module of a model that may be compiled and wrapped in DDP."""
    module = model.module if hasattr(model, "no_sync") else model
    inner: torch.nn.Module = getattr(module, "_orig_mod", module)
    return inner


def check_held(precision: Precision, name: str, p: torch.Tensor) -> None:
    """Raise `Invalid` for a parameter whose unscaled gradient would vanish."""
    if precision.loss_scale is not None and p.dtype == torch.float16:
        why = f"{name} is held in fp16, in which unscaled gradients vanish: keep it in fp32; autocast rounds"
        raise Invalid("precision", "fp16", why)


def changed_settings(now: dict[str, Any], begun: dict[str, Any]) -> list[str]:
    """Names of the settings that the optimizer itself has changed in a group: its state, not its configuration."""
    others = now.keys() - {"params", "lr"}
    return sorted(k for k in others if isinstance(now[k], torch.Tensor) or now[k] != begun.get(k))


def unless(skipped: torch.Tensor, now: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
    """`before` where the update was skipped, else `now`. skipped: (), or (L,) for tensors of L lanes."""
    return torch.where(skipped.reshape(skipped.shape + (1,) * (now.dim() - skipped.dim())), before, now)
