"""The run: epochs of updates, evaluation, what is logged, checkpoints, and when it stops."""

from __future__ import annotations

import resource
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from gradlab.base import randomness
from gradlab.base.distributed import World
from gradlab.base.visible import listed
from gradlab.config.schema import Config
from gradlab.data.base import Splits
from gradlab.data.tree import samples
from gradlab.measure.attempt import FIELDS, Attempt, HostCopy, pack
from gradlab.measure.record import totals
from gradlab.pitfalls.impact import Impact
from gradlab.train import build, snapshot
from gradlab.train.evaluation import evaluate
from gradlab.train.interrupt import Interrupt
from gradlab.train.outcome import FAILURES, Hopeless, NonFiniteGradient, Outcome
from gradlab.train.sink import Sink
from gradlab.train.state import TrainerState
from gradlab.update.loss import Loss
from gradlab.update.precision import ScaleTooSmall
from gradlab.update.recorder import NOTHING, Layers
from gradlab.update.stepping import lr_scales


class Trainer(TrainerState):
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
        """sinks: what follows the run, such as the writer of its files. data: see `TrainerState`."""
        super().__init__(config, folder, world, plain_config, data)
        self.sinks, self.say = sinks, say
        self.impact = Impact(config.pitfall, self.update) if config.pitfall else None
        self.under_way: deque[Attempt] = deque()
        self.scale_below_one = False
        """Whether the loss scale is below 1, where failures end runs: nothing runs ahead, so that it can be copied."""
        self.warned = 1.0
        self.lr_scales = lr_scales(self.update.optimizer)
        self.thawed = 0
        """Parameters of which it was said that they were unfrozen."""
        self.interrupt = Interrupt()
        self.tick = time.perf_counter()

    def run(self) -> Outcome:
        """Train until done, failed or interrupted. What the run measured is in its folder when this returns."""
        began = time.monotonic()
        self.folder.mkdir(parents=True, exist_ok=True)
        with self.interrupt.caught():
            self.begin()
            try:
                for action in self.actions():
                    action()
            except FAILURES as error:
                self.failed(error)
            finally:
                self.close()
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

    def actions(self) -> Iterator[Callable[[], None]]:
        """What is left to do from the position of the run on: `one_update`, epoch after epoch, and `evaluate`."""
        c = self.config.trainer
        self.model.train()
        if self.config.init_from and c.evaluate_every and not self.update.attempts:
            yield self.evaluate  # what it begins with
        self.tick = time.perf_counter()
        while self.epoch < c.epochs:
            while self.cursor < self.samples:
                if self.reached_limit():
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
            last = self.reached_limit() or (ended and self.epoch + 1 == c.epochs)
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
        for note in self.unsaved.notes():
            self.say(note)
        kept: dict[str, Any] = {}
        for sink in self.sinks:
            kept |= sink.save()
        snapshot.save(self, kept)

    def keep_crash_state(self) -> None:
        snapshot.keep_crash_state(self)

    def reached_limit(self) -> bool:
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
        self.say_thawed()
        layers = HostCopy(record.pack()) if record is not NOTHING else None
        taken = following - self.cursor
        if self.stream is not None:  # a loader's places are of batches
            taken = sum(samples(b.inputs) for b in batches if b.counts) * self.world.size
        where = (self.epoch, self.cursor, steps, taken)
        measured = HostCopy(pack(stats))
        self.under_way.append(Attempt(*where, random, precision, measured, record, layers, impact, batches))
        self.cursor = following
        self.outcome.epoch = self.epoch + 1
        # In a streak of failures nothing may run ahead: the weights must stay those that reproduce it.
        self.drain(0 if self.device.type == "cpu" or self.failing or self.scale_below_one else 1)

    def say_thawed(self) -> None:
        """Tell which parameters were unfrozen in this update."""
        if names := self.update.thawed[self.thawed :]:
            self.thawed += len(names)
            self.lr_scales = lr_scales(self.update.optimizer)
            were = f"{len(names)} parameters were" if len(names) > 1 else "1 parameter was"
            how = f"unfrozen, and trained from here on, not recorded alone: {listed(names)}"
            self.say(f"update {self.update.attempts}: {were} {how}")

    def drain(self, lag: int) -> None:
        """Read what finished updates measured, all but the last `lag`, and act on it."""
        while len(self.under_way) > lag:
            self.observe(self.under_way.popleft())

    def observe(self, attempt: Attempt) -> None:
        """Log one update, keep count, and stop the run where its rules say so."""
        terms = [f"train/loss/{name}" for name in self.loss.terms]
        v = dict(zip((*FIELDS, *terms), attempt.measured.read(), strict=True))
        o, skipped = self.outcome, bool(v["skipped"])
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
        }
        metrics |= {f"lr/{label}": v["lr"] * scale for label, scale in self.lr_scales.items()} | attempt.impact
        metrics |= {name: v[name] for name in terms}
        layers = None
        if attempt.layers is not None:
            layers = attempt.record.unpack(attempt.layers.read())
            metrics |= totals(layers) | attempt.record.metrics()
        if v["empty"]:  # nothing was tried: no streak of failures begins or ends
            self.write(metrics | {"update/empty": True}, layers)
            return
        self.latest = attempt
        self.write(metrics, layers)
        if skipped and not self.failing:
            self.streak, o.first_failed_attempt, o.first_failed_epoch = attempt, o.attempts, attempt.epoch + 1
            self.crash_state = None
        self.failing, self.scale_below_one = skipped, v["next_scale"] < 1
        if skipped and self.scale_below_one and self.crash_state is None and not self.under_way:
            self.keep_crash_state()
        self.judge(v, skipped, attempt.epoch + 1)

    def judge(self, v: dict[str, float], skipped: bool, epoch: int) -> None:
        """Raise where the run must end; warn while the scale is on its way down."""
        p, attempts, scale = self.config.precision, self.outcome.attempts, v["next_scale"]
        where = f"update {attempts}, epoch {epoch}"
        if skipped and p.stops:
            numbers = f"loss {v['loss']:.4g}, norm {v['grad_norm']:.4g}"
            raise NonFiniteGradient(f"the gradient is not finite ({where}): {numbers}")
        if skipped and scale < self.warned:
            self.say(f"warning: the loss scale fell to {scale:.3g} ({where})")
            self.warned = scale / 100
        elif scale >= 1:
            self.warned = 1.0
        p.check_scale(scale, attempts)
        self.patience.follow(v["loss"], where)

    def evaluate(self) -> None:
        """Evaluate on the test set, and log the result."""
        if (split := self.unseen()) is not None:
            parts = (self.module, split, self.loss, self.update.precision)
            with self.update.evaluated_weights():
                measured = evaluate(*parts, self.evaluation_batch, self.world, together=self.sharded)
            self.evaluated(measured)

    def evaluated(self, measured: dict[str, float]) -> None:
        """Keep and log what an evaluation has measured."""
        result: dict[str, float] = {
            "update": self.outcome.applied,
            "attempt": self.outcome.attempts,
            "epoch": self.outcome.epoch,
        } | measured
        self.outcome.eval.append(result)
        self.write(result | {"memory/peak_bytes": peak_memory(self.device)}, None)
        self.update.schedule.observe(measured)
        accuracy = f", accuracy {measured['eval/accuracy']:.1%}" if "eval/accuracy" in measured else ""
        loss, epoch, update = measured["eval/loss"], self.outcome.epoch, self.outcome.attempts
        skipped = f", {update - self.outcome.applied} of them skipped" * (update > self.outcome.applied)
        self.say(f"epoch {epoch}: eval loss {loss:.4g}{accuracy} (update {update}{skipped})")
        self.tick = time.perf_counter()

    def write(self, metrics: dict[str, Any], layers: Layers | None) -> None:
        for sink in self.sinks:
            sink.write(metrics, layers)

    def begin(self) -> None:
        """Where the run is resumed, take up what its checkpoint holds; then the sinks begin."""
        kept = [0, 0]
        if self.config.resume:
            device = "cpu" if self.sharded else self.device  # the whole may be more than one device holds
            kept = snapshot.restore(self, snapshot.load(Path(self.config.resume), device))
            self.thawed = len(self.update.thawed)
            self.lr_scales = lr_scales(self.update.optimizer)
        for sink in self.sinks:
            sink.begin(self, kept)
        for note in (*self.notes, *self.data.notes, self.loss.weighting):
            if note:
                self.say(note)
        if self.world.main:
            (self.folder / "crash.pt").unlink(missing_ok=True)  # of a failure before the resumption

    def close(self) -> None:
        if self.feed is not None:
            self.feed.close()
        for sink in self.sinks:
            sink.close()

    def stop_asked(self) -> bool:
        """Whether any rank was asked to stop: all then do."""
        if self.world.size == 1:
            return self.interrupt.asked
        return bool(self.world.sum_(torch.tensor(int(self.interrupt.asked))).item())


def peak_memory(device: torch.device) -> int:
    """Peak memory in bytes: by tensors on a CUDA device, by the process on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
