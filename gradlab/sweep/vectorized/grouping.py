"""Which jobs can be trained as lanes of one program, and why others cannot."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from gradlab.config.schema import Config
from gradlab.sweep.vectorized.planning import PlannedJob
from gradlab.update.optimizer import OptimizerOption
from gradlab.update.schedule import CustomSchedule

LANE_VALUES: dict[str, tuple[str, ...]] = {
    "optimizer": ("lr", "weight_decay", "momentum", "beta1", "beta2", "eps"),
    "schedule": ("warmup", "updates", "min_factor", "every", "gamma"),
    "precision": ("init_scale", "growth_factor", "backoff_factor", "growth_interval", "min_scale", "check_every"),
    "clip": ("max_norm", "max_value", "factor", "eps", "percentile", "z_max", "decay", "warmup"),
    "noise": ("eta", "gamma"),
    "model": ("init", "gain", "forget_bias"),  # which decide the first weights, and nothing else
}
"""Fields in which lanes may differ: those that are numbers in the arithmetic of an update, and not shapes or code."""

NOT_COMPUTED = ("seed", "expect", "objective", "story", "remedy", "diagnosis", "pretrain", "init_from", "fix", "logger")
"""Fields that a lane keeps for itself."""


def program(config: Config, plain: dict[str, Any]) -> str:
    """What lanes must have in common: jobs for which it is equal are one program. plain: the same as plain values."""
    common: dict[str, Any] = {}
    for name, value in plain.items():
        if name in NOT_COMPUTED:
            continue
        common[name] = value
        if isinstance(value, dict):
            lane = LANE_VALUES.get(name, ())
            common[name] = {k: v for k, v in value.items() if k not in lane or v is None or isinstance(v, bool)}
            common[f"{name} is"] = type(getattr(config, name)).__qualname__
    return json.dumps(common, sort_keys=True, default=str)


def alone(config: Config) -> str | None:
    """Why a job cannot be a lane; None where nothing in its configuration says so."""
    if config.pitfall is not None:
        return "a pitfall replaces parts of the update of one run"
    if getattr(config.model, "activation_checkpointing", False):
        return "model.activation_checkpointing=true"
    if config.trainer.checkpoint_blocks is not None:
        return "trainer.checkpoint_blocks"
    if config.trainer.ema is not None:
        return "trainer.ema"
    if config.optimizer.groups:
        return "optimizer.groups"
    if isinstance(config.schedule, CustomSchedule):
        return "schedule=custom is a function of one run's updates"
    if type(config.optimizer).move_ is OptimizerOption.move_:
        return "the optimizer has no rule for many runs at once"
    if config.trainer.compile:
        return "trainer.compile=true"
    if config.monitor.elements(1) or config.monitor.cost:
        return "monitor=full and monitor.cost look inside of one model"
    if config.accumulation.varies and not config.precision.stops:
        return "skipped updates would make micro-batches of one lane more than another's"
    if config.resume:
        return "resume continues one run"
    return None


def groups(jobs: Iterable[PlannedJob]) -> tuple[list[list[PlannedJob]], list[tuple[PlannedJob, str]]]:
    """Jobs by program, in the order of the first of each; those that run alone, and why."""
    together: dict[str, list[PlannedJob]] = {}
    single = []
    for job in jobs:
        if (why := alone(job.config)) is not None:
            single.append((job, why))
        else:
            together.setdefault(program(job.config, job.plain), []).append(job)
    return list(together.values()), single
