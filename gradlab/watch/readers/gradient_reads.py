"""Whether the loop looks at gradients that it zeroes, and where it writes to weights, in one update."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from gradlab.watch.call_site import CallSite, call_site
from gradlab.watch.followed_update import NETWORKS, Reader, tensors_in
from gradlab.watch.tracking.optimizer_tracker import OptimizerTracker

PACKAGE = str(Path(__file__).parents[2])
OPTIMIZERS = str(Path(torch.optim.__file__).parent)
HOOKS = {"register_hook", "retain_grad", "register_post_accumulate_grad_hook"}
HOOKED = ("_backward_hooks", "_backward_pre_hooks", "_post_accumulate_grad_hooks")
"""Where modules and parameters keep what is called with gradients."""
GRADIENT = torch.Tensor.grad.__get__  # type: ignore[union-attr]
SETTERS = (torch.Tensor.data.__set__, torch.Tensor.__setitem__)  # type: ignore[attr-defined]
WRITTEN = (torch.Tensor, nn.Parameter)


class GradientReads(Reader):
    """A reader of updates that are followed after something was measured which it explains; see `wanted`."""

    def __init__(self, models: Sequence[nn.Module], trackers: Sequence[OptimizerTracker]) -> None:
        self.models, self.trackers = models, trackers
        self.wanted = self.following = False
        self.seen = False
        """Whether the loop looked at gradients before they were zeroed, or at those of anything else."""
        self.writes: dict[int, CallSite | None] = {}
        """Address of a tensor -> where it was written to the last time, or made."""
        self.run: set[int] = set()
        """ids of weights that products with activations were computed of."""

    def begin(self, tracker: OptimizerTracker, without: list[torch.Tensor], flat: list[torch.Tensor]) -> bool:
        self.following, self.wanted = self.wanted, False
        if self.following:
            hooked = [*tracker.params, *(part for model in self.models for part in model.modules())]
            self.tracker, self.writes, self.run = tracker, {}, set()
            self.shapes = {p.shape for p in tracker.params if p.dim()}
            self.seen = any(getattr(each, name, None) for each in hooked for name in HOOKED)
        return self.following

    def follow(self, name: str, func: Any, args: list[Any], kwargs: dict[str, Any], result: Any) -> None:
        if not args:
            return
        if name in NETWORKS:
            self.run |= {id(each) for each in tensors_in(args) if type(each) is nn.Parameter}
        if name == "__get__" and func == GRADIENT:
            self.note_read(args[0])
        elif name in HOOKS:
            self.seen = True
        elif func in SETTERS or (name.endswith("_") and not name.endswith("__")):
            written = args[0] if isinstance(args[0], (list, tuple)) else args[:1]
            dense = [each for each in written if type(each) in WRITTEN and each.layout is torch.strided]
            self.writes |= {each.data_ptr(): call_site() for each in dense}
        elif type(result) is torch.Tensor and result.shape in self.shapes and result.layout is torch.strided:
            address = result.data_ptr()
            if all(address != each.data_ptr() for each in tensors_in(args) if each.layout is torch.strided):
                self.writes[address] = call_site()

    def note_read(self, tensor: Any) -> None:
        """Of a gradient, by anything but the zeroing itself and this package."""
        frame: Any = sys._getframe(1)
        while frame is not None and frame.f_code.co_name != "__torch_function__":
            frame = frame.f_back
        reader = frame.f_back.f_code
        if reader.co_name != "zero_grad" and not reader.co_filename.startswith(PACKAGE):
            before_zero = bool(self.tracker.unused) and not self.tracker.dropped
            others = id(tensor) not in self.tracker.ids
            steps = others and reader.co_filename.startswith(OPTIMIZERS)
            if not (
                steps and any(id(tensor) in each.ids for each in self.trackers if each.accumulated)
            ):  # whose passes are known
                self.seen |= before_zero or others
