"""From a configuration to the parts of a run: device, model, update. Mistakes in the configuration are found here."""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from gradlab.base import randomness
from gradlab.base.distributed import World
from gradlab.base.option import Invalid, within
from gradlab.config.schema import Config
from gradlab.data.base import Splits
from gradlab.data.stream import by_batch
from gradlab.data.tree import shapes
from gradlab.measure.activations import recording_order
from gradlab.pitfalls.base import Setting
from gradlab.train import checkpoint, evaluation
from gradlab.train.build_data import samples_of
from gradlab.train.model_mismatch import check_batch_norm, check_classes, too_small
from gradlab.train.recompute import recompute_
from gradlab.train.unsaved_state import register_all
from gradlab.update.loss import Loss
from gradlab.update.muon import ends
from gradlab.update.schedule import Schedule
from gradlab.update.step import Update
from gradlab.update.terms import TermsUpdate
from gradlab.update.unwrapping import trained_names, unwrapped


def pick_device(config: Config, world: World) -> torch.device:
    """The device of this rank."""
    wanted = config.trainer.device
    if wanted == "cuda" and not torch.cuda.is_available():
        raise Invalid("trainer.device", "cuda", "no CUDA device here; cpu is")
    if wanted == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", world.local_rank % torch.cuda.device_count())


@contextmanager
def threads(wanted: int | None) -> Iterator[None]:
    """Run on that many CPU threads, then on as many as before."""
    before = torch.get_num_threads()
    torch.set_num_threads(wanted or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def deterministic(wanted: bool) -> None:
    """Choose deterministic kernels; where an operation has none, PyTorch warns."""
    if wanted:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.set_deterministic_debug_mode("warn" if wanted else "default")  # unlike the other switch, imports no compiler
    # Filling would cost a write of every new tensor, and decides nothing: no kernel here reads what it did not write.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


@randomness.random_state_restored()
def try_out(model: torch.nn.Module, data: Splits, loss: Loss, name: str, schedule: Schedule | None = None) -> list[str]:
    """One forward pass of two samples: a model that does not fit its data is refused here, not in the run.

    Returns the names of its modules in the order in which they are called.
    """
    training = model.training
    index = torch.arange(min(2, len(data.train)), device=data.train.device)
    inputs, targets = data.train.batch(index)
    model.eval()
    if data.train.device.type == "cuda" and (why := too_small(model, inputs)):
        raise Invalid("model", name, why)
    try:
        with torch.no_grad(), recording_order(model) as called:
            outputs = model(inputs)
            check_classes(data, loss, outputs, targets, name)  # first: on CUDA targets beyond them end the process
            loss.sum(outputs, targets)
        with torch.no_grad():
            loss.tried(model, inputs, outputs, targets)
            if schedule is not None and schedule.watched:
                schedule.check(evaluation.names(loss, outputs, targets))
    except (RuntimeError, IndexError, TypeError, ValueError) as error:
        if isinstance(error, Invalid):
            raise
        of = f"inputs of shape {shapes(inputs)}" if shapes(inputs) else f"inputs without a tensor, {str(inputs)[:50]}"
        why = f"fails on {of}: {' '.join(str(error).split())[:200]}"
        if isinstance(error, IndexError):
            why = too_small(model, inputs) or why
        raise Invalid("model", name, why) from error
    finally:
        model.train(training)
    return called


class Built(NamedTuple):
    """A model as a run begins with it.

    called: its modules as they run. late: buffers that it has from `init_from`, and not from its class.
    """

    module: torch.nn.Module
    called: list[str]
    late: Collection[str]


def build_model(config: Config, data: Splits, loss: Loss, device: torch.device, world: World) -> Built:
    """The module with the weights that the run begins with, before compilation and DDP."""
    if not data.spec.outputs and not hasattr(config.model, "target"):
        raise Invalid("data.outputs", None, "must be given: how many classes there are is not known of a stream")
    with within("model"):
        model = config.model.build(data.spec).to(device)
    called = try_out(model, data, loss, getattr(config.model, "target", type(model).__name__), config.schedule)
    if not any(p.requires_grad for p in model.parameters()):
        raise Invalid("model", type(model).__name__, "has no parameter to train")
    for place, part in model.named_modules():
        if getattr(part, "sparse", False) is True:
            why = f"must have no sparse gradients: {place or 'it'} has sparse=True"
            raise Invalid("model", type(model).__name__, why)
    late = begin_from(config.init_from, model, world) if config.init_from and not config.resume else ()
    if config.trainer.sync_batch_norm and world.size > 1 and device.type == "cuda":
        model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(model)
    if config.trainer.checkpoint_blocks is not None:
        recompute_(model, config.trainer.checkpoint_blocks, called)
    if not by_batch(data.train):
        samples = samples_of(config, data, world)
        check_batch_norm(model, data, samples, config.data.batch_size, world.size)
    return Built(model, called, late)


def begin_from(given: str, model: torch.nn.Module, world: World) -> Collection[str]:
    """Load a checkpoint's weights on rank 0; DDP sends them to the others.

    All ranks learn whether they fit, and make room for the buffers that were registered in training, which it returns.
    """
    refused: Invalid | None = None
    room: dict[str, Any] = {}
    if world.main:
        path = Path(given)
        try:
            file = path / "checkpoint.pt" if path.is_dir() else path
            state = checkpoint.load("init_from", file)
            plain = all(isinstance(value, torch.Tensor) for value in state.values())
            if not plain and "model" not in state:
                raise Invalid("init_from", file, "holds neither a state_dict nor, as model, one of a run")
            state = {"model": state} if plain else state
            load_weights("init_from", given, model, state)
            own = dict(model.named_buffers(remove_duplicate=False))
            room = {name: (own[name].shape, own[name].dtype) for name in state.get("registered", ()) if name in own}
        except Invalid as error:
            refused = error
    refused, room = world.broadcast((refused, room))
    if refused is not None:
        raise refused
    if not world.main:
        register_all(model, room, {name: torch.empty(shape, dtype=dtype) for name, (shape, dtype) in room.items()})
    return room


def load_weights(field: str, given: Any, model: torch.nn.Module, state: dict[str, Any]) -> None:
    """Raise `Invalid` where a checkpoint is of another model."""
    try:
        register_all(model, state.get("registered", ()), state["model"])
        whole, own = state["model"], model.state_dict()
        if any(hasattr(tensor, "full_tensor") for tensor in own.values()):
            from gradlab.train import fsdp

            whole = fsdp.sharded_as(whole, own)
        model.load_state_dict(whole)
    except (AttributeError, KeyError, RuntimeError) as error:
        lines = str(error).splitlines()
        raise Invalid(field, given, f"does not fit the model: {lines[min(1, len(lines) - 1)].strip()}") from None


def sharded(config: Config, world: World) -> bool:
    """Whether parameters are divided among ranks."""
    return config.trainer.parallel == "fsdp" and world.size > 1


def wrap(
    model: torch.nn.Module, called: Sequence[str], config: Config, device: torch.device, world: World
) -> torch.nn.Module:
    """Compile the model where asked, and wrap it in DDP, or divide it, where there are several ranks.

    called: its modules as they run.
    """
    if sharded(config, world):
        from gradlab.train import fsdp

        fsdp.check(config, device)
        return fsdp.shard(model, called, config, device, world)
    if config.trainer.compile:
        if config.precision.build(device).cpu_gemm == "fast":
            raise Invalid("trainer.compile", True, "not with precision.cpu_gemm=fast, whose products it cannot see")
        model = torch.compile(model)  # type: ignore[assignment]
    if world.size > 1:
        ids = [device.index] if device.type == "cuda" else None
        model = torch.nn.parallel.DistributedDataParallel(
            model,
            device_ids=ids,
            gradient_as_bucket_view=True,
            find_unused_parameters=config.trainer.find_unused_parameters,
        )
    return model


def build_update(
    config: Config,
    model: torch.nn.Module,
    called: Sequence[str],
    loss: Loss,
    samples: int,
    device: torch.device,
    world: World,
) -> Update:
    """The update of a wrapped model. called: its modules as they run."""
    with within("schedule"):
        schedule = config.schedule.resolve(planned_updates(config, samples, world.size))
    precision = config.precision.build(device)
    for name, p in model.named_parameters():
        if p.requires_grad:
            precision.check_held(name, p)
    params = list(model.parameters())
    kind: type[Update] = TermsUpdate if loss.needs_term_sums else Update
    own: list[torch.nn.Parameter] = []
    if sharded(config, world):
        from gradlab.update.sharded import ShardedTerms, ShardedUpdate, own_shard

        kind = ShardedTerms if loss.needs_term_sums else ShardedUpdate
        own = [own_shard(p) for p in params if p.requires_grad]
        kinds = (type(config.optimizer), *config.optimizer.group_optimizers().values())
        params = own if all(each.elementwise for each in kinds) else params
    with within("optimizer"):
        names = trained_names(model)
        outer = ends(unwrapped(model), called)
        optimizer = config.optimizer.build(params, names, outer)
    ema = config.trainer.ema
    if ema is not None and callable(getattr(optimizer, "eval", None)):
        raise Invalid("trainer.ema", ema, f"not with {type(optimizer).__name__}, which averages the weights itself")
    parts = (model, loss, optimizer, schedule, precision, config.noise, config.clip)
    update = kind(
        *parts,
        lr=config.optimizer.lr,
        stops=config.precision.stops,
        seed=config.seed,
        world=world,
        ema_decay=ema,
        add_parameter=partial(config.optimizer.add_parameter, optimizer, names, outer),
    )
    if own and isinstance(update, ShardedUpdate):
        update.hold_(own)
    if config.pitfall is not None:
        if loss.needs_term_sums:
            why = "not with a loss of several terms, or of a late count"
            raise Invalid("pitfall", type(config.pitfall).__name__, why)
        micro_batches = math.ceil(samples / (config.data.batch_size * world.size))
        chosen = (config.accumulation, config.loss, config.precision, config.clip, config.schedule)
        config.pitfall.apply(update, Setting(*chosen, world.size, steps_at(config, 0, world.size), micro_batches))
    return update


def steps_at(config: Config, applied: int, world_size: int) -> int:
    """Micro-batches a rank for the update that follows `applied` ones."""
    with within("accumulation"):
        return config.accumulation.steps_at(applied, config.data.batch_size, world_size)


def planned_updates(config: Config, samples: int, world_size: int) -> int:
    """Updates of the whole run if none is skipped."""
    limit = config.trainer.updates or math.inf
    unit = config.data.batch_size * world_size
    if not config.accumulation.varies:
        an_epoch = math.ceil(samples / (unit * steps_at(config, 0, world_size)))
        return int(min(limit, config.trainer.epochs * an_epoch))
    updates = 0
    for _ in range(config.trainer.epochs):
        cursor = 0
        while cursor < samples:
            if updates >= limit:
                return updates
            cursor += unit * steps_at(config, updates, world_size)
            updates += 1
    return updates
