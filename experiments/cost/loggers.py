"""What logging costs an update: nothing, local files, and with them TensorBoard and W&B (offline), as they come.

    python experiments/cost/loggers.py

One process trains one model; who logs changes every PERIOD updates, after which monitor and loggers repeat themselves.
So all share weights and memory, and a round of turns gives one ratio of CPU seconds each: the median of the turn's
updates, and the mean of what the calls that log and other threads take. W&B's own process is reported, and in no ratio.
Prints medians with quartiles, for people and as one JSON line a ratio. Eight minutes, on one thread. Needs
`tensorboard`.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from turns import QUIET, RESNET18, TRANSFORMER, Done, Rules, keep_memory

# turns is the first to import torch: it chooses one thread.
# isort: split
import torch

from gradlab.config.compose import compose
from gradlab.config.schema import to_config
from gradlab.loggers.base import About
from gradlab.loggers.local import RunFiles
from gradlab.loggers.options import TensorBoardOption, WandbOption
from gradlab.loggers.several import Loggers
from gradlab.train.trainer import Trainer

PERIOD = 50
"""Updates of a turn: `monitor=summary` looks at the weights' steps, and TensorBoard at the layers, once in so many."""
LEAST = 2
"""Rounds in any case: of fewer there are no quartiles."""
TARGET = 1.01
LOGGERS = {"tensorboard": TensorBoardOption, "wandb": lambda: WandbOption(mode="offline")}
CONTENDERS: dict[str, tuple[str, ...] | None] = {
    "nothing": None,
    "local files": (),
    "tensorboard": ("tensorboard",),
    "wandb": ("wandb",),
}
"""Loggers beside the local files; None: no files either."""
CASES = {"transformer": (TRANSFORMER, 200.0), "resnet18": (RESNET18, 260.0)}
Write = Callable[[dict[str, Any], Any], None]


@dataclass
class Seconds:
    """Of one turn, an update."""

    training: float
    """CPU seconds of the training's thread, but for the calls that log: the median of the turn, which other programs
    touch least. What logging costs by driving other things out of the caches is here."""
    inside: float
    """CPU seconds of the calls that log, in the training's thread."""
    beside: float
    """CPU seconds of other threads."""
    elsewhere: float
    """CPU seconds of other processes that this one has started."""

    @property
    def cpu(self) -> float:
        return self.training + self.inside + self.beside


@dataclass
class Turns:
    """Takes the place of `Trainer.write`: who logs changes every PERIOD updates."""

    writers: dict[str, Write]
    until: float
    rules: Rules
    seen: int = 0
    inside: float = 0.0
    began: tuple[float, ...] = (0.0, 0.0, 0.0)
    last: float = 0.0
    updates: list[float] = field(default_factory=list)
    measured: dict[str, list[Seconds]] = field(default_factory=dict)

    def __call__(self, metrics: dict[str, Any], layers: Any) -> None:
        if "train/loss" not in metrics:
            return
        self.rules(metrics, layers)
        names = list(self.writers)
        turn, place = divmod(self.seen, PERIOD)
        name = names[(turn + turn // len(names)) % len(names)]  # who follows whom changes
        before = time.thread_time()
        self.updates.append(before - self.last)
        self.writers[name](metrics, layers)
        self.last = time.thread_time()
        self.inside += self.last - before
        self.seen += 1
        if place == PERIOD - 1:
            self.ended(name)

    def ended(self, name: str) -> None:
        cpu, own, others = ((b - a) / PERIOD for a, b in zip(self.began, clocks(), strict=True))
        if self.seen > PERIOD * len(self.writers):  # the first round warms up
            self.measured.setdefault(name, []).append(
                Seconds(statistics.median(self.updates), self.inside / PERIOD, cpu - own, others)
            )
            rounds = {len(self.measured.get(writer, ())) for writer in self.writers}
            if time.perf_counter() > self.until and len(rounds) == 1 and min(rounds) >= LEAST:
                raise Done
        self.inside, self.updates, self.began = 0.0, [], clocks()
        self.last = time.thread_time()


def clocks() -> tuple[float, float, float]:
    """CPU seconds of this process, of this thread, and of other processes."""
    return time.process_time(), time.thread_time(), elsewhere()


def elsewhere() -> float:
    """CPU seconds of all processes that descend from this one."""
    ticks, tree = os.sysconf("SC_CLK_TCK"), {os.getpid()}
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            found[int(path.parent.name)] = int(fields[1]), (int(fields[11]) + int(fields[12])) / ticks
    for _ in found:  # generations
        more = {pid for pid, (parent, _) in found.items() if parent in tree}
        if more <= tree:
            break
        tree |= more
    return sum(found[pid][1] for pid in tree - {os.getpid()} if pid in found)


def writer(folder: Path, loggers: Loggers, header: Any) -> tuple[Write, Callable[[], None]]:
    """What a run does with a line, and what it does at its end. No line waits beyond the turn, which pays for it."""
    files = RunFiles(folder, header)

    def write(metrics: dict[str, Any], layers: Any) -> None:
        files.write(metrics, layers)
        loggers.log(metrics, layers)
        if metrics["attempt"] % PERIOD == 0:
            files.flush()
            loggers.catch_up()
            while any(logger.waiting.qsize() for logger in loggers.loggers.values() if hasattr(logger, "waiting")):
                time.sleep(0.001)  # of W&B's thread

    def end() -> None:
        files.close()
        loggers.finish({"verdict": "healthy", "sentence": "", "outcome": {"status": "completed"}}, folder)

    return write, end


def play(overrides: list[str], seconds: float) -> dict[str, list[Seconds]]:
    """Train, and measure by contender and round."""
    keep_memory()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        os.chdir(scratch)
        config = to_config(compose([*overrides, *QUIET, "trainer.epochs=1000", "trainer.evaluate_every=0"]))
        trainer = Trainer(config, Path(scratch), say=lambda text: None)
        header, writers, ends = trainer.observed.header(), {}, []
        for i, (name, chosen) in enumerate(CONTENDERS.items()):
            folder = Path(scratch, str(i))
            if chosen is None:
                writers[name] = lambda metrics, layers: None
                continue
            folder.mkdir()
            loggers = Loggers({n: LOGGERS[n]() for n in chosen}, About(folder, {}, name, layers=header))
            assert len(loggers.loggers) == len(chosen)
            writers[name], end = writer(folder, loggers, header)
            ends.append(end)
        turns = Turns(writers, time.perf_counter() + seconds, Rules(trainer))
        trainer.write = turns  # type: ignore[method-assign]
        with suppress(Done):
            trainer.run()
        for end in ends:
            end()
        os.chdir("/")
    return turns.measured


def report(model: str, measured: dict[str, list[Seconds]]) -> list[dict[str, Any]]:
    """Print what was measured; the JSON lines of the ratios."""
    bare = statistics.median(s.cpu for s in measured["nothing"])
    rounds = len(measured["nothing"])
    print(f"{model}: {rounds} rounds of {PERIOD} updates, {1e3 * bare:.2f} ms of CPU each; their ratios")
    lines = []
    for name in measured:
        inside, beside = (statistics.median(getattr(s, what) for s in measured[name]) for what in ("inside", "beside"))
        others = 1e6 * statistics.fmean(s.elsewhere for s in measured[name])
        direct = 1 + (inside + beside) / bare
        text = f"  {name}: {1e6 * inside:.0f} us in its calls and {1e6 * beside:.0f} in other threads ({direct:.4f}), "
        text += f"{others:.0f} in other processes"
        for reference in dict.fromkeys(("nothing", "local files")) if name != "nothing" else ():
            if name == reference:
                continue
            ratios = [a.cpu / b.cpu for a, b in zip(measured[name], measured[reference], strict=True)]
            low, ratio, high = statistics.quantiles(ratios, n=4, method="inclusive")
            text += f"\n    / {reference}: {ratio:.4f}, quartiles {low:.4f} to {high:.4f}"
            rounded = {key: round(value, 4) for key, value in (("ratio", ratio), ("low", low), ("high", high))}
            lines.append(
                {"name": f"{name} / {reference}, {model}", **rounded, "target": TARGET, "direct": round(direct, 4)}
            )
        print(text, flush=True)
    return lines


def main() -> None:
    os.environ["WANDB_SILENT"] = "true"
    lines = []
    for model, (overrides, seconds) in CASES.items():
        lines += report(model, play(overrides, seconds))
    for line in lines:
        print(json.dumps(line))


if __name__ == "__main__":
    main()
