"""Forward passes of the models: how many, in which precision, and whether DDP is bypassed."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from gradlab.watch.call_site import call_site, is_running
from gradlab.watch.instrumentation import Hook, Instrumentation
from gradlab.watch.loop_state import LoopState
from gradlab.watch.observers import compiled_steps
from gradlab.watch.patches import defining_class
from gradlab.watch.tracking.early_freezes import EARLY

RECORD_SITES = 3
"""Backward passes before which the call sites of forward passes are recorded."""


class ForwardObserver:
    """Counts forward passes in `loop.forwards`."""

    def __init__(self, loop: LoopState) -> None:
        self.loop = loop
        self.positions = {id(m): i for i, m in enumerate(loop.models)}
        self.in_ddp = False
        """Whether DDP's own forward pass is running."""
        self.possible = False
        """Whether activations of the first model can be looked at."""
        self.looking: Any = None
        """The hook at the end of its passes."""

    def install(self, instrumentation: Instrumentation) -> None:
        for m in self.loop.models:
            if getattr(m, "_compiled_call_impl", None) is None:
                instrumentation.hook(m.register_forward_pre_hook, self.before_model, m, with_kwargs=True)
        self.possible = not self.loop.fsdp1 and self.loop.activations.possible
        self.last_hook = Hook(instrumentation, self.loop.activations.after, self.loop.models[0], False)
        instrumentation.stack.callback(self.stop_looking)
        self.loop.statistics.hook = instrumentation.hook
        instrumentation.patch(nn.Module, "train", self.on_mode)
        instrumentation.patch(nn.Module, "requires_grad_", self.on_requires_grad)
        if (ddp := self.loop.ddp) is not None:
            instrumentation.hook(ddp.register_forward_hook, self.after_ddp, ddp, always_call=True)
            instrumentation.hook(ddp.module.register_forward_pre_hook, self.before_inner_module, ddp.module)
            instrumentation.patch(defining_class(ddp, "no_sync"), "no_sync", self.on_no_sync)

    def before_model(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        loop, mode = self.loop, self.loop.modes[self.positions[id(module)]]
        if loop.backward_depth:
            return
        if not torch.is_grad_enabled():
            mode.evaluated |= not module.training and (mode.trained or (mode.untrained and is_running(mode.site)))
            mode.num_ungraded += module.training
            return
        mode.num_in_eval += not module.training
        if not module.training and mode.trained:
            if is_running(mode.site):
                mode.inside = loop.seen.num_backwards
            mode.evaluated |= mode.inside == loop.seen.num_backwards and not is_running(mode.site)
        if module.training:
            mode.trained, mode.evaluated, mode.updates = True, False, 0
            loop.forwards.in_training.add(self.positions[id(module)])
        elif mode.untrained and is_running(mode.site):  # `eval()` may be meant for what the function does next
            mode.evaluated = mode.untrained = False
        elif mode.evaluated:
            loop.forwards.left_in_eval.add(self.positions[id(module)])
        if loop.fsdp1 and not loop.forwards.count:
            for tracker in loop.trackers:
                compiled_steps.detect(loop, tracker)
                tracker.detect_writes()
        forwards, device = loop.forwards, loop.trackers[0].device_type if loop.trackers else "cpu"
        forwards.count += 1
        forwards.fp16 = torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device) is torch.float16
        forwards.synced = loop.ddp.require_backward_grad_sync if loop.ddp is not None else None
        forwards.site = call_site() if loop.seen.num_backwards < RECORD_SITES else None
        self.in_ddp = module is loop.ddp
        if self.possible and module is loop.models[0]:
            loop.activations.before(module, args, kwargs)
            if loop.activations.watching is None:
                self.stop_looking()
            elif self.looking is None:
                self.looking = module.register_forward_hook(self.last_hook, always_call=True)

    def stop_looking(self) -> None:
        """A hook after a module makes each of its calls slower: it is there only while activations are looked at."""
        if self.looking is not None:
            self.looking.remove()
            self.looking = None

    def on_mode(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """`train()`, which `eval()` calls too, of one of the models."""
        if not args or (position := self.positions.get(id(args[0]))) is None:
            return
        mode, on = self.loop.modes[position], args[1] if len(args) > 1 else kwargs.get("mode", True)
        if not on:
            mode.site, mode.inside = call_site(), -1
        mode.untrained = not on and args[0].training and not mode.trained
        mode.evaluated &= mode.trained

    def on_requires_grad(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Freezing during the first updates is remembered with its line."""
        frozen = (args[1] if len(args) > 1 else kwargs.get("requires_grad", True)) is False
        if frozen and max((t.attempts for t in self.loop.trackers), default=0) <= EARLY:
            self.loop.seen.freezes.append((call_site(), {id(p) for p in args[0].parameters()}))

    def after_ddp(self, *_: Any) -> None:
        self.in_ddp = False

    def before_inner_module(self, *_: Any) -> None:
        """The module inside DDP runs: was it called by DDP?"""
        if not self.in_ddp and not self.loop.backward_depth and torch.is_grad_enabled():
            self.loop.forwards.bypassed_ddp = call_site()

    def on_no_sync(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if args and args[0] is self.loop.ddp:
            self.loop.no_sync = call_site()
