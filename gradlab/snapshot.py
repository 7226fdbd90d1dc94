"""What a run leaves to be continued from, and what it leaves when it failed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from gradlab import checkpoint
from gradlab.diagnosis.look import Look, look_at
from gradlab.diagnosis.replay import Overflow, first_overflow
from gradlab.option import Invalid
from gradlab.setup import load_weights

if TYPE_CHECKING:
    from gradlab.attempt import Attempt
    from gradlab.trainer import Trainer


def save(run: Trainer) -> None:
    """checkpoint.pt: everything that the rest of the run depends on. Each rank's random state is its own."""
    random: list[Any] = [checkpoint.all_random_state()]
    if run.world.size > 1:
        random = [None] * run.world.size
        torch.distributed.all_gather_object(random, checkpoint.all_random_state())
    if run.world.main:
        state = {
            "model": run.module.state_dict(),
            "update": run.update.state_dict(),
            "random": random,
            "position": {"epoch": run.epoch, "cursor": run.cursor},
            "counts": {"skipped": run.skipped, "clipped": run.clipped, "eval": run.outcome.eval},
            "files": run.files.flush(),
            "config": run.plain_config,
        }
        checkpoint.save(run.folder / "checkpoint.pt", state)
    run.world.barrier()


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
    checkpoint.set_random_state(state["random"][run.world.rank])
    return state["files"]


def save_crash(run: Trainer, error: str) -> None:
    """crash.pt: what reproduces the first update of the final streak of failures; the weights have not moved since.

    None is written where an update came through at the end, as one may between two looks at the scale.
    """
    first = run.streak
    if first is None or not run.failing or not run.world.main:
        return
    o = run.outcome
    state = {
        "error": error,
        "attempt": o.first_failed_attempt,
        "epoch": first.epoch + 1,
        "model": run.module.state_dict(),
        "update": run.update.state_dict()
        | {"precision": first.precision, "attempts": (o.first_failed_attempt or 1) - 1},
        "batches": window_of(run, first),
        "random": first.random,
        "config": run.plain_config,
    }
    checkpoint.save(run.folder / "crash.pt", state)


def window_of(run: Trainer, attempt: Attempt) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Every micro-batch of an update: this rank's, then the other ranks', since the fault may be in any."""
    ranks = sorted(range(run.world.size), key=lambda rank: rank != run.world.rank)
    windows = (run.batches(attempt.epoch, attempt.cursor, attempt.steps, rank)[0] for rank in ranks)
    return [(b.inputs, b.targets) for batches in windows for b in batches if b.counts]


def runs_alone(run: Trainer) -> bool:
    """Whether one rank can run the model: SyncBatchNorm would wait for the others."""
    return run.world.size == 1 or not any(isinstance(m, torch.nn.SyncBatchNorm) for m in run.module.modules())


def last_look(run: Trainer) -> Look | None:
    """What the model is like at the end, on the window of the last update."""
    if run.latest is None or not runs_alone(run) or not run.config.monitor.layers:
        return None
    after = checkpoint.random_state()
    batches = window_of(run, run.latest)
    found = look_at(run.module, run.loss, run.update.precision, batches, run.observed.modules, run.observed.order)
    checkpoint.set_random_state(after)
    return found


def find_overflow(run: Trainer) -> Overflow | None:
    """Run the first update of the last streak of failures again, and name the module that overflowed first."""
    first = run.streak
    if first is None or not runs_alone(run):
        return None
    after = checkpoint.random_state()
    checkpoint.set_random_state(first.random)
    precision = run.config.precision.build(run.device)
    precision.load_state_dict(first.precision)
    found = first_overflow(run.module, run.loss, precision, window_of(run, first), run.world.size)
    checkpoint.set_random_state(after)
    return found
