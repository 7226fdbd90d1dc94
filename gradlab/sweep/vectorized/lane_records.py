"""Measurements of the parameters of many lanes at once, and each lane's part of them.

L lanes, T time steps
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor

from gradlab.measure.record import ratios, time_ratio
from gradlab.sweep.vectorized.lane_gradients import lane_norms
from gradlab.sweep.vectorized.lane_update import StackedUpdate
from gradlab.update.gradients import Gradients
from gradlab.update.recorder import Layers, Recorder


class LaneRecord(Recorder):
    """Gradient norm of every parameter of every lane, and where asked how far it moves (see `Record`)."""

    def __init__(self, update: StackedUpdate, names: list[str], steps: bool, recurrent: list[str]) -> None:
        """names: of all parameters, without a gradient too. recurrent: modules whose gradients are followed in time."""
        self.update, self.names, self.steps = update, names, steps
        self.still = [name for name in names if name not in update.names]
        self.measured: dict[str, Tensor] = {}
        self.before: Tensor | None = None
        self.recurrent = recurrent if steps else []
        update.follows_time = bool(self.recurrent)

    @contextmanager
    def forward(self, window: Sequence[Any] = ()) -> Iterator[None]:
        with ExitStack() as stack:
            for name in self.recurrent:
                hook = functools.partial(self.enter, name)
                stack.callback(self.update.module.get_submodule(name).register_forward_pre_hook(hook).remove)
            yield

    def enter(self, name: str, module: Any, inputs: Any) -> None:
        assert self.update.taps is not None
        self.update.taps.name = name

    def gradients(self, gradients: Gradients) -> None:
        self.measured["grad/layer"] = gradients.norms
        if self.steps:
            self.before = self.update.weights.matrix.clone()
            still = [self.update.buffers[name] for name in self.still]
            self.measured["param/norm"] = lane_norms([*self.update.weights.views, *still])

    def stepped(self) -> None:
        if self.before is not None:
            moved = lane_norms(self.update.weights.cut(self.update.weights.matrix - self.before))
            self.measured["update/norm"] = torch.nn.functional.pad(moved, (0, len(self.still)))

    def rows(self, origin: Tensor | None = None) -> list[Layers]:
        """One record a row. origin: of which row each was made since the backward pass."""
        place = {name: i for i, name in enumerate([*self.update.names, *self.still])}
        at = [place[name] for name in self.names]
        columns = {key: values.tolist() for key, values in self.measured.items()}
        nothing = torch.full((self.update.lanes, 1), torch.nan)
        taps = {k: v if origin is None else v[origin] for k, v in self.update.through_time.items()}
        times = [taps.get(name, nothing) for name in self.recurrent]
        made: list[Layers] = []
        for lane in range(self.update.lanes):
            layers: Layers = {k: [v[lane][i] if i < len(v[lane]) else None for i in at] for k, v in columns.items()}
            if self.recurrent:
                layers["time/ratio"] = [time_ratio(norms[lane]).item() for norms in times]
            if "update/norm" in layers:
                layers["update/ratio"] = ratios(layers["update/norm"], layers["param/norm"])
                layers["grad/ratio"] = ratios(layers["grad/layer"], layers["param/norm"])
            made.append(layers)
        return made


class RowRecord(Recorder):
    """A lane's part of a record."""

    def __init__(self, layers: Layers) -> None:
        self.layers = layers

    def unpack(self, values: list[float]) -> Layers:
        return self.layers
