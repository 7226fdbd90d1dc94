"""What a run leaves to be continued from, and what it leaves when it failed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from gradlab.base import randomness
from gradlab.base.option import Invalid
from gradlab.data.loader import Loader
from gradlab.data.stream import by_batch
from gradlab.measure.attempt import Attempt, HostCopy
from gradlab.train import checkpoint
from gradlab.train.build import load_weights
from gradlab.train.state import TrainerState
from gradlab.update.accumulation import Target
from gradlab.update.recorder import NOTHING

NEEDED = ("model", "update", "random", "position", "counts", "config")
"""What a run cannot be continued without."""


def load(folder: Path, device: torch.device | str = "cpu") -> dict[str, Any]:
    """The checkpoint that the run in a folder continues from."""
    return checkpoint.load("resume", folder / "checkpoint.pt", device, NEEDED)


def save(trainer: TrainerState, kept: dict[str, Any]) -> None:
    """checkpoint.pt: everything that the rest of the run depends on. Each rank's random state is its own.

    kept: what the sinks want to find there.
    """
    random = trainer.world.gather(randomness.all_random_state())
    whole = trainer.full_state()
    if trainer.world.main:
        state = whole | {
            "random": random,
            "position": {"epoch": trainer.epoch, "cursor": trainer.cursor},
            "stream": place_in_epoch(trainer),
            "registered": trainer.unsaved.registered(),
            "unsaved": trainer.unsaved.state(),
            "counts": {"skipped": trainer.skipped, "clipped": trainer.clipped, "eval": trainer.outcome.eval},
            "hopeless": {"first_loss": trainer.patience.first_loss, "lost": trainer.patience.num_hopeless},
            "streak": streak_of(trainer),
            "latest": place_of(trainer.latest) if trainer.latest else None,
            "config": trainer.plain_config,
        }
        checkpoint.save(trainer.folder / "checkpoint.pt", state | kept)
    trainer.world.barrier()


def streak_of(trainer: TrainerState) -> dict[str, Any] | None:
    """The last streak of failures, so that a run that is continued within it still leaves what reproduces it."""
    if trainer.streak is None:
        return None
    where = {"attempt": trainer.outcome.first_failed_attempt, "in_epoch": trainer.outcome.first_failed_epoch}
    return {"first": place_of(trainer.streak), "failing": trainer.failing, "held": trainer.crash_state} | where


def place_of(attempt: Attempt) -> dict[str, Any]:
    """What finds an update's window again, and runs it as it ran."""
    names = ("epoch", "cursor", "steps", "samples", "random", "precision")
    return {name: getattr(attempt, name) for name in names}


def placed(place: dict[str, Any]) -> Attempt:
    """The update of `place_of`, without its measurements."""
    return Attempt(**place, measured=HostCopy(torch.zeros(0)), record=NOTHING, layers=None)


def check_model(trainer: TrainerState, state: dict[str, Any]) -> None:
    """Raise `Invalid` where a checkpoint is of a model with other weights, naming the field that was changed."""
    own = state.get("registered", ())
    now, before = (
        {name: t.shape for name, t in made.items() if name not in own}
        for made in (trainer.module.state_dict(), state["model"])
    )
    if now == before:
        return
    keeps = "a resumed run keeps its model"
    was, given = ((config or {}).get("model") or {} for config in (state["config"], trainer.plain_config))
    for name, value in given.items():
        if was.keys() == given.keys() and was[name] != value:
            raise Invalid(f"model.{name}", value, f"must be {was[name]}, as it was: {keeps}")
    raise Invalid("resume", trainer.config.resume, f"is of another model: {keeps}")


def restore(trainer: TrainerState, state: dict[str, Any]) -> list[int]:
    """Continue where a checkpoint was made; returns how many bytes of each file stand."""
    with checkpoint.taken("resume", Path(str(trainer.config.resume), "checkpoint.pt")):
        return restored(trainer, state)


def restored(trainer: TrainerState, state: dict[str, Any]) -> list[int]:
    given = trainer.config.resume
    load_weights("resume", given, trainer.module, state)
    trainer.unsaved.load(state.get("unsaved", {}))
    try:
        trainer.update.load_state_dict(state["update"])
    except Invalid:
        raise
    except ValueError as error:
        raise Invalid("resume", given, f"does not fit the optimizer: {error}") from None
    counts, outcome = state["counts"], trainer.outcome
    trainer.epoch, trainer.cursor = state["position"]["epoch"], state["position"]["cursor"]
    trainer.skipped, trainer.clipped, outcome.eval = counts["skipped"], counts["clipped"], counts["eval"]
    outcome.attempts, outcome.applied = trainer.update.attempts, trainer.update.attempts - trainer.skipped
    outcome.epochs_completed, outcome.epoch = trainer.epoch, trainer.epoch + (trainer.cursor > 0)
    if hopeless := state.get("hopeless"):
        trainer.patience.first_loss, trainer.patience.num_hopeless = hopeless["first_loss"], hopeless["lost"]
    if streak := state.get("streak"):
        trainer.streak = placed(streak["first"])
        trainer.failing, trainer.crash_state = streak["failing"], streak["held"]
        outcome.first_failed_attempt, outcome.first_failed_epoch = streak["attempt"], streak["in_epoch"]
    if latest := state.get("latest"):
        trainer.latest = placed(latest)
    take_random_state(trainer, state)
    if isinstance(trainer.stream, Loader) and 0 < trainer.cursor < trainer.samples:
        take_place(trainer, trainer.stream, state.get("stream"))
    metrics, layers = map(int, state.get("files", [0, 0]))
    return [metrics, layers]


def place_in_epoch(trainer: TrainerState) -> dict[str, Any] | None:
    """The position of a loader that can be put back to it; None at the ends of an epoch, where none is needed."""
    stream = trainer.stream
    return stream.place() if isinstance(stream, Loader) and 0 < trainer.cursor < trainer.samples else None


def take_place(trainer: TrainerState, loader: Loader, kept: dict[str, Any] | None) -> None:
    """All ranks go on from one state: they read the same batches, of which each takes some."""
    why = loader.resume(kept) if loader.seeks and kept is not None else "its place is not in the checkpoint"
    if why:
        trainer.notes.append(f"{loader.name}: reads {trainer.cursor} batches again to come to its place: {why}")


def take_random_state(trainer: TrainerState, state: dict[str, Any]) -> None:
    """Restore each rank's own. On another number of ranks, ranks without one draw anew, and a note says so."""
    kept, world, config = state["random"], trainer.world, trainer.config
    if world.rank < len(kept):
        randomness.set_random_state(kept[world.rank])
    else:
        torch.manual_seed(randomness.mix(config.seed, world.rank, trainer.update.attempts))
    if len(kept) == world.size:
        return
    note = f"written by {len(kept)} ranks, resumed by {world.size}: what ranks draw, as for dropout, is not repeated"
    before = ((state["config"] or {}).get("data") or {}).get("batch_size", config.data.batch_size) * len(kept)
    if by_batch(trainer.data.train):
        note += f"; a micro-batch of all ranks is now made of {world.size} of the data's batches and not {len(kept)}"
    elif (now := config.data.batch_size * world.size) != before and not isinstance(config.accumulation, Target):
        note += f"; a micro-batch of all ranks is now {now} samples and not {before}: see data.batch_size"
    trainer.notes.append(note)


def keep_crash_state(trainer: TrainerState) -> None:
    """Keep a copy of what the streak under way began with: an update may come through before the run's end is noticed.

    The weights have not moved since the first update of the streak.
    """
    whole = trainer.full_state()
    # On no rank None: either all ranks ask for the full state later, or none does.
    trainer.crash_state = copied(whole) if trainer.world.main else {}


def copied(value: Any) -> Any:
    """The same nested structure with tensors of its own, on the host: a device may be nearly full."""
    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, dict):
        return {k: copied(v) for k, v in value.items()}
    return [copied(v) for v in value] if isinstance(value, list) else value


@randomness.random_state_restored()
def save_crash(trainer: TrainerState, error: str) -> None:
    """crash.pt: what reproduces the first update of the final streak of failures.

    None is written where an update came through at the end and no copy was kept: the loss scale was still above 1.
    """
    first = trainer.streak
    held = trainer.full_state() if trainer.failing else trainer.crash_state
    if first is None or held is None or not trainer.world.main:
        return
    o = trainer.outcome
    randomness.set_random_state(first.random)  # data may be drawn
    batches, ranks = trainer.window_of(first)
    random = randomness.random_state()
    state = {
        "error": error,
        "attempt": o.first_failed_attempt,
        "epoch": first.epoch + 1,
        "model": held["model"],
        "registered": trainer.unsaved.registered(),
        "update": held["update"] | {"precision": first.precision, "attempts": (o.first_failed_attempt or 1) - 1},
        "batches": batches,
        "ranks": ranks,
        "world_size": trainer.world.size,
        "device": trainer.device.type,
        "random": random,
        "config": trainer.plain_config,
    }
    checkpoint.save(trainer.folder / "crash.pt", state)
