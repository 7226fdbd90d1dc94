"""What a run leaves to be continued from, and what it leaves when it failed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from gradlab.base import randomness
from gradlab.base.option import Invalid
from gradlab.diagnosis.inspection import Look, look_at
from gradlab.diagnosis.replay.replay import Overflow, first_overflow
from gradlab.measure.attempt import Attempt, HostCopy
from gradlab.train import checkpoint
from gradlab.train.build import load_weights
from gradlab.update.recorder import NOTHING

if TYPE_CHECKING:
    from gradlab.train.trainer import Trainer


def save(run: Trainer) -> None:
    """checkpoint.pt: everything that the rest of the run depends on. Each rank's random state is its own."""
    random: list[Any] = [randomness.all_random_state()]
    if run.world.size > 1:
        random = [None] * run.world.size
        torch.distributed.all_gather_object(random, randomness.all_random_state())
    if run.world.main:
        state = {
            "model": run.module.state_dict(),
            "update": run.update.state_dict(),
            "random": random,
            "position": {"epoch": run.epoch, "cursor": run.cursor},
            "counts": {"skipped": run.skipped, "clipped": run.clipped, "eval": run.outcome.eval},
            "streak": streak_of(run),
            "files": run.files.flush(),
            "config": run.plain_config,
        }
        checkpoint.save(run.folder / "checkpoint.pt", state)
    run.world.barrier()


def streak_of(run: Trainer) -> dict[str, Any] | None:
    """The last streak of failures, so that a run that is continued within it still leaves what reproduces it."""
    if run.streak is None:
        return None
    fields = {
        name: getattr(run.streak, name) for name in ("epoch", "cursor", "steps", "samples", "random", "precision")
    }
    where = {"attempt": run.outcome.first_failed_attempt, "in_epoch": run.outcome.first_failed_epoch}
    return {"first": fields, "failing": run.failing, "held": run.held} | where


def restore(run: Trainer, state: dict[str, Any]) -> list[int]:
    """Continue where a checkpoint was made; returns how many bytes of each file stand."""
    given = run.config.resume
    load_weights("resume", given, run.module, state)
    if len(state["random"]) != run.world.size:
        says = f"was written by {len(state['random'])} ranks, and continues exactly only on as many"
        raise Invalid("resume", given, says)
    try:
        run.update.load_state_dict(state["update"])
    except Invalid:
        raise
    except ValueError as error:
        raise Invalid("resume", given, f"does not fit the optimizer: {error}") from None
    counts, outcome = state["counts"], run.outcome
    run.epoch, run.cursor = state["position"]["epoch"], state["position"]["cursor"]
    run.skipped, run.clipped, outcome.eval = counts["skipped"], counts["clipped"], counts["eval"]
    outcome.attempts, outcome.applied = run.update.attempts, run.update.attempts - run.skipped
    outcome.epochs_completed, outcome.epoch = run.epoch, run.epoch + (run.cursor > 0)
    if streak := state.get("streak"):
        run.streak = Attempt(**streak["first"], measured=HostCopy(torch.zeros(0)), record=NOTHING, layers=None)
        run.failing, run.held = streak["failing"], streak["held"]
        outcome.first_failed_attempt, outcome.first_failed_epoch = streak["attempt"], streak["in_epoch"]
    randomness.set_random_state(state["random"][run.world.rank])
    return state["files"]


def hold(run: Trainer) -> None:
    """Keep a copy of what the streak under way began with: an update may come through before the run's end is noticed.

    The weights have not moved since the first update of the streak.
    """
    if run.world.main:
        run.held = {"model": copied(run.module.state_dict()), "update": copied(run.update.state_dict())}


def copied(value: Any) -> Any:
    """The same nested structure with tensors of its own, on the host: a device may be nearly full."""
    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, dict):
        return {k: copied(v) for k, v in value.items()}
    return [copied(v) for v in value] if isinstance(value, list) else value


def save_crash(run: Trainer, error: str) -> None:
    """crash.pt: what reproduces the first update of the final streak of failures.

    None is written where an update came through at the end and nothing was held: the loss scale was still above 1.
    """
    first = run.streak
    held = {"model": run.module.state_dict(), "update": run.update.state_dict()} if run.failing else run.held
    if first is None or held is None or not run.world.main:
        return
    o = run.outcome
    after = randomness.random_state()
    randomness.set_random_state(first.random)  # data may be drawn
    batches, ranks = window_of(run, first)
    random = randomness.random_state()
    randomness.set_random_state(after)
    state = {
        "error": error,
        "attempt": o.first_failed_attempt,
        "epoch": first.epoch + 1,
        "model": held["model"],
        "update": held["update"] | {"precision": first.precision, "attempts": (o.first_failed_attempt or 1) - 1},
        "batches": batches,
        "ranks": ranks,
        "world_size": run.world.size,
        "device": run.device.type,
        "random": random,
        "config": run.plain_config,
    }
    checkpoint.save(run.folder / "crash.pt", state)


def window_of(run: Trainer, attempt: Attempt) -> tuple[list[tuple[torch.Tensor, torch.Tensor]], list[int]]:
    """Every micro-batch of an update, this rank's, then the others', as the fault may be in any; and whose each is."""
    ranks = sorted(range(run.world.size), key=lambda rank: rank != run.world.rank)
    windows = [(rank, run.batches(attempt.epoch, attempt.cursor, attempt.steps, rank)[0]) for rank in ranks]
    counted = [(rank, b) for rank, batches in windows for b in batches if b.counts]
    return [(b.inputs, b.targets) for _, b in counted], [rank for rank, _ in counted]


def runs_alone(run: Trainer) -> bool:
    """Whether one rank can run the model: SyncBatchNorm would wait for the others."""
    return run.world.size == 1 or not any(isinstance(m, torch.nn.SyncBatchNorm) for m in run.module.modules())


def last_look(run: Trainer) -> Look | None:
    """What the model is like at the end, on the window of the last update."""
    if run.latest is None or not runs_alone(run) or not run.config.monitor.layers:
        return None
    after = randomness.random_state()
    batches, _ = window_of(run, run.latest)
    found = look_at(run.module, run.loss, run.update.precision, batches, run.observed.modules, run.observed.order)
    randomness.set_random_state(after)
    return found


def find_overflow(run: Trainer) -> Overflow | None:
    """Run the first update of the last streak of failures again, and name the module that overflowed first.

    Where none was skipped, as where nobody looked at the gradients, it is the last update.
    """
    first = run.streak or run.latest
    if first is None or not runs_alone(run):
        return None
    after = randomness.random_state()
    randomness.set_random_state(first.random)
    precision = run.config.precision.build(run.device)
    precision.load_state_dict(first.precision)
    moved = None if run.failing or run.held is None else copied(run.module.state_dict())
    if moved is not None and run.held is not None:
        run.module.load_state_dict(run.held["model"])
    found = first_overflow(run.module, run.loss, precision, window_of(run, first)[0], run.world.size)
    if found is None and first.batches:  # the data, asked once more, gave others
        kept = [(b.inputs, b.targets) for b in first.batches if b.counts]
        found = first_overflow(run.module, run.loss, precision, kept, run.world.size)
    if moved is not None:
        run.module.load_state_dict(moved)
    randomness.set_random_state(after)
    return found
