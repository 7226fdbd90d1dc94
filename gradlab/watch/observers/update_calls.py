"""The calls of one update, for the list of them on the page: observed in that update alone."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from gradlab.watch.call_site import call_site
from gradlab.watch.instrumentation import Hook, Instrumentation
from gradlab.watch.loop_state import LoopState
from gradlab.watch.observers.lr_schedule import TORCH_SCHEDULES
from gradlab.watch.patches import AfterCall, BeforeCall, defining_class, patch
from gradlab.watch.readers.update_calls import AFTER
from gradlab.watch.tracking.optimizer_tracker import OptimizerTracker

CLIP = torch.nn.utils.clip_grad


class UpdateCallsObserver:
    """Begins with the sixth update of the first optimizer that makes it, and ends with its step."""

    def __init__(self, loop: LoopState) -> None:
        self.loop, self.listed = loop, loop.update_calls
        self.instrumentation: Any = None
        self.patches = ExitStack()
        self.depth = 0
        """Observed calls that are running within each other: only the outermost is listed."""

    def install(self, instrumentation: Instrumentation) -> None:
        self.instrumentation = instrumentation
        instrumentation.stack.callback(self.stop)
        if not self.listed.calls:
            self.loop.lists_step = self.before_step, self.after_step

    def before_step(self, tracker: OptimizerTracker) -> None:
        if self.listed.recording:
            rates = sorted({f"{float(group['lr']):.4g}" for group in tracker.optimizer.param_groups})
            self.listed.note(call_site(), f"step of {name_of(tracker)}", f"lr {', '.join(rates)}")

    def after_step(self, tracker: OptimizerTracker) -> None:
        if self.listed.recording and tracker is self.listed.tracker:
            self.stop()
        elif tracker.attempts == AFTER and not self.listed.calls and not self.listed.recording:
            self.listed.tracker, self.listed.recording = tracker, True
            self.start()

    def start(self) -> None:
        """Observe the calls from here on."""
        for model in self.loop.models:
            hook = Hook(self.instrumentation, self.before_model, model, False)
            self.patches.callback(model.register_forward_pre_hook(hook).remove)
        self.observe(torch.autograd, "backward", self.on_backward)
        self.observe(torch.optim.Optimizer, "zero_grad", self.on_zero_grad)
        for owner in {defining_class(tracker.optimizer, "zero_grad") for tracker in self.loop.trackers}:
            if owner is not torch.optim.Optimizer:
                self.observe(owner, "zero_grad", self.on_zero_grad)
        self.observe(nn.Module, "zero_grad", self.on_zero_grad)
        self.observe(CLIP, "_clip_grads_with_norm_", self.on_clip)
        for name in ("unscale_", "step", "update"):
            self.observe(torch.amp.GradScaler, name, partial(self.on_scaler, name))
        for owner in TORCH_SCHEDULES:
            self.observe(owner, "step", self.on_schedule)

    def stop(self) -> None:
        """The update is over, or the watch."""
        self.listed.recording, self.loop.lists_step = False, None
        self.patches.close()

    def observe(self, owner: Any, name: str, observer: BeforeCall) -> None:
        def before(args: tuple[Any, ...], kwargs: dict[str, Any]) -> AfterCall:
            self.depth += 1
            after = self.instrumentation.guarded(observer, args, kwargs) if self.depth == 1 else None

            def leave(result: Any, error: bool) -> None:
                self.depth -= 1
                if after is not None:
                    self.instrumentation.guarded(after, result, error)

            return leave

        self.patches.callback(patch(owner, name, before))

    def before_model(self, model: nn.Module, *_: Any) -> None:
        if self.depth:  # activation checkpointing runs it again
            return
        mode = "" if model.training else ", in eval()"
        graph = "" if torch.is_grad_enabled() else ", without gradients"
        self.listed.note(call_site(), f"forward pass of {type(model).__name__}{mode}{graph}")

    def on_backward(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> AfterCall:
        given = args[0] if args else kwargs.get("tensors")
        loss = given[0] if isinstance(given, (list, tuple)) and len(given) == 1 else given
        site, before = call_site(), [grads(tracker) for tracker in self.loop.trackers]
        is_number = isinstance(loss, Tensor) and loss.numel() == 1
        value = f"{float(loss.detach()):.4g}; " if is_number else ""  # type: ignore[union-attr]

        def after(result: Any, error: bool) -> None:
            reached = [
                f"{sum(a != b for a, b in zip(grads(t), old, strict=True))} of {len(old)} of {name_of(t)}"
                for t, old in zip(self.loop.trackers, before, strict=True)
                if grads(t) != old
            ]
            self.listed.note(
                site, "backward pass", f"{value}gradients for {', '.join(reached) or 'none of the weights'}"
            )

        return after

    def on_zero_grad(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        tracker = next((t for t in self.loop.trackers if t.optimizer is args[0]), None)
        whose = name_of(tracker) if tracker is not None else type(args[0]).__name__
        self.listed.note(call_site(), f"gradients of {whose} are zeroed")

    def on_clip(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given = dict(zip(("parameters", "max_norm", "total_norm"), args, strict=False)) | kwargs
        norm = float(given["total_norm"])
        self.listed.note(call_site(), "clipping", f"at {float(given['max_norm']):.4g}, a norm of {norm:.4g}")

    def on_scaler(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if name != "step":
            self.listed.note(call_site(), f"scaler.{name}()", f"at a loss scale of {args[0].get_scale():.4g}")

    def on_schedule(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> AfterCall:
        schedule, site = args[0], call_site()

        def after(result: Any, error: bool) -> None:
            rate = float(schedule.optimizer.param_groups[0]["lr"])
            self.listed.note(site, f"step of {type(schedule).__name__}", f"lr {rate:.4g} from here on")

        return after


def name_of(tracker: OptimizerTracker) -> str:
    return f"optimizer {tracker.index} ({type(tracker.optimizer).__name__})"


def grads(tracker: OptimizerTracker) -> list[tuple[int, int] | None]:
    """Tells for each weight whether its gradient was replaced or added to."""
    return [None if p.grad is None else (id(p.grad), p.grad._version) for p in tracker.params]
