"""Lanes trained together: updates and evaluations of all lanes at once.

L lanes
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call, vmap

from gradlab.measure.attempt import FIELDS, Attempt
from gradlab.measure.samples import steps_shown
from gradlab.runs.job import Job
from gradlab.sweep.vectorized import sharing
from gradlab.sweep.vectorized.lane import HostValues, Lane
from gradlab.sweep.vectorized.lane_records import LaneRecord, RowRecord
from gradlab.sweep.vectorized.lane_rules import LaneRules
from gradlab.sweep.vectorized.lane_update import Batch, StackedUpdate
from gradlab.train import build
from gradlab.update.recorder import Recorder
from gradlab.update.stats import Stats

Ended = Callable[[Job, int], None]


def pack(stats: Stats, rows: int, origin: Tensor | None) -> Tensor:
    """(L, 10) float64, FIELDS. origin: of which row each row was made since the backward pass."""
    if origin is not None:
        stats = stats._replace(loss=stats.loss[origin])
    return torch.stack([getattr(stats, name).double().expand(rows) for name in FIELDS], 1)


class Stack:
    """Lanes at the same position of their runs, until each has ended."""

    def __init__(
        self,
        jobs: Sequence[Job],
        ended: Ended,
        job_failed: Callable[[Job, Exception], int],
        used: Sequence[str] | None = None,
        beat: Callable[[int], None] = lambda updates: None,
        width: int | None = None,
    ) -> None:
        """jobs: their trainers are `Lane`s. ended: gets each ended job and its exit code; beat: the number of updates.

        job_failed: gets an exception that is no failure of training, and returns the job's exit code.
        used: names of the parameters that get a gradient; default: all. width: rows that go through the model together.
        """
        self.jobs, self.ended, self.job_failed, self.beat = list(jobs), ended, job_failed, beat
        self.lanes: list[Lane] = [job.trainer for job in jobs]  # type: ignore[misc]
        configs = [job.config for job in jobs]
        self.update = StackedUpdate([lane.update for lane in self.lanes], configs, used, sharing.rows(configs))
        self.update.width = width or self.update.width
        for number, lane in enumerate(self.lanes):
            lane.restore, lane.number = self.restore, number

    def run(self) -> None:
        """Train until the last lane has ended."""
        for lane in self.lanes:
            lane.begin()
        self.close()
        while self.lanes:
            looking = [i for i, lane in enumerate(self.lanes) if lane.next_action == lane.evaluate]
            if looking:
                self.evaluate(looking)
            else:
                self.one_update()
            self.close()

    def close(self) -> None:
        """Finish the jobs whose lanes have ended, and keep the others."""
        done = [i for i, lane in enumerate(self.lanes) if lane.next_action is None]
        if not done:
            return
        for i in done:
            job, lane = self.jobs[i], self.lanes[i]
            self.ended(job, self.end(job, lane))
        self.update.without({self.lanes[i].number for i in done})
        left = [i for i in range(len(self.lanes)) if i not in done]
        self.jobs, self.lanes = [self.jobs[i] for i in left], [self.lanes[i] for i in left]

    def end(self, job: Job, lane: Lane) -> int:
        """Close a lane's files and finish its job; returns the exit code."""
        try:
            lane.outcome.seconds = time.monotonic() - lane.began
            lane.close()
            if lane.fault is not None:
                raise lane.fault
            return job.end(lambda: lane.outcome)
        except Exception as error:
            return self.job_failed(job, error)

    def restore(self, lane: Lane) -> None:
        """Write a lane's weights and the state of its update back into it."""
        self.update.restore(self.update.row_of[lane.number], lane.update)

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
        steps = build.steps_at(lead.config, lead.update.attempts - lead.skipped, 1)
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
            place = (epoch, cursor, steps, following - cursor, lane.random, scale, HostValues(rows[i]), given)
            lane.take(Attempt(*place, HostValues([]) if layers else None), following)

    def scales(self) -> Callable[[int], dict[str, Tensor]]:
        """The state of a row's loss scale as it is now."""
        scale = self.update.precision.loss_scale
        if scale is None:
            return lambda row: {}
        now, good = scale.scale, scale.growth_tracker  # replaced, never changed, by an update
        return lambda row: {"scale": now[row], "growth_tracker": good[row]}

    def evaluate(self, lanes: list[int]) -> None:
        """Evaluate some of the lanes, as `Trainer.evaluate` does one run."""
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
            self.lanes[i].advance()

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
                with steps_shown(update.module), LaneRules(), update.precision.autocast():
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
