"""The model of a run that has ended, run again for its diagnosis."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import partial
from itertools import islice
from typing import Any

import torch

from gradlab.base import randomness
from gradlab.base.distributed import World
from gradlab.data.base import Split
from gradlab.data.order import window
from gradlab.data.stream import TOGETHER, by_batch, some, streamed
from gradlab.data.tree import leaves, samples
from gradlab.diagnosis.constant_answer import chosen, constant_answer, depends
from gradlab.diagnosis.inspection import Inspection, inspect_model
from gradlab.diagnosis.replay.overflow import Overflow
from gradlab.diagnosis.replay.replay import first_overflow_forward, replay
from gradlab.measure.attempt import Attempt
from gradlab.train import build
from gradlab.train.evaluation import one_pass
from gradlab.train.snapshot import copied
from gradlab.train.state import TrainerState
from gradlab.update.loss import Loss

LOOKED = 128
"""Samples besides the last ones, on which a unit is judged to be dead."""


def runs_alone(trainer: TrainerState) -> bool:
    """Whether this rank can run the model alone: SyncBatchNorm would wait for the others, and so would a part of it."""
    if trainer.sharded:
        return trainer.world.main  # there it is whole: see `assemble`
    return trainer.world.size == 1 or not any(isinstance(m, torch.nn.SyncBatchNorm) for m in trainer.module.modules())


@randomness.random_state_restored()
def inspect(trainer: TrainerState) -> Inspection | None:
    """What the model is like at the end, on a micro-batch of the last update and the first samples of its epoch."""
    if trainer.latest is None or not runs_alone(trainer) or not trainer.config.monitor.layers:
        return None
    (first, *_), _ = trainer.window_of(trainer.latest)
    if trainer.stream is not None:
        others: Iterable[Any] = islice(some(trainer.data.train), LOOKED // TOGETHER)
    else:
        at, size, world = trainer.latest, trainer.config.data.batch_size, trainer.world
        order = trainer.order(at.epoch)
        mine = window(order, at.cursor, size, at.steps, world.rank, world.size)[0][0]
        rest = order[~torch.isin(order, mine)][:LOOKED]  # those of the last update count once
        others = (trainer.data.train.batch(part) for part in rest.split(size))
    batches = [first, *others]
    found = inspect_model(
        trainer.module,
        trainer.loss,
        trainer.update.precision,
        batches,
        trainer.observed.recurrent,
        trainer.observed.order,
    )
    found.samples = min(found.samples, trainer.samples)  # a small set's last ones were among the first, too
    return found


INDEX = 1.0
"""The size of indices, which have none that could be too large."""


@randomness.random_state_restored()
def input_size(trainer: TrainerState) -> float:
    """`Measurements.input_size` of the last update."""
    layers = ((name, trainer.module.get_submodule(name)) for name in trainer.observed.order)
    first = next((m for _, m in layers if any(p.dim() > 1 for p in m.parameters(recurse=False))), None)
    if isinstance(first, torch.nn.Embedding):
        return INDEX
    if trainer.latest is None or first is None or not runs_alone(trainer):
        return math.nan
    given: list[torch.Tensor] = []
    hook = first.register_forward_pre_hook(lambda _, inputs: given.extend(leaves(inputs)))
    trainer.module.eval()
    try:
        with torch.no_grad(), trainer.update.precision.arithmetic(), trainer.update.precision.autocast():
            trainer.module(trainer.window_of(trainer.latest)[0][0][0])
    except (RuntimeError, ValueError, TypeError, IndexError):
        return math.nan
    finally:
        hook.remove()
        trainer.module.train()
    size = given[0].abs().flatten(1).amax(1).median().item() if given and given[0].dim() > 1 else math.nan
    return size if math.isfinite(size) else math.nan


OTHERS = 8
"""Updates besides the failing one whose forward pass is run with the initial weights."""


def target_size(trainer: TrainerState) -> float:
    """`Measurements.target_size` of the last update."""
    if trainer.latest is None:
        return math.nan
    targets = [t for _, batch in trainer.window_of(trainer.latest)[0] for t in leaves(batch)]
    if not targets or not all(t.is_floating_point() and t.dim() for t in targets):
        return INDEX if targets and not any(t.is_floating_point() for t in targets) else math.nan
    size = torch.cat([t.abs().flatten(1).amax(1) if t.dim() > 1 else t.abs() for t in targets]).median().item()
    return size if math.isfinite(size) else math.nan


BATCHES = 128
"""Batches of the data over which the best constant answer is sought at most."""
MEASURED = 4096
"""Batches over which its loss is measured at most: losses of the run are those of all samples."""


@randomness.random_state_restored()
def find_constant_answers(trainer: TrainerState, split: Split) -> tuple[float | None, dict[str, float], bool]:
    """Loss of the best constant answer on a split, where the loss is a function of the user's own.

    And of each of its terms that depends on the targets, by itself; and whether that answer is better than others.
    """
    size = trainer.config.data.batch_size
    order = torch.randperm(len(split), generator=torch.Generator().manual_seed(0))[: MEASURED * size]
    parts = [index for index in torch.split(order, size) if 2 * len(index) >= size] or [order]
    batches = some(split) if streamed(split) else (split.batch(index.to(split.device)) for index in parts)
    inputs, first = next(batches)
    of_all = [first, *(targets for _, targets in batches)]
    targets, others = of_all[:BATCHES], of_all[BATCHES:]
    trainer.module.eval()
    with torch.no_grad(), trainer.update.precision.arithmetic(), trainer.update.precision.autocast():
        outputs = trainer.module(inputs)
    trainer.module.train()
    found, of_terms, is_chosen = None, dict[str, float](), False
    if all(t.is_floating_point() and len(t) == samples(targets[0]) for t in leaves(outputs) if t.dim()):
        if isinstance(outputs, torch.Tensor) and isinstance(targets[0], torch.Tensor):
            found = constant_answer(trainer.loss, outputs, targets, others)
            is_chosen = found is not None and chosen(trainer.loss, outputs, first, found)
        for i, name in enumerate(trainer.loss.terms):
            term = partial(of_term, trainer.loss, i)
            if not depends(term, outputs, targets[0]):
                continue
            if (least := constant_answer(term, outputs, targets, others)) is not None:
                of_terms[name] = least
    return found, of_terms, is_chosen


def of_term(loss: Loss, i: int, outputs: Any, targets: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Sum and number of one term's losses."""
    sums, counts = loss.term_sums(outputs, targets)
    return sums[i], counts[i]


@randomness.random_state_restored()
def find_overflow(trainer: TrainerState) -> Overflow | None:
    """Run the first update of the last streak of failures again, and name the module that overflowed first.

    Where none was skipped, as where the gradients were not checked, it is the last update.
    """
    first = trainer.streak or trainer.latest
    if first is None or not runs_alone(trainer):
        return None
    randomness.set_random_state(first.random)
    precision = trainer.config.precision.build(trainer.device)
    precision.load_state_dict(first.precision)
    moved = None if trainer.failing or trainer.crash_state is None else copied(trainer.module.state_dict())
    if moved is not None and trainer.crash_state is not None:
        trainer.module.load_state_dict(trainer.crash_state["model"])
    found = replay(trainer.module, trainer.loss, precision, trainer.window_of(first)[0], trainer.world.size).first
    if found is None and first.batches:  # the data, asked again, gave others
        kept = [(b.inputs, b.targets) for b in first.batches if b.counts]
        found = replay(trainer.module, trainer.loss, precision, kept, trainer.world.size).first
    if moved is not None:
        trainer.module.load_state_dict(moved)
    if found is not None and found.phase in ("inputs", "targets"):
        found.samples = broken_samples(trainer, first, found.phase)
    return found


@randomness.random_state_restored()
def initial_overflows(trainer: TrainerState, found: Overflow) -> tuple[int, int] | None:
    """Of some micro-batches, the failing ones among them, those whose forward pass overflows with the initial weights.

    And of how many; None where it is not the forward pass that overflows, or a second model cannot be made or run.
    """
    first = trainer.streak or trainer.latest
    if first is None or found.phase not in ("forward", "between") or not runs_alone(trainer):
        return None
    try:
        return overflows_of_another(trainer, first)
    except (RuntimeError, ValueError, TypeError):  # out of memory, or of the user's model
        return None


def overflows_of_another(trainer: TrainerState, first: Attempt) -> tuple[int, int]:
    """The same, of a model with the weights that the run began with."""
    randomness.seed_all(trainer.config.seed)
    begun = build.build_model(trainer.config, trainer.data, trainer.loss, trainer.device, World()).module.train()
    size = trainer.config.data.batch_size * first.steps * trainer.world.size
    batches = trainer.window_of(first)[0]
    for cursor in range(0, min(OTHERS * size, trainer.samples - size), size):
        others = trainer.batches(first.epoch, cursor, first.steps, trainer.world.rank)[0]
        batches += [(b.inputs, b.targets) for b in others if b.counts and cursor != first.cursor]
    precision = trainer.config.precision.build(trainer.device)
    seen = [first_overflow_forward(begun, trainer.loss, precision, *batch) for batch in batches]
    return sum(o is not None and o.phase in ("forward", "between") for o in seen), len(batches)


def broken_samples(trainer: TrainerState, attempt: Attempt, what: str) -> list[int]:
    """Indices of the samples of this rank's window, as the update was given them, whose numbers are not finite."""
    place = (trainer.order(attempt.epoch), attempt.cursor, trainer.config.data.batch_size, attempt.steps)
    parts, _ = window(*place, trainer.world.rank, trainer.world.size)
    broken: list[int] = []
    for index, batch in zip(parts, attempt.batches):  # a resumed run has kept none
        for tensor in leaves(getattr(batch, what)):
            if (
                batch.counts
                and not by_batch(trainer.data.train)
                and tensor.is_floating_point()
                and len(tensor) == len(index)
            ):
                whole = torch.isfinite(tensor).reshape(len(tensor), -1).all(1).cpu()
                broken += index[~whole].tolist()
    return [trainer.place(i) for i in broken]


def find_overflow_in_evaluation(trainer: TrainerState) -> Overflow | None:
    """The first module whose output is not finite in a forward pass over the test set, by the model as it is.

    Runs as far as the first batch whose loss is not finite, and that one again, operation by operation.
    """
    split = trainer.data.test
    if split is None or not runs_alone(trainer):
        return None
    module, precision = trainer.module, trainer.update.precision
    module.eval()
    try:
        with torch.no_grad(), trainer.update.evaluated_weights():
            for inputs, targets in one_pass(split, trainer.evaluation_batch, trainer.device, World()):
                with precision.arithmetic(), precision.autocast():
                    loss = trainer.loss.sum(module(inputs), targets)
                if not bool(torch.isfinite(loss)):
                    found = first_overflow_forward(module, trainer.loss, precision, inputs, targets)
                    if found is not None:
                        found.evaluation = True
                    return found
    finally:
        module.train()
    return None
