"""The run: epochs of updates, evaluation, what is logged, checkpoints, and when it stops."""

from __future__ import annotations

import logging
import math
import os
import resource
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from gradlab import checkpoint
from gradlab.config import Config, prefixed
from gradlab.data import Splits, check, epoch_order, window
from gradlab.diagnosis.replay import Overflow, first_overflow
from gradlab.distributed import World
from gradlab.loggers.local import Lines
from gradlab.option import Invalid
from gradlab.precision import ScaleTooSmall
from gradlab.step import MicroBatch, Stats, Update

log = logging.getLogger(__name__)


class NonFiniteGradient(RuntimeError):
    """A gradient that is not finite, in a precision that does not skip."""


@dataclass
class Outcome:
    """How a run ended."""

    status: str
    """completed, failed or interrupted."""
    error: str | None = None
    attempts: int = 0
    applied: int = 0
    epoch: int = 0
    """Epochs begun."""
    epochs_completed: int = 0
    first_failed_attempt: int | None = None
    """The first update of the final streak of failures."""
    eval: list[dict[str, float]] = field(default_factory=list)
    """One entry an evaluation: epoch, eval/loss and, where there are classes, eval/accuracy."""
    seconds: float = 0.0


@dataclass
class Attempt:
    """An update under way: where in the data it began, and the random state then."""

    epoch: int
    cursor: int
    next_cursor: int
    steps: int
    samples: int
    random: dict[str, Any]
    scale: dict[str, torch.Tensor]
    host: HostCopy
    layers: HostCopy | None
    names: list[str]


class HostCopy:
    """A small tensor on its way to the host. On CUDA the copy is queued at once, and `read` waits for nothing later."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.event = None
        if tensor.is_cuda:
            pinned = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            self.tensor = pinned.copy_(tensor, non_blocking=True)
            self.event = torch.cuda.Event()
            self.event.record()
        else:
            self.tensor = tensor

    def read(self) -> list[float]:
        if self.event is not None:
            self.event.synchronize()
        return self.tensor.tolist()


FIELDS = ("loss", "grad_norm", "clip_coefficient", "clip_acted", "scale", "next_scale", "skipped", "lr", "applied")


def pack(stats: Stats) -> torch.Tensor:
    """(9,) float64: everything that a line of metrics needs, for one transfer."""
    return torch.stack([getattr(stats, name).double() for name in FIELDS])


class Trainer:
    """Runs a configuration in a folder. `sinks` receive every line of metrics on rank 0."""

    def __init__(
        self,
        config: Config,
        folder: Path,
        world: World | None = None,
        sinks: tuple[Callable[[dict[str, Any], list[float] | None], None], ...] = (),
        plain_config: dict[str, Any] | None = None,
        say: Callable[[str], None] = print,
    ) -> None:
        self.config, self.folder, self.world = config, folder, world or World()
        self.sinks, self.plain_config, self.say = sinks, plain_config or {}, say
        self.device = pick_device(config, self.world)
        deterministic(config.trainer.deterministic)
        checkpoint.seed_all(config.seed)
        try:
            self.data: Splits = config.data.load(self.device)
            check(self.data, config.data.batch_size)
        except Invalid as error:
            raise prefixed("data", error) from None
        self.model = self.build_model()
        self.samples = len(self.data.train)
        self.check_remainder()
        self.update = self.build_update()
        if self.world.rank:  # dropout draws differ between ranks
            torch.manual_seed(checkpoint.mix(config.seed, self.world.rank))
        self.epoch = self.cursor = 0
        self.order_of: tuple[int, torch.Tensor] | None = None
        self.outcome = Outcome("completed")
        self.queue: deque[Attempt] = deque()
        self.streak: Attempt | None = None
        self.clipped = self.skipped = 0
        self.warned = 1.0
        self.interrupted = threading.Event()
        self.metrics: Lines | None = None
        self.layers: Lines | None = None

    def build_model(self) -> torch.nn.Module:
        c, spec = self.config, self.data.spec
        if c.trainer.compile and c.precision.build(self.device).cpu_gemm == "fast":
            raise Invalid("trainer.compile", True, "not with precision.cpu_gemm=fast, whose products it cannot see")
        try:
            model = c.model.build(spec).to(self.device)
        except Invalid as error:
            raise prefixed("model", error) from None
        try:
            self.loss = c.loss.resolve(spec)
        except Invalid as error:
            raise prefixed("loss", error) from None
        self.module = model
        if c.init_from:
            path = Path(c.init_from)
            state = checkpoint.load("init_from", path / "checkpoint.pt" if path.is_dir() else path, self.device)
            self.load_weights("init_from", c.init_from, state)
        if not any(p.requires_grad for p in model.parameters()):
            raise Invalid("model", type(model).__name__, "has no parameter to train")
        if c.trainer.sync_batch_norm and self.world.size > 1 and self.device.type == "cuda":
            model = self.module = torch.nn.SyncBatchNorm.convert_sync_batchnorm(model)
        if c.trainer.compile:
            model = torch.compile(model)  # type: ignore[assignment]
        if self.world.size > 1:
            ids = [self.device.index] if self.device.type == "cuda" else None
            model = torch.nn.parallel.DistributedDataParallel(model, device_ids=ids, gradient_as_bucket_view=True)
        return model

    def load_weights(self, name: str, given: Any, state: dict[str, Any]) -> None:
        try:
            self.module.load_state_dict(state["model"])
        except (KeyError, RuntimeError) as error:
            lines = str(error).splitlines()
            raise Invalid(name, given, f"does not fit the model: {lines[min(1, len(lines) - 1)].strip()}") from None

    def build_update(self) -> Update:
        c = self.config
        optimizer = c.optimizer.build(self.module.parameters())
        schedule = c.schedule.resolve(self.planned_updates())
        precision = c.precision.build(self.device)
        parts = (self.model, self.loss, optimizer, schedule, precision, c.noise, c.clip)
        return Update(*parts, lr=c.optimizer.lr, halts=c.precision.stops, seed=c.seed, world=self.world)

    def steps_at(self, applied: int) -> int:
        try:
            return self.config.accumulation.steps_at(applied, self.config.data.batch_size, self.world.size)
        except Invalid as error:
            raise prefixed("accumulation", error) from None

    def planned_updates(self) -> int:
        """Updates of the whole run if none is skipped."""
        limit = self.config.trainer.updates or math.inf
        unit, updates = self.config.data.batch_size * self.world.size, 0
        for _ in range(self.config.trainer.epochs):
            cursor = 0
            if not self.config.accumulation.varies:
                updates += math.ceil(self.samples / (unit * self.steps_at(0)))
                cursor = self.samples
            while cursor < self.samples and updates < limit:
                cursor += unit * self.steps_at(updates)
                updates += 1
            if updates >= limit:
                return int(limit)
        return updates

    def check_remainder(self) -> None:
        """Batch norm cannot normalise one value a channel: find such a micro-batch before the run, not in it."""
        if not any(isinstance(m, torch.nn.modules.batchnorm._BatchNorm) for m in self.module.modules()):
            return
        size, world = self.config.data.batch_size, self.world.size
        rest = self.samples % (size * world)
        smallest = rest // world if rest else size
        if size == 1 or (rest and smallest <= 1):
            where = "every micro-batch" if size == 1 else "the last micro-batch of an epoch"
            says = f"leaves {where} one sample on a rank, which batch norm cannot normalise: take another, or no batch norm"
            raise Invalid("data.batch_size", size, f"{says} (the set has {self.samples} samples)")

    def order(self, epoch: int) -> torch.Tensor:
        """(N,) the epoch's order of samples, on the device."""
        if self.order_of is None or self.order_of[0] != epoch:
            self.order_of = epoch, epoch_order(self.samples, self.config.seed, epoch).to(self.device)
        return self.order_of[1]

    def batches(self, epoch: int, cursor: int, steps: int) -> tuple[list[MicroBatch], int]:
        """This rank's micro-batches of the window at `cursor`, and the next cursor."""
        order = self.order(epoch)
        world = self.world
        indices, following = window(order, cursor, self.config.data.batch_size, steps, world.rank, world.size)
        batches = []
        for index in indices:
            counts = index.numel() > 0
            inputs, targets = self.data.train.batch(index if counts else order[cursor : cursor + 1])
            batches.append(MicroBatch(inputs, targets, counts))
        return batches, following

    def run(self) -> Outcome:
        """Train until done, failed or interrupted. What the run measured is in its folder when this returns."""
        began = time.monotonic()
        with self.interruptible():
            self.open_files()
            try:
                self.train()
            except (ScaleTooSmall, NonFiniteGradient) as error:
                self.outcome.status, self.outcome.error = "failed", str(error)
                self.save_crash(str(error))
            finally:
                self.close_files()
        self.outcome.seconds = time.monotonic() - began
        return self.outcome

    def train(self) -> None:
        c = self.config.trainer
        self.model.train()
        self.tick = time.perf_counter()
        while self.epoch < c.epochs:
            while self.cursor < self.samples:
                if self.finished():
                    return
                self.one_update()
                if self.stop_asked():
                    self.settle(0)
                    self.save_checkpoint()
                    self.outcome.status = "interrupted"
                    return
                every = c.checkpoint_every
                if every and self.update.attempts % every == 0:
                    self.settle(0)
                    self.save_checkpoint()
            self.settle(0)
            self.epoch, self.cursor = self.epoch + 1, 0
            self.outcome.epochs_completed = self.epoch
            if c.evaluate_every and (self.epoch % c.evaluate_every == 0 or self.epoch == c.epochs):
                self.evaluate()
        self.settle(0)
        self.save_checkpoint()

    def finished(self) -> bool:
        """Whether the wanted number of updates has been applied; waits for the device only near the end."""
        limit = self.config.trainer.updates
        if limit is None or self.update.attempts - self.skipped < limit:
            return False
        self.settle(0)
        if self.update.attempts - self.skipped < limit:
            return False
        if self.config.trainer.evaluate_every:
            self.evaluate()
        self.save_checkpoint()
        return True

    def one_update(self) -> None:
        if self.config.accumulation.varies:
            self.settle(0)
        applied = self.update.attempts - self.skipped
        steps = self.steps_at(applied)
        random, scale = checkpoint.random_state(), self.update.precision.state_dict()
        batches, following = self.batches(self.epoch, self.cursor, steps)
        stats = self.update(batches)
        record = self.config.monitor.layers and (self.update.attempts - 1) % self.config.monitor.every == 0
        layers = HostCopy(stats.layer_norms) if record else None
        where = (self.epoch, self.cursor, following, steps, following - self.cursor)
        self.queue.append(Attempt(*where, random, scale, HostCopy(pack(stats)), layers, stats.names))
        self.cursor = following
        self.outcome.epoch = self.epoch + 1
        self.settle(0 if self.device.type == "cpu" else 1)

    def settle(self, lag: int) -> None:
        """Read what finished updates measured, all but the last `lag`, and act on it."""
        while len(self.queue) > lag:
            self.observe(self.queue.popleft())

    def observe(self, attempt: Attempt) -> None:
        """Log one update, keep count, and stop the run where its rules say so."""
        v = dict(zip(FIELDS, attempt.host.read(), strict=True))
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
        layers = None
        if attempt.layers is not None:
            norms = dict(zip(attempt.names, attempt.layers.read(), strict=True))
            layers = [norms.get(name) for name, _ in self.update.parameters]
        self.write(metrics, layers)
        if not skipped:
            self.streak = None
        elif self.streak is None:
            self.streak, o.first_failed_attempt = attempt, o.attempts
        self.judge(v, skipped)

    def judge(self, v: dict[str, float], skipped: bool) -> None:
        """Raise where the run must not go on."""
        p, attempts = self.config.precision, self.outcome.attempts
        where = f"update {attempts}, epoch {self.outcome.epoch}"
        if skipped and p.stops:
            raise NonFiniteGradient(f"the gradient is not finite ({where}): loss {v['loss']}, norm {v['grad_norm']}")
        scale = v["next_scale"]
        if skipped and scale < self.warned:
            self.say(f"warning: the loss scale fell to {scale:.3g} ({where})")
            self.warned = scale / 100
        if scale >= 1:
            self.warned = 1.0
        min_scale = getattr(p, "min_scale", 0.0)
        if scale < min_scale and attempts % p.check_every == 0:  # type: ignore[attr-defined]
            raise ScaleTooSmall(scale)

    def evaluate(self) -> None:
        """Mean loss, and accuracy where there are classes, over the test set; each rank takes its share."""
        split = self.data.test
        if split is None or not len(split):
            return
        self.model.eval()
        sums = torch.zeros(4, dtype=torch.float64, device=self.device)  # loss, count, correct, count
        index = torch.arange(len(split), device=self.device)[self.world.rank :: self.world.size]
        precision = self.update.precision
        with torch.no_grad(), precision.arithmetic():
            for part in index.split(max(self.config.data.batch_size, 64)):
                inputs, targets = split.batch(part)
                with precision.autocast():
                    outputs = self.module(inputs)
                    loss, count = self.loss(outputs, targets)
                correct = self.loss.correct(outputs, targets)
                sums += torch.stack([loss, count, *(correct or (torch.zeros_like(loss),) * 2)]).double()
        loss, count, correct, classified = self.world.sum_(sums).tolist()
        self.model.train()
        result = {"update": self.outcome.applied, "attempt": self.outcome.attempts, "epoch": self.epoch}
        result |= {"eval/loss": loss / count if count else math.nan}
        if classified:
            result["eval/accuracy"] = correct / classified
        self.outcome.eval.append(result)
        self.write(result | {"memory/peak_bytes": peak_memory(self.device)}, None)
        accuracy = f", accuracy {result['eval/accuracy']:.1%}" if classified else ""
        self.say(f"epoch {max(self.epoch, 1)}: eval loss {result['eval/loss']:.4g}{accuracy} (update {result['update']})")
        self.tick = time.perf_counter()

    def write(self, metrics: dict[str, Any], layers: list[float] | None) -> None:
        if self.metrics is not None:
            self.metrics.write(metrics)
        if self.layers is not None and layers is not None:
            self.layers.write({"attempt": metrics["attempt"], "grad/layer": layers})
        for sink in self.sinks:
            sink(metrics, layers)

    def open_files(self) -> None:
        keep = (0, 0)
        if self.config.resume:
            keep = self.restore(checkpoint.load("resume", Path(self.config.resume) / "checkpoint.pt", self.device))
        if not self.world.main:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        self.metrics = Lines(self.folder / "metrics.jsonl", keep[0])
        if self.config.monitor.layers:
            self.layers = Lines(self.folder / "layers.jsonl", keep[1])
            if not keep[1]:
                self.layers.write({"names": [name for name, _ in self.update.parameters]})

    def close_files(self) -> None:
        for lines in (self.metrics, self.layers):
            if lines is not None:
                lines.close()

    def save_checkpoint(self) -> None:
        """Everything that the rest of the run depends on. Each rank's random state is its own."""
        random: list[Any] = [checkpoint.random_state()]
        if self.world.size > 1:
            random = [None] * self.world.size
            torch.distributed.all_gather_object(random, checkpoint.random_state())
        if self.world.main:
            state = {
                "model": self.module.state_dict(),
                "update": self.update.state_dict(),
                "random": random,
                "position": {"epoch": self.epoch, "cursor": self.cursor},
                "counts": {"skipped": self.skipped, "clipped": self.clipped, "eval": self.outcome.eval},
                "files": [lines.flush() if lines else 0 for lines in (self.metrics, self.layers)],
                "config": self.plain_config,
            }
            checkpoint.save(self.folder / "checkpoint.pt", state)
        self.world.barrier()

    def restore(self, state: dict[str, Any]) -> tuple[int, int]:
        """Continue where a checkpoint was made; returns how much of each file stands."""
        resume = self.config.resume
        self.load_weights("resume", resume, state)
        if len(state["random"]) != self.world.size:
            given = f"was written by {len(state['random'])} ranks, and continues exactly only on as many"
            raise Invalid("resume", resume, given)
        try:
            self.update.load_state_dict(state["update"])
        except ValueError as error:
            raise Invalid("resume", resume, f"does not fit the optimizer: {error}") from None
        counts = state["counts"]
        self.epoch, self.cursor = state["position"]["epoch"], state["position"]["cursor"]
        self.skipped, self.clipped, self.outcome.eval = counts["skipped"], counts["clipped"], counts["eval"]
        self.outcome.attempts = self.update.attempts
        self.outcome.applied = self.update.attempts - self.skipped
        self.outcome.epochs_completed, self.outcome.epoch = self.epoch, self.epoch + 1
        checkpoint.set_random_state(state["random"][self.world.rank])
        keep = state["files"]
        return keep[0], keep[1]

    def save_crash(self, error: str) -> None:
        """What reproduces the first update of the final streak of failures: the weights have not moved since."""
        first = self.streak
        if first is None or not self.world.main:
            return
        batches, _ = self.batches(first.epoch, first.cursor, first.steps)
        state = {
            "error": error,
            "attempt": self.outcome.first_failed_attempt,
            "epoch": first.epoch + 1,
            "model": self.module.state_dict(),
            "update": self.update.state_dict() | {"precision": first.scale},
            "batches": [(b.inputs, b.targets) for b in batches],
            "random": first.random,
            "config": self.plain_config,
        }
        checkpoint.save(self.folder / "crash.pt", state)

    def find_overflow(self) -> Overflow | None:
        """Run the first update of the final streak again, and name the module that overflowed first."""
        first = self.streak
        if first is None:
            return None
        after = checkpoint.random_state()
        checkpoint.set_random_state(first.random)
        batches, _ = self.batches(first.epoch, first.cursor, first.steps)
        precision = self.config.precision.build(self.device)
        precision.load_state_dict(first.scale)
        found = first_overflow(self.module, self.loss, precision, [(b.inputs, b.targets) for b in batches if b.counts])
        checkpoint.set_random_state(after)
        return found

    def stop_asked(self) -> bool:
        """Whether any rank was asked to stop: all then do."""
        if self.world.size == 1:
            return self.interrupted.is_set()
        return bool(self.world.sum_(torch.tensor(int(self.interrupted.is_set()))).item())

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Ctrl-C (or SIGTERM, as a scheduler sends it) ends the run after this update; a second Ctrl-C ends it at once."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def ask(number: int, frame: Any) -> None:
            if self.interrupted.is_set():
                raise KeyboardInterrupt
            self.interrupted.set()

        before = {s: signal.signal(s, ask) for s in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def pick_device(config: Config, world: World) -> torch.device:
    """The device of this rank."""
    wanted = config.trainer.device
    if wanted == "cuda" and not torch.cuda.is_available():
        raise Invalid("trainer.device", "cuda", "no CUDA device here; cpu is")
    if wanted == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", world.local_rank % torch.cuda.device_count())


def deterministic(wanted: bool) -> None:
    """Choose deterministic kernels; where an operation has none, PyTorch warns."""
    if wanted:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.set_deterministic_debug_mode("warn" if wanted else "default")  # unlike the other switch, imports no compiler
    torch.utils.deterministic.fill_uninitialized_memory = False  # costs a write of every new tensor, decides nothing


def peak_memory(device: torch.device) -> int:
    """Bytes at most held: by tensors on a CUDA device, by the process on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
