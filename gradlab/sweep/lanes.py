"""Runs as lanes: each keeps its own books as if it ran alone, and its arithmetic is done with that of the others.

L lanes, P parameters
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call, vmap

from gradlab import checkpoint, setup
from gradlab.attempt import FIELDS, Attempt
from gradlab.gradients import Gradients
from gradlab.job import Job
from gradlab.recorder import Layers, Recorder, late_to_early, ratios
from gradlab.step import Stats
from gradlab.sweep.kernels import lane_rules
from gradlab.sweep.update import Batch, StackedUpdate, lane_norms
from gradlab.trainer import FAILURES, Trainer

Ended = Callable[[Job, int], None]


class Row:
    """What a lane measured in one update, on the host already."""

    def __init__(self, values: list[float]) -> None:
        self.values = values

    def read(self) -> list[float]:
        return self.values


class Lane(Trainer):
    """A run whose updates and evaluations are made for it."""

    stack: Stack

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.random = checkpoint.random_state()
        self.asks: Iterator[Callable[[], None]] = iter(())
        self.ask: Callable[[], None] | None = None

    @property
    def scale(self) -> float:
        return self.latest.measured.read()[FIELDS.index("next_scale")] if self.latest else 1.0

    def begin(self) -> None:
        self.open_files()
        self.asks = self.course()
        self.go_on()

    def go_on(self) -> None:
        """Move to the next thing to do; `ask` is None at the end of the run, whatever ended it."""
        try:
            self.ask = next(self.asks, None)
        except FAILURES as error:
            self.failed(error)

    def failed(self, error: Exception) -> None:
        self.ask = None
        self.stack.hand_back(self)
        super().failed(error)

    def save(self) -> None:
        self.stack.hand_back(self)
        checkpoint.set_random_state(self.random)
        super().save()

    def hold(self) -> None:
        self.stack.hand_back(self)
        super().hold()

    def take(self, attempt: Attempt, following: int) -> None:
        """Take in what the stack measured of this lane's update."""
        self.update.attempts += 1
        self.cursor, self.outcome.epoch = following, self.epoch + 1
        try:
            self.observe(attempt)
        except FAILURES as error:
            self.failed(error)
        else:
            self.go_on()


class LaneRecord(Recorder):
    """Of every parameter of every lane: the norm of its gradient, and where asked how far it moves (see `Record`)."""

    def __init__(self, update: StackedUpdate, names: list[str], steps: bool, recurrent: bool) -> None:
        """names: of all parameters, without a gradient too. recurrent: whether to follow gradients through time."""
        self.update, self.names, self.steps = update, names, steps
        self.measured: dict[str, Tensor] = {}
        self.before: Tensor | None = None
        self.taps: dict[str, Tensor] | None = {} if recurrent and steps else None
        update.taps = self.taps

    def gradients(self, gradients: Gradients) -> None:
        self.measured["grad/layer"] = gradients.norms
        if self.steps:
            self.before = self.update.weights.matrix.detach().clone()
            self.measured["param/norm"] = lane_norms(self.update.weights.views)

    def stepped(self) -> None:
        if self.before is not None:
            moved = self.update.weights.cut(self.update.weights.matrix.detach() - self.before)
            self.measured["update/norm"] = lane_norms(moved)

    def rows(self) -> list[Layers]:
        """One record a lane."""
        given = {name: i for i, name in enumerate(self.update.names)}
        at = [given.get(name) for name in self.names]
        columns = {key: values.tolist() for key, values in self.measured.items()}
        times = [[late_to_early(row).item() for row in norms] for norms in (self.taps or {}).values()]
        made: list[Layers] = []
        for lane in range(self.update.lanes):
            layers: Layers = {k: [v[lane][i] if i is not None else None for i in at] for k, v in columns.items()}
            if self.taps is not None:
                layers["time/ratio"] = [values[lane] for values in times]
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


def pack(stats: Stats, lanes: int) -> Tensor:
    """(L, 9) float64, FIELDS."""
    return torch.stack([getattr(stats, name).double().expand(lanes) for name in FIELDS], 1)


class Stack:
    """Lanes that are at the same place of their runs, until each has ended."""

    def __init__(
        self,
        jobs: Sequence[Job],
        ended: Ended,
        used: Sequence[str] | None = None,
        beat: Callable[[int], None] = lambda updates: None,
    ) -> None:
        """jobs: their trainers are `Lane`s. ended: is told of each job's end and its exit code; beat: of updates made.

        used: names of the parameters that get a gradient; default: all.
        """
        self.jobs, self.ended, self.beat = list(jobs), ended, beat
        self.lanes: list[Lane] = [job.trainer for job in jobs]  # type: ignore[misc]
        self.update = StackedUpdate([lane.update for lane in self.lanes], [job.config for job in jobs], used)
        for lane in self.lanes:
            lane.stack = self

    def run(self) -> None:
        """Until the last lane has ended."""
        for lane in self.lanes:
            lane.begin()
        while self.lanes:
            self.close()
            if not self.lanes:
                return
            looking = [i for i, lane in enumerate(self.lanes) if lane.ask == lane.evaluate]
            if looking:
                self.evaluate(looking)
            else:
                self.one_update()

    def close(self) -> None:
        """Finish the jobs whose lanes have ended, and go on with the others."""
        done = [i for i, lane in enumerate(self.lanes) if lane.ask is None]
        if not done:
            return
        for i in done:
            job, lane = self.jobs[i], self.lanes[i]
            lane.files.close()
            self.ended(job, job.end(functools.partial(getattr, lane, "outcome")))
        left = [i for i in range(len(self.lanes)) if i not in done]
        self.jobs, self.lanes = [self.jobs[i] for i in left], [self.lanes[i] for i in left]
        if left:
            self.update.keep(torch.tensor(left, device=self.update.device))

    def hand_back(self, lane: Lane) -> None:
        """Give a lane its weights and the state of its update."""
        self.update.hand_back(self.lanes.index(lane), lane.update)

    def shared(self, of: Callable[[Lane], list[tuple[Tensor, Tensor]]]) -> list[Batch]:
        """Micro-batches of all lanes; those of the same seed have the same samples."""
        seeds = [job.config.seed for job in self.jobs]
        first = {seed: of(self.lanes[seeds.index(seed)]) for seed in dict.fromkeys(seeds)}
        if len(first) == 1:
            return [Batch(x, y, False) for x, y in first[seeds[0]]]
        rows = torch.tensor([list(first).index(seed) for seed in seeds], device=self.update.device)
        parts = zip(*first.values(), strict=True)
        return [Batch(torch.stack([x for x, _ in p])[rows], torch.stack([y for _, y in p])[rows], True) for p in parts]

    def one_update(self) -> None:
        lead = self.lanes[0]
        epoch, cursor = lead.epoch, lead.cursor
        steps = setup.steps_at(lead.config, lead.update.attempts - lead.skipped, 1)
        following = min(cursor + steps * lead.config.data.batch_size, lead.samples)

        def batches(lane: Lane) -> list[tuple[Tensor, Tensor]]:
            return [(b.inputs, b.targets) for b in lane.batches(epoch, cursor, steps)[0]]

        window: Any = self.shared(batches)
        m, number = lead.config.monitor, self.update.attempts + 1
        self.beat(len(self.lanes))
        record = None
        if m.norms(number):
            record = LaneRecord(self.update, lead.update.names, m.steps(number), bool(lead.observed.recurrent))
        scales = self.scales()
        stats = self.update(window, record) if record else self.update(window)
        self.update.taps = None
        rows = pack(stats, len(self.lanes)).tolist()
        layers = record.rows() if record else None
        for i, lane in enumerate(list(self.lanes)):
            given = RowRecord(layers[i]) if layers else Recorder()
            place = (epoch, cursor, steps, following - cursor, lane.random, scales(i), Row(rows[i]), given)
            lane.take(Attempt(*place, Row([]) if layers else None), following)

    def scales(self) -> Callable[[int], dict[str, Tensor]]:
        """The state of a lane's loss scale as it is now."""
        scale = self.update.precision.loss_scale
        if scale is None:
            return lambda lane: {}
        now, good = scale.scale, scale.growth_tracker  # replaced, never changed, by an update
        return lambda lane: {"scale": now[lane], "growth_tracker": good[lane]}

    def evaluate(self, lanes: list[int]) -> None:
        """Look at the test set with some of the lanes, as `evaluate` does with one."""
        lead = self.lanes[lanes[0]]
        if lead.unseen() is not None:
            index = torch.tensor(lanes, device=self.update.device)
            for i, measured in zip(lanes, self.measured(index, lead), strict=True):
                self.lanes[i].evaluated(measured)
        for i in lanes:
            self.lanes[i].go_on()

    @torch.no_grad()
    def measured(self, lanes: Tensor, lead: Lane) -> list[dict[str, float]]:
        """eval/loss, and eval/accuracy where there are classes, of each of these lanes."""
        update, split, loss = self.update, lead.data.test, lead.loss
        assert split is not None
        all_of_them = len(lanes) == update.lanes
        weights = [view if all_of_them else view[lanes] for view in update.weights.views]
        params = dict(zip(update.names, weights, strict=True))
        buffers = {k: v if all_of_them else v[lanes] for k, v in update.buffers.items()}

        def one(params: Any, buffers: Any, inputs: Tensor, targets: Tensor) -> tuple[Tensor, ...]:
            outputs = functional_call(update.module, (params, buffers), (inputs,))
            correct = loss.correct(outputs, targets)
            return (loss.sum(outputs, targets), *(correct or ()))

        sums: list[Any] = []
        counted = 0
        update.module.eval()
        with update.precision.arithmetic():
            for part in torch.arange(len(split), device=update.device).split(lead.evaluation_batch):
                inputs, targets = split.batch(part)
                with lane_rules(), update.precision.autocast():
                    found = vmap(one, in_dims=(0, 0, None, None))(params, buffers, inputs, targets)
                counted += int(loss.count(targets))
                sums = (
                    [a + b.double() for a, b in zip(sums, found, strict=True)] if sums else [f.double() for f in found]
                )
        update.module.train()
        total, *correct = (s.expand(len(lanes)).tolist() for s in sums)
        result = [{"eval/loss": t / counted if counted else float("nan")} for t in total]
        for r, right, of in zip(result, *correct) if correct else ():
            if of:
                r["eval/accuracy"] = right / of
        return result
