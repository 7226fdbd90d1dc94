"""The state that the rules share: a bounded number of values however long the run is."""

from __future__ import annotations

import math
import statistics
from collections import deque
from typing import Any

from gradlab.diagnosis.series import Recent, Samples
from gradlab.measure.levels import Levels
from gradlab.update.clip import layers_of

KEPT = 200
"""Latest values of a series that are kept, for medians and spreads."""


class History:
    """Losses, norms and layers of the updates so far. Non-finite values are counted, not averaged."""

    def __init__(
        self, window: int, names: list[str], order: list[str] | None = None, called: list[str] | None = None
    ) -> None:
        """names: parameters whose norms are recorded. order: their layers as they run (default: as defined).

        called: modules that the forward pass calls; None if unknown.
        """
        self.window, self.names, self.called = window, names, called
        self.layer_names, self.layer_of = layers_of(names)
        place = {name: i for i, name in enumerate(order or self.layer_names)}
        self.order = sorted(range(len(self.layer_names)), key=lambda i: place.get(self.layer_names[i], len(place)))
        self.attempts = self.skipped = self.streak = 0
        self.bad_since: int | None = None
        self.broken = False
        """Whether the last update was applied although its loss was not finite."""
        self.finite = 0
        """Number of finite losses."""
        self.losses = Levels()
        """The three numbers that are reported of them."""
        self.first: list[float] = []
        self.last: deque[float] = deque(maxlen=window)
        self.best = math.inf
        self.norms, self.norms_of_all = Recent(KEPT), Samples(64)
        self.largest, self.largest_at = 0.0, 0
        self.evaluations: list[float] = []
        self.applied = self.clipped = 0
        self.coefficients, self.update_ratios = Samples(), Samples()
        self.layer_records = 0
        self.layers: list[float] = []
        self.layer_ratios: list[tuple[str, float]] = []

    def observe(self, line: dict[str, Any], layers: dict[str, list[Any]] | None) -> None:
        """Add a line of metrics, of an update or an evaluation."""
        if "train/loss" not in line:
            self.evaluations.append(line.get("eval/loss", math.nan))
            return
        loss, norm, skipped = line["train/loss"], line["grad/norm"], line["update/skipped"]
        self.attempts += 1
        if skipped:
            self.skipped += 1
            self.streak += 1
        else:
            self.streak = 0
            coefficient = line.get("clip/coefficient", 1.0)
            self.applied += 1
            self.clipped += coefficient < 1
            self.coefficients.add(coefficient)
            if math.isfinite(ratio := line.get("update/ratio", math.nan)):
                self.update_ratios.add(ratio)
        self.losses.add(loss)
        finite = math.isfinite(loss)
        self.broken = not (skipped or finite)
        if skipped or not finite:
            self.bad_since = self.bad_since or line["attempt"]
        else:
            self.bad_since = None
        if finite:
            self.finite += 1
            if len(self.first) < self.window:
                self.first.append(loss)
            self.last.append(loss)
            if len(self.last) == self.window:
                self.best = min(self.best, math.fsum(self.last) / self.window)
        if math.isfinite(norm):
            if norm > self.largest:
                self.largest, self.largest_at = norm, line["attempt"]
            self.norms.add(norm)
            self.norms_of_all.add(norm)
        if layers and self.names:
            self.layers = self.by_layer(layers["grad/layer"])
            self.layer_records += 1
            if "update/norm" in layers:
                moved, norms = self.by_layer(layers["update/norm"]), self.by_layer(layers["param/norm"])
                names = [self.layer_names[i] for i in self.order]
                self.layer_ratios = [(n, m / p) for n, m, p in zip(names, moved, norms, strict=True) if p]

    def by_layer(self, values: list[float | None]) -> list[float]:
        """Norms of parameters -> norms of layers, in the order of execution."""
        squares = [0.0] * len(self.layer_names)
        for i, value in zip(self.layer_of, values, strict=True):
            squares[i] += (value or 0.0) ** 2
        return [math.sqrt(squares[i]) for i in self.order]

    def runs(self, name: str) -> bool:
        """Whether the layer of a parameter, or a module above it, is called in the forward pass."""
        layer = name.rpartition(".")[0]
        while layer and self.called is not None and layer not in self.called:
            layer = layer.rpartition(".")[0]
        return self.called is None or bool(layer) or "." not in name

    @property
    def ordered_names(self) -> list[str]:
        return [self.layer_names[i] for i in self.order]

    @property
    def loss_first(self) -> float:
        return self.losses.initial

    @property
    def loss_early(self) -> float:
        """The median loss at the beginning."""
        return statistics.median(self.first) if self.first else math.nan

    @property
    def loss_late(self) -> float:
        """The median of the last finite losses."""
        return statistics.median(self.last) if self.last else math.nan

    @property
    def loss_lowest(self) -> float:
        """The lowest mean of a window, or the median at the end."""
        return min(self.best, self.loss_late) if self.first else math.nan

    @property
    def improvement(self) -> float:
        """The largest relative fall of the loss; in a run too short for two windows, from its first half on."""
        half = min(self.finite // 2, self.window)
        if not half:
            return 0.0
        early, late = statistics.median(self.first[:half]), statistics.median(list(self.last)[-half:])
        return (early - min(self.best, late)) / abs(early) if early else 0.0

    @property
    def usual_norm(self) -> float:
        return self.norms.median
