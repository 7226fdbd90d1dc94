"""The run: epochs of updates, evaluation, what is logged, checkpoints, and when it stops."""

from __future__ import annotations

import math
import resource
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from gradlab.base import randomness
from gradlab.base.distributed import World
from gradlab.config.schema import Config
from gradlab.data.base import Split, Splits
from gradlab.data.order import epoch_order, window
from gradlab.loggers.local import RunFiles
from gradlab.measure.attempt import FIELDS, Attempt, HostCopy, pack
from gradlab.measure.record import Observed, totals
from gradlab.pitfalls.impact import Impact
from gradlab.train import build, checkpoint, snapshot
from gradlab.train.evaluation import evaluate
from gradlab.train.interrupt import Interrupt
from gradlab.update.loss import Loss
from gradlab.update.precision import ScaleTooSmall
from gradlab.update.recorder import NOTHING, Layers
from gradlab.update.step import MicroBatch

Sink = Callable[[dict[str, Any], "Layers | None"], None]
"""Receives every line of metrics, and what was recorded of every layer where it was."""


class NonFiniteGradient(RuntimeError):
    """A gradient that is not finite, in a precision that does not skip."""


class Hopeless(RuntimeError):
    """A loss that has been far above its first for so long that the rest of the run is not worth its time."""


FAILURES = (ScaleTooSmall, NonFiniteGradient, Hopeless)
"""What ends a run before its end."""


@dataclass
class Outcome:
    """How a run ended."""

    status: str = "completed"
    """completed, failed, given_up (as hopeless) or interrupted."""
    error: str | None = None
    attempts: int = 0
    """Updates tried, skipped ones included."""
    applied: int = 0
    epoch: int = 0
    """Epochs begun."""
    epochs_completed: int = 0
    first_failed_attempt: int | None = None
    """The first update of the last streak of failures."""
    first_failed_epoch: int | None = None
    """Its epoch."""
    scale_too_small: bool = False
    """Whether it was the loss scale that ended the run."""
    eval: list[dict[str, float]] = field(default_factory=list)
    """One entry an evaluation: epoch, eval/loss and, where there are classes, eval/accuracy."""
    seconds: float = 0.0


class Trainer:
    """Runs a configuration in a folder. Raises `Invalid` where the parts of the configuration do not fit together."""

    def __init__(
        self,
        config: Config,
        folder: Path,
        world: World | None = None,
        sinks: tuple[Sink, ...] = (),
        plain_config: dict[str, Any] | None = None,
        say: Callable[[str], None] = print,
        data: tuple[Splits, Loss] | None = None,
    ) -> None:
        """data: what `setup.load_data` gives, where it is at hand."""
        self.config, self.folder, self.world = config, folder, world or World()
        self.sinks, self.plain_config, self.say = sinks, plain_config or {}, say
        self.device = build.pick_device(config, self.world)
        build.deterministic(config.trainer.deterministic)
        randomness.seed_all(config.seed)
        self.data, self.loss = data or build.load_data(config, self.device)
        self.samples = len(self.data.train)
        self.module, self.called = build.build_model(config, self.data, self.loss, self.device, self.world)
        self.model = build.wrap(self.module, config, self.device, self.world)
        self.update = build.build_update(config, self.model, self.loss, self.samples, self.device, self.world)
        of_it = (self.module, self.update.names, self.update.params, self.called, config.trainer.compile)
        self.observed = Observed(config.monitor, *of_it)
        self.impact = Impact(config.pitfall, self.update) if config.pitfall else None
        if self.world.rank:  # dropout draws differ between ranks
            torch.manual_seed(randomness.mix(config.seed, self.world.rank))
        self.epoch = self.cursor = self.skipped = self.clipped = 0
        self.order_of: tuple[int, torch.Tensor] | None = None
        self.outcome = Outcome()
        self.under_way: deque[Attempt] = deque()
        self.streak: Attempt | None = None
        self.latest: Attempt | None = None
        self.failing = False
        self.held: dict[str, Any] | None = None
        """What the last streak began with, where the loss scale had fallen below 1 in it."""
        self.low = False
        """Whether the loss scale is below 1, where failures end runs: nothing runs ahead, so that they can be held."""
        self.warned = 1.0
        self.first_loss = math.nan
        self.lost = 0
        """Updates in a row whose loss was hopeless."""
        self.interrupt = Interrupt()
        self.files = RunFiles()
        self.before_saving: list[Callable[[], None]] = []
        """What has to have seen all lines by then: a run resumed from there will not show them again."""
        self.tick = time.perf_counter()

    @property
    def planned(self) -> int:
        """Updates of the whole run if none is skipped."""
        return build.planned_updates(self.config, self.samples, self.world.size)

    @property
    def scale(self) -> float:
        """The loss scale of the next update; waits for the device."""
        return self.update.precision.scale.item()

    def run(self) -> Outcome:
        """Train until done, failed or interrupted. What the run measured is in its folder when this returns."""
        began = time.monotonic()
        with self.interrupt.caught():
            self.open_files()
            try:
                for ask in self.course():
                    ask()
            except FAILURES as error:
                self.failed(error)
            finally:
                self.files.close()
        if self.impact:
            self.say(self.impact.summary())
        self.outcome.seconds = time.monotonic() - began
        return self.outcome

    def failed(self, error: Exception) -> None:
        """The run ends by one of its FAILURES."""
        self.outcome.status, self.outcome.error = "given_up" if isinstance(error, Hopeless) else "failed", str(error)
        self.outcome.scale_too_small = isinstance(error, ScaleTooSmall)
        if isinstance(error, Hopeless):
            self.save()
        else:
            snapshot.save_crash(self, str(error))

    def course(self) -> Iterator[Callable[[], None]]:
        """What there is to do from wherever the run is: `one_update`, epoch after epoch, and `evaluate`."""
        c = self.config.trainer
        self.model.train()
        if self.config.init_from and c.evaluate_every and not self.update.attempts:
            yield self.evaluate  # what it begins with
        self.tick = time.perf_counter()
        while self.epoch < c.epochs:
            while self.cursor < self.samples:
                if self.enough():
                    break
                yield self.one_update
                if self.stop_asked():
                    self.drain(0)
                    self.save()
                    self.outcome.status = "interrupted"
                    return
                if c.checkpoint_every and self.update.attempts % c.checkpoint_every == 0:
                    self.drain(0)
                    self.save()
            self.drain(0)
            ended = self.cursor >= self.samples
            last = self.enough() or (ended and self.epoch + 1 == c.epochs)
            if last:
                self.config.precision.check_scale(self.scale)
            if ended:
                self.epoch, self.cursor = self.epoch + 1, 0
                self.outcome.epochs_completed = self.epoch
            if c.evaluate_every and (last or self.epoch % c.evaluate_every == 0):
                yield self.evaluate
            if last:
                break
        self.save()

    def save(self) -> None:
        for catch_up in self.before_saving:
            catch_up()
        snapshot.save(self)

    def hold(self) -> None:
        snapshot.hold(self)

    def enough(self) -> bool:
        """Whether the wanted number of updates has been applied; waits for the device only near the end."""
        limit = self.config.trainer.updates
        if limit is None or self.update.attempts - self.skipped < limit:
            return False
        self.drain(0)
        return self.update.attempts - self.skipped >= limit

    def one_update(self) -> None:
        """Try the update of the next window, and read what earlier ones measured."""
        if self.config.accumulation.varies:
            self.drain(0)
        steps = build.steps_at(self.config, self.update.attempts - self.skipped, self.world.size)
        random, precision = randomness.random_state(), self.update.precision.state_dict()
        batches, following = self.batches(self.epoch, self.cursor, steps)
        record = self.observed.record(self.update.attempts + 1) or NOTHING
        stats, impact = self.impact(batches, record) if self.impact else (self.update(batches, record), {})
        layers = HostCopy(record.pack()) if record is not NOTHING else None
        where = (self.epoch, self.cursor, steps, following - self.cursor)
        measured = HostCopy(pack(stats))
        self.under_way.append(Attempt(*where, random, precision, measured, record, layers, impact, batches))
        self.cursor = following
        self.outcome.epoch = self.epoch + 1
        # In a streak of failures nothing may run ahead: the weights must stay those that reproduce it.
        self.drain(0 if self.device.type == "cpu" or self.failing or self.low else 1)

    def batches(self, epoch: int, cursor: int, steps: int, rank: int | None = None) -> tuple[list[MicroBatch], int]:
        """A rank's (this one's) micro-batches of the window at `cursor`, and the next cursor."""
        if self.order_of is None or self.order_of[0] != epoch:
            self.order_of = epoch, epoch_order(self.samples, self.config.seed, epoch).to(self.device)
        order, rank = self.order_of[1], self.world.rank if rank is None else rank
        indices, following = window(order, cursor, self.config.data.batch_size, steps, rank, self.world.size)
        batches = []
        for index in indices:
            counts = index.numel() > 0
            inputs, targets = self.data.train.batch(index if counts else order[cursor : cursor + 1])
            batches.append(MicroBatch(inputs, targets, counts))
        return batches, following

    def drain(self, lag: int) -> None:
        """Read what finished updates measured, all but the last `lag`, and act on it."""
        while len(self.under_way) > lag:
            self.observe(self.under_way.popleft())

    def observe(self, attempt: Attempt) -> None:
        """Log one update, keep count, and stop the run where its rules say so."""
        v = dict(zip(FIELDS, attempt.measured.read(), strict=True))
        o, skipped = self.outcome, bool(v["skipped"])
        self.latest = attempt
        o.attempts, o.applied = o.attempts + 1, int(v["applied"])
        self.skipped += skipped
        self.clipped += bool(v["clip_acted"]) and not skipped
        now = time.perf_counter()
        rate, self.tick = attempt.samples / max(now - self.tick, 1e-9), now
        metrics = {
            "update": o.applied,
            "attempt": o.attempts,
            "epoch": attempt.epoch + 1,
            "train/loss": v["loss"],
            "grad/norm": v["grad_norm"],
            "clip/coefficient": v["clip_coefficient"],
            "clip/fraction": self.clipped / max(o.applied, 1),
            "amp/scale": v["next_scale"],
            "update/skipped": skipped,
            "lr": v["lr"],
            "throughput/samples_per_second": rate,
        } | attempt.impact
        layers = None
        if attempt.layers is not None:
            layers = attempt.record.unpack(attempt.layers.read())
            metrics |= totals(layers) | attempt.record.metrics()
        self.write(metrics, layers)
        if skipped and not self.failing:
            self.streak, o.first_failed_attempt, o.first_failed_epoch = attempt, o.attempts, attempt.epoch + 1
            self.held = None
        self.failing, self.low = skipped, v["next_scale"] < 1
        if skipped and self.low and self.held is None and not self.under_way:
            self.hold()
        self.judge(v, skipped, attempt.epoch + 1)

    def judge(self, v: dict[str, float], skipped: bool, epoch: int) -> None:
        """Raise where the run must not go on; warn while the scale is on its way down."""
        p, attempts, scale = self.config.precision, self.outcome.attempts, v["next_scale"]
        where = f"update {attempts}, epoch {epoch}"
        if skipped and p.stops:
            raise NonFiniteGradient(f"the gradient is not finite ({where}): loss {v['loss']}, norm {v['grad_norm']}")
        if skipped and scale < self.warned:
            self.say(f"warning: the loss scale fell to {scale:.3g} ({where})")
            self.warned = scale / 100
        elif scale >= 1:
            self.warned = 1.0
        p.check_scale(scale, attempts)
        if (limit := self.config.trainer.hopeless) is not None:
            self.give_up(v["loss"], limit, where)

    def give_up(self, loss: float, limit: float, where: str) -> None:
        """Raise where the loss has been too high for too long."""
        if math.isnan(self.first_loss):
            self.first_loss = loss
        fine = loss <= limit * self.first_loss or self.first_loss <= 0  # no factor of a negative loss means anything
        self.lost = 0 if fine else self.lost + 1
        if self.lost >= self.config.trainer.patience:
            first, updates = self.first_loss, self.lost
            raise Hopeless(
                f"given up: for {updates} updates the loss was over {limit:g} times its first, {first:.3g} ({where})"
            )

    def evaluate(self) -> None:
        """Look at the test set, and log what is seen."""
        if (split := self.unseen()) is not None:
            parts = (self.module, split, self.loss, self.update.precision)
            self.evaluated(evaluate(*parts, self.evaluation_batch, self.world))

    @property
    def evaluation_batch(self) -> int:
        """Samples of a forward pass of the evaluation."""
        return max(self.config.data.batch_size, 64)

    def unseen(self) -> Split | None:
        """The test set; None where there is none, or it was looked at before a completed run was resumed."""
        split, done = self.data.test, self.outcome.eval
        if split is None or not len(split) or (done and done[-1]["attempt"] == self.outcome.attempts):
            return None
        return split

    def evaluated(self, measured: dict[str, float]) -> None:
        """Keep and log what an evaluation has measured."""
        result: dict[str, float] = {
            "update": self.outcome.applied,
            "attempt": self.outcome.attempts,
            "epoch": self.outcome.epoch,
        } | measured
        self.outcome.eval.append(result)
        self.write(result | {"memory/peak_bytes": peak_memory(self.device)}, None)
        accuracy = f", accuracy {measured['eval/accuracy']:.1%}" if "eval/accuracy" in measured else ""
        loss, epoch, update = measured["eval/loss"], self.outcome.epoch, self.outcome.applied
        self.say(f"epoch {epoch}: eval loss {loss:.4g}{accuracy} (update {update})")
        self.tick = time.perf_counter()

    def write(self, metrics: dict[str, Any], layers: Layers | None) -> None:
        self.files.write(metrics, layers)
        for sink in self.sinks:
            sink(metrics, layers)

    def open_files(self) -> None:
        """Open the run's files, in a resumed run where its checkpoint was made."""
        keep = [0, 0]
        if self.config.resume:
            path = Path(self.config.resume) / "checkpoint.pt"
            keep = snapshot.restore(self, checkpoint.load("resume", path, self.device))
        if self.world.main:
            self.files = RunFiles(self.folder, self.observed.header() if self.config.monitor.layers else None, keep)
            (self.folder / "crash.pt").unlink(missing_ok=True)  # of a failure before the resumption

    def stop_asked(self) -> bool:
        """Whether any rank was asked to stop: all then do."""
        if self.world.size == 1:
            return self.interrupt.asked
        return bool(self.world.sum_(torch.tensor(int(self.interrupt.asked))).item())


def peak_memory(device: torch.device) -> int:
    """Bytes at most held: by tensors on a CUDA device, by the process on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
