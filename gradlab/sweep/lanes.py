"""Runs as lanes: each keeps its own books as if it ran alone, and its arithmetic is done with that of the others.

L lanes, P parameters
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
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
from gradlab.sweep import sharing
from gradlab.sweep.kernels import lane_rules
from gradlab.sweep.update import Batch, StackedUpdate, lane_norms
from gradlab.trainer import FAILURES, Trainer

Ended = Callable[[Job, int], None]


class OnHost:
    """What a lane measured in one update, on the host already."""

    def __init__(self, values: list[float]) -> None:
        self.values = values

    def read(self) -> list[float]:
        return self.values


class Lane(Trainer):
    """A run whose updates and evaluations are made for it."""

    stack: Stack
    number: int
    """Its place in the stack as that began."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.random, self.generators = checkpoint.random_state(), checkpoint.all_random_state()
        self.fault: Exception | None = None
        """What ended it that is no failure of training, such as a full disk."""
        self.began = time.monotonic()
        self.asks: Iterator[Callable[[], None]] = iter(())
        self.ask: Callable[[], None] | None = None

    @property
    def scale(self) -> float:
        return self.latest.measured.read()[FIELDS.index("next_scale")] if self.latest else 1.0

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Whatever is raised inside ends this lane, and no other; `ask` then is None."""
        self.ask = None
        try:
            try:
                yield
            except FAILURES as error:
                self.failed(error)
        except Exception as error:
            self.fault = error

    def begin(self) -> None:
        self.began = time.monotonic()
        with self.guarded():
            self.open_files()
            self.asks = self.course()
            self.ask = next(self.asks, None)

    def go_on(self) -> None:
        """Move to the next thing to do; `ask` is None at the end of the run."""
        with self.guarded():
            self.ask = next(self.asks, None)

    def failed(self, error: Exception) -> None:
        self.stack.hand_back(self)
        super().failed(error)

    def save(self) -> None:
        self.stack.hand_back(self)
        checkpoint.set_random_state(self.generators)
        super().save()

    def hold(self) -> None:
        self.stack.hand_back(self)
        super().hold()

    def take(self, attempt: Attempt, following: int) -> None:
        """Take in what the stack measured of this lane's update."""
        self.update.attempts += 1
        self.cursor, self.outcome.epoch = following, self.epoch + 1
        with self.guarded():
            self.observe(attempt)
            self.ask = next(self.asks, None)


class LaneRecord(Recorder):
    """Of every parameter of every lane: the norm of its gradient, and where asked how far it moves (see `Record`)."""

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
                layers["time/ratio"] = [late_to_early(norms[lane]).item() for norms in times]
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


def pack(stats: Stats, rows: int, origin: Tensor | None) -> Tensor:
    """(L, 9) float64, FIELDS. origin: of which row each row was made since the backward pass."""
    if origin is not None:
        stats = stats._replace(loss=stats.loss[origin])
    return torch.stack([getattr(stats, name).double().expand(rows) for name in FIELDS], 1)


class Stack:
    """Lanes that are at the same place of their runs, until each has ended."""

    def __init__(
        self,
        jobs: Sequence[Job],
        ended: Ended,
        lost: Callable[[Job, Exception], int],
        used: Sequence[str] | None = None,
        beat: Callable[[int], None] = lambda updates: None,
        width: int | None = None,
    ) -> None:
        """jobs: their trainers are `Lane`s. ended: is told of each job's end and its exit code; beat: of updates made.

        lost: is told of what ended a job that is no failure of training, and gives the exit code.
        used: names of the parameters that get a gradient; default: all. width: rows that go through the model together.
        """
        self.jobs, self.ended, self.lost, self.beat = list(jobs), ended, lost, beat
        self.lanes: list[Lane] = [job.trainer for job in jobs]  # type: ignore[misc]
        configs = [job.config for job in jobs]
        self.update = StackedUpdate([lane.update for lane in self.lanes], configs, used, sharing.rows(configs))
        self.update.width = width or self.update.width
        for number, lane in enumerate(self.lanes):
            lane.stack, lane.number = self, number

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
            self.ended(job, self.end(job, lane))
        self.update.without({self.lanes[i].number for i in done})
        left = [i for i in range(len(self.lanes)) if i not in done]
        self.jobs, self.lanes = [self.jobs[i] for i in left], [self.lanes[i] for i in left]

    def end(self, job: Job, lane: Lane) -> int:
        """Close a lane's books; returns the job's exit code."""
        try:
            lane.outcome.seconds = time.monotonic() - lane.began
            lane.files.close()
            if lane.fault is not None:
                raise lane.fault
            return job.end(lambda: lane.outcome)
        except Exception as error:
            return self.lost(job, error)

    def hand_back(self, lane: Lane) -> None:
        """Give a lane its weights and the state of its update."""
        self.update.hand_back(self.update.row_of[lane.number], lane.update)

    def shared(self, of: Callable[[Lane], list[tuple[Tensor, Tensor]]]) -> list[Batch]:
        """Micro-batches of all rows; those of the same seed have the same samples."""
        seeds = self.update.seeds
        lanes = {lane.config.seed: lane for lane in self.lanes}
        first = {seed: of(lanes[seed]) for seed in dict.fromkeys(seeds)}
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
            record = LaneRecord(self.update, lead.update.names, m.steps(number), lead.observed.recurrent)
        scales, before = self.scales(), self.update.row_of
        stats = self.update(window, record) if record else self.update(window)
        self.update.follows_time = False
        origin, now = self.update.origin, self.update.row_of
        rows = pack(stats, self.update.lanes, origin).tolist()
        layers = record.rows(origin) if record else None
        for lane in list(self.lanes):
            i = now[lane.number]
            given = RowRecord(layers[i]) if layers else Recorder()
            scale = scales(before[lane.number])
            place = (epoch, cursor, steps, following - cursor, lane.random, scale, OnHost(rows[i]), given)
            lane.take(Attempt(*place, OnHost([]) if layers else None), following)

    def scales(self) -> Callable[[int], dict[str, Tensor]]:
        """The state of a row's loss scale as it is now."""
        scale = self.update.precision.loss_scale
        if scale is None:
            return lambda row: {}
        now, good = scale.scale, scale.growth_tracker  # replaced, never changed, by an update
        return lambda row: {"scale": now[row], "growth_tracker": good[row]}

    def evaluate(self, lanes: list[int]) -> None:
        """Look at the test set with some of the lanes, as `evaluate` does with one."""
        lead = self.lanes[lanes[0]]
        if lead.unseen() is not None:
            row_of = self.update.row_of
            rows = [row_of[self.lanes[i].number] for i in lanes]
            wanted = sorted(set(rows))
            parts = torch.tensor(wanted, device=self.update.device).split(self.update.width)
            found = [measured for part in parts for measured in self.measured(part, lead)]
            for i, row in zip(lanes, rows, strict=True):
                self.lanes[i].evaluated(found[wanted.index(row)])
        for i in lanes:
            self.lanes[i].go_on()

    @torch.no_grad()
    def measured(self, lanes: Tensor, lead: Lane, batches: int | None = None) -> list[dict[str, float]]:
        """eval/loss, and eval/accuracy where there are classes, of each of these rows.

        batches: of the test set, the first; default: all.
        """
        update, split, loss = self.update, lead.data.test, lead.loss
        if split is None or not len(split):
            return []
        params = {name: view[lanes] for name, view in zip(update.names, update.weights.views, strict=True)}
        buffers = {name: buffer[lanes] for name, buffer in update.buffers.items()}

        def one(params: Any, buffers: Any, inputs: Tensor, targets: Tensor) -> tuple[Tensor, ...]:
            outputs = functional_call(update.module, (params, buffers), (inputs,))
            correct = loss.correct(outputs, targets)
            return (loss.sum(outputs, targets), *(correct or ()))

        sums: list[Any] = []
        counted = 0
        update.module.eval()
        with update.precision.arithmetic():
            for part in torch.arange(len(split), device=update.device).split(lead.evaluation_batch)[:batches]:
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
