"""The state that the rules share: a bounded number of values however long the run is."""

from __future__ import annotations

import math
import statistics
from collections import deque
from itertools import accumulate
from typing import Any

from gradlab.base.visible import several
from gradlab.diagnosis.series import Blocks, Recent, Samples, without_spike
from gradlab.measure.levels import MOST, PART, Levels
from gradlab.update.layers import layers_of, norms_of

DRIVEN = 10.0
"""Loss over all before it, from which on an update that moved the weights by more than their norm has driven it up."""
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
        self.owners = layers_of(names)
        layers = dict.fromkeys(self.owners[0])
        self.layer_names = [name for name in dict.fromkeys([*(order or []), *layers]) if name in layers]
        """In the order of execution."""
        self.attempts = self.skipped = self.streak = 0
        self.calm, self.lowest_scale = 0, math.inf
        """Updates since the last that was skipped, and the lowest loss scale."""
        self.lowered_at: int | None = None
        """The latest update that was skipped after a window of others, and took the loss scale below all before."""
        self.epochs, self.epoch = 0, 0
        """Those that updates are of, as far as known, and the latest."""
        self.unseen: deque[float] = deque(maxlen=window)
        """The last losses of the first epoch: of samples that no update had seen."""
        self.empty = 0
        """Windows in which no target counted."""
        self.first_empty: int | None = None
        self.bad_since: int | None = None
        """The first of the last updates that all were skipped, or had a loss that is not finite."""
        self.bad_loss = False
        """Whether the loss of that update is not finite."""
        self.skipped_bad = self.applied_bad = self.applied_zero = 0
        """Updates whose loss is not finite: skipped; applied; of these, those whose gradient is zero."""
        self.skipped_bad_since: int | None = None
        self.applied_bad_since: int | None = None
        self.poisoned_at: int | None = None
        """The latest update that was applied with a finite loss and a gradient that is not."""
        self.starts_finite = True
        """Whether the first loss is finite."""
        self.broken = False
        """Whether the last update was applied although its loss was not finite."""
        self.finite = 0
        """Number of finite losses."""
        self.losses = Levels()
        """The three numbers that are reported of them."""
        self.first: list[float] = []
        self.beginning: list[float] = []
        """The first finite losses, as many as are kept of the last."""
        self.last: deque[float] = deque(maxlen=window)
        self.best = math.inf
        self.losses_over_time = Blocks()
        self.lr_first = self.lr_last = math.nan
        self.lr_highest = -math.inf
        self.lr_rose = 0
        """The attempt at which it was reached."""
        self.norms, self.norms_of_all = Recent(KEPT), Samples()
        self.largest, self.largest_at = 0.0, 0
        self.evaluations: list[float] = []
        self.accuracy = 0.0
        """The best of the evaluations; 0 where it is not known."""
        self.classes = False
        """Whether it is known, as where targets are classes."""
        self.applied = self.clipped = 0
        self.coefficients, self.update_ratios = Samples(), Samples()
        self.before: tuple[float, int] = (0.0, 0)
        self.bounded_below = False
        """Whether the ratio of an update is what its weights' norms show, and not measured."""
        """Norm of all weights in the latest record of it, and how many updates were applied before that."""
        self.from_zero = 0
        """Updates of weights that were all zero: their size beside these is infinite."""
        self.weights: list[float] = []
        """Norms of all weights, the first and the last one that was recorded."""
        self.grad_to_weight_ratios = Samples()
        """Norm of the gradient that is applied over that of the weights."""
        self.lr_sum = 0.0
        """Sum of the learning rates of the updates that were applied."""
        self.rounded_off, self.still = Samples(), Samples()
        """Shares of weights of a narrow type that an update, and that all since the record before, left unchanged."""
        self.since, self.recorded = Samples(), 0
        """How many these were, and the update of the latest such record."""
        self.layer_records = 0
        self.first_norms: list[float | None] = []
        """Of the parameters, at the first update."""
        self.layers: list[float] = []
        self.first_layers: list[float] = []
        """At the first record."""
        self.reached: list[bool] = []
        """Whether any parameter of each layer has a gradient."""
        self.layer_ratios: list[tuple[str, float]] = []

    def observe(self, line: dict[str, Any], layers: dict[str, list[Any]] | None) -> None:
        """Add a line of metrics, of an update or an evaluation."""
        if "grad/norm" not in line:
            self.evaluations.append(line.get("eval/loss", math.nan))
            self.accuracy = max(self.accuracy, line.get("eval/accuracy", 0.0))
            self.classes |= "eval/accuracy" in line
            return
        self.attempts += 1
        if (epoch := line.get("epoch", self.epoch)) != self.epoch:
            self.epochs, self.epoch = self.epochs + 1, epoch
        self.skipped += line["update/skipped"] or bool(line.get("update/empty"))
        if line.get("update/empty"):
            self.empty += 1
            self.first_empty = self.first_empty or line["attempt"]
            return
        self.observe_scale(line)
        self.observe_weights(line.get("param/norm", 0.0))
        if line["update/skipped"]:
            self.streak += 1
        else:
            self.observe_applied(line)
        self.observe_rate(line)
        self.observe_bad(line)
        self.observe_loss(line.get("train/loss"))
        if self.epochs == 1 and math.isfinite(loss := line.get("train/loss", math.nan)):
            self.unseen.append(loss)
        self.observe_norm(line)
        if layers and self.names:
            self.observe_layers(layers)

    def observe_scale(self, line: dict[str, Any]) -> None:
        """A scale that began too high comes down at first; one that was raised goes back to what it was."""
        scale = line.get("amp/scale", math.inf)
        if line["update/skipped"] and scale < self.lowest_scale and self.calm >= self.window:
            self.lowered_at = line["attempt"]
        self.calm, self.lowest_scale = 0 if line["update/skipped"] else self.calm + 1, min(self.lowest_scale, scale)

    def observe_weights(self, norm: float) -> None:
        """Where no update was measured, the only one between two records that differ by more than the weights."""
        before, applied = self.before
        if not 0 < norm < math.inf:
            return
        if not self.update_ratios.count and self.applied == applied + 1 and norm > 2 * before > 0:
            self.update_ratios.add(norm / before - 1)  # at least: the norm tells nothing of a turn
            self.bounded_below = True
        self.before = norm, self.applied

    def observe_applied(self, line: dict[str, Any]) -> None:
        """What an update that was applied did to the weights."""
        self.streak = 0
        coefficient = line.get("clip/coefficient", 1.0)
        self.applied += 1
        self.clipped += coefficient < 1
        self.coefficients.add(coefficient)
        if math.isfinite(ratio := line.get("update/ratio", math.nan)):
            self.update_ratios.add(ratio)
        self.from_zero += ratio == math.inf
        if weights := line.get("param/norm", 0.0):
            self.weights = [*self.weights[:1], weights]
            self.grad_to_weight_ratios.add(line["grad/norm"] * coefficient / weights)
        self.lr_sum += line.get("lr", 0.0)
        for name, kept in (("update/lost", self.rounded_off), ("update/still", self.still)):
            if name in line:
                kept.add(line[name])
        if "update/still" in line:
            self.since.add(self.applied - self.recorded)
        if "update/lost" in line:
            self.recorded = self.applied

    def observe_rate(self, line: dict[str, Any]) -> None:
        self.lr_last = line.get("lr", math.nan)
        if self.attempts == 1:
            self.lr_first = self.lr_last
        if self.lr_last > self.lr_highest:
            self.lr_highest, self.lr_rose = self.lr_last, self.attempts

    def observe_bad(self, line: dict[str, Any]) -> None:
        """Updates that were skipped, or whose loss or gradient is not finite."""
        attempt, norm, skipped = line["attempt"], line["grad/norm"], line["update/skipped"]
        loss = line.get("train/loss")  # None: a watched loop need not show it
        finite = loss is None or math.isfinite(loss)
        self.broken = not (skipped or finite)
        self.starts_finite &= finite or self.attempts > 1
        if skipped or not finite:
            if self.bad_since is None:
                self.bad_since, self.bad_loss = attempt, not finite
        else:
            self.bad_since = None
        if not skipped and finite and not math.isfinite(norm):
            self.poisoned_at = attempt
        if not finite and skipped:
            self.skipped_bad_since = self.skipped_bad_since or attempt
            self.skipped_bad += 1
        elif not finite:
            self.applied_bad_since = self.applied_bad_since or attempt
            self.applied_bad += 1
            self.applied_zero += norm == 0

    def observe_loss(self, loss: float | None) -> None:
        if loss is None:
            return
        self.losses.add(loss)
        if math.isfinite(loss):
            self.finite += 1
            self.losses_over_time.add(loss)
            if len(self.first) < self.window:
                self.first.append(loss)
            if len(self.beginning) < PART * MOST:
                self.beginning.append(loss)
            self.last.append(loss)
            if len(self.last) == self.window:
                self.best = min(self.best, math.fsum(self.last) / self.window)

    def observe_norm(self, line: dict[str, Any]) -> None:
        if math.isfinite(norm := line["grad/norm"]):
            if norm > self.largest:
                self.largest, self.largest_at = norm, line["attempt"]
            self.norms.add(norm)
            self.norms_of_all.add(norm)

    def observe_layers(self, layers: dict[str, list[Any]]) -> None:
        grads = self.by_layer(layers["grad/layer"])
        self.layers, self.reached = [norm or 0.0 for norm in grads], [norm is not None for norm in grads]
        self.first_layers = self.first_layers or self.layers
        self.layer_records += 1
        self.first_norms = layers.get("param/norm", []) if self.attempts == 1 else self.first_norms
        if "update/norm" in layers:
            moved, norms = self.by_layer(layers["update/norm"]), self.by_layer(layers["param/norm"])
            zipped = zip(self.layer_names, moved, norms, strict=True)
            self.layer_ratios = [(name, (m or 0.0) / p) for name, m, p in zipped if p]

    def by_layer(self, norms: list[float | None]) -> list[float | None]:
        """Norms of parameters -> norms of layers, in the order of execution."""
        found = norms_of(*self.owners, norms)
        return [found[name] for name in self.layer_names]

    def words(self, layer: str) -> str:
        """A layer's name; of the whole model, which has none, the first of the parameters that are in no other."""
        own = [name for name in self.names if "." not in name]
        return layer or several(own)

    def runs(self, name: str) -> bool:
        """Whether the layer of a parameter, or a module above it, is called in the forward pass."""
        layer = name.rpartition(".")[0]
        while layer and self.called is not None and layer not in self.called:
            layer = layer.rpartition(".")[0]
        return self.called is None or bool(layer) or "." not in name

    @property
    def poisoned(self) -> bool:
        """Whether the last losses are not finite since an update with such a gradient has broken the weights."""
        return self.bad_loss and self.poisoned_at is not None and self.poisoned_at + 1 == self.bad_since

    @property
    def loss_first(self) -> float:
        return self.losses.initial

    @property
    def loss_early(self) -> float:
        """The median loss at the beginning."""
        return statistics.median(self.undamaged) if self.first else math.nan

    @property
    def undamaged(self) -> list[float]:
        """The first losses, without those after an update that threw the weights and drove the loss up.

        From those a loss falls whatever is learnt.
        """
        if not (self.first and self.first[0] > 0 and self.update_ratios.largest > 1):
            return self.first
        highest = [self.first[0], *accumulate(self.first, max)]
        driven = (i for i, loss in enumerate(self.first) if loss > DRIVEN * highest[i])
        return self.first[: next(driven, None)]

    @property
    def loss_late(self) -> float:
        """The median of the last finite losses."""
        return statistics.median(self.last) if self.last else math.nan

    @property
    def loss_lowest(self) -> float:
        """The lowest mean of a window, or the median at the end."""
        return min(self.best, self.loss_late) if self.first else math.nan

    @property
    def evaluated(self) -> list[float]:
        """The evaluations that are finite."""
        return [loss for loss in self.evaluations if math.isfinite(loss)]

    @property
    def finite_losses(self) -> list[float]:
        """The latest, up to 100."""
        return [loss for loss in self.losses.latest if math.isfinite(loss)]

    @property
    def at_the_end(self) -> list[float]:
        """The finite losses of the last window, or of the last tenth of a long run, up to 100, sorted.

        The largest one counts as the second largest: it may be a spike.
        """
        return without_spike(self.finite_losses[-self.ends_after :])

    @property
    def ends_after(self) -> int:
        """How many losses are those of the end, or of the beginning."""
        return max(self.window, self.attempts // 10)

    @property
    def end(self) -> tuple[float, float]:
        """Mean loss at the end, and its standard error; NaN of none.

        A mean, as the loss of a constant answer is: where a few samples have most of the loss, a median is far below.
        """
        values = self.at_the_end
        return (math.fsum(values) / len(values), self.noise / len(values) ** 0.5) if values else (math.nan, math.nan)

    @property
    def began(self) -> float:
        """The same mean of the first losses, of as many at most."""
        undamaged = self.undamaged
        few = len(undamaged) if len(undamaged) < len(self.first) else self.ends_after
        values = without_spike(self.beginning[:few])
        return math.fsum(values) / len(values) if values else math.nan

    @property
    def noise(self) -> float:
        """Standard deviation of the losses at the end."""
        values = self.at_the_end
        return statistics.stdev(values) if len(values) > 1 else 0.0

    @property
    def norm_drift(self) -> tuple[float, float]:
        """The usual norms of the first and of the last tenth."""
        values = self.norms_of_all.values
        tenth = max(2, len(values) // 10)
        return (statistics.median(values[:tenth]), statistics.median(values[-tenth:])) if values else (math.nan,) * 2

    @property
    def full_updates(self) -> float:
        """How many updates at its highest learning rate the run was worth; NaN where that is not known."""
        return self.lr_sum / self.lr_highest if self.lr_highest > 0 else math.nan

    @property
    def usual_norm(self) -> float:
        return self.norms.median

    @property
    def usual_norm_said(self) -> str:
        return f"the latest {len(self.norms.values)} norms have a median of {self.usual_norm:.2g}"
