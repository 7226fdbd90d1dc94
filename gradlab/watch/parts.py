"""What a loop consists of, as it is handed over: looked at, and taken out of other people's wrappers."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import UninitializedParameter

SCALER = ("scale", "unscale_", "step", "update", "is_enabled")


def several(given: Any) -> list[Any]:
    return [] if given is None else list(given) if isinstance(given, (list, tuple)) else [given]


def models_of(given: Any) -> list[nn.Module]:
    models = several(given)
    for model in models:
        if not isinstance(model, nn.Module):
            raise TypeError(f"watch: model is {kind(model)}, expected a torch.nn.Module, or a list of them")
        if any(isinstance(p, UninitializedParameter) for p in model.parameters()):
            raise ValueError(f"watch: model is {kind(model)} that is not made yet: call it once before")
    if not models:
        raise TypeError("watch: model is empty, expected a torch.nn.Module, or a list of them")
    return models


def optimizers_of(given: Any) -> list[torch.optim.Optimizer]:
    optimizers = list({id(o): o for o in (bare(o) for o in several(given))}.values())
    if given is not None and not optimizers:
        raise TypeError("watch: optimizer is empty, expected a torch.optim.Optimizer, a list of them, or None")
    for optimizer in optimizers:
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise TypeError(
                f"watch: optimizer is {kind(optimizer)}, expected a torch.optim.Optimizer, or a list of them"
            )
    return optimizers


def schedules_of(given: Any) -> list[Any]:
    schedules = [s.scheduler if foreign(s) and hasattr(s, "scheduler") else s for s in several(given)]
    for schedule in schedules:
        if isinstance(schedule, (nn.Module, torch.optim.Optimizer)) or not callable(getattr(schedule, "step", None)):
            raise TypeError(f"watch: schedule is {kind(schedule)}, expected one of torch.optim.lr_scheduler, or a list")
    return schedules


def scaler_of(given: Any) -> Any:
    missing = [name for name in SCALER if not callable(getattr(given, name, None))]
    if given is not None and missing:
        raise TypeError(f"watch: scaler is {kind(given)}, expected a torch.amp.GradScaler")
    return given


def flag(name: str, given: Any) -> bool:
    if not isinstance(given, bool):
        raise TypeError(f"watch: {name} is {given!r}, expected True or False")
    return given


def count(name: str, given: Any, least: int) -> int:
    if not isinstance(given, int) or isinstance(given, bool) or given < least:
        raise ValueError(f"watch: {name} is {given!r}, expected a whole number >= {least}")
    return given


def check(called: Callable[..., Any], given: dict[str, Any], without: Sequence[str] = ()) -> None:
    """Arguments by name that do not exist are answered with the one that was meant. without: those that are given."""
    known = [name for name in inspect.signature(called).parameters if name not in ("self", *without)]
    for name in given:
        if name not in known:
            meant = get_close_matches(name, known, n=1)
            says = f"did you mean {meant[0]}?" if meant else f"there are {', '.join(known)}"
            raise TypeError(f"watch: no argument {name!r} ({says})")


def bare(given: Any) -> Any:
    """The optimizer in a wrapper, as Accelerate, Fabric, Lightning and optimizers of optimizers make them."""
    for within in vars(given).values() if hasattr(given, "__dict__") else ():
        if isinstance(within, torch.optim.Optimizer) and within is not given and shared(given, within):
            return bare(within)
    return given


def shared(outer: Any, inner: torch.optim.Optimizer) -> bool:
    """Whether two move the same parameters; what is no optimizer has none of its own."""
    if not isinstance(outer, torch.optim.Optimizer):
        return True
    ours = {id(p) for group in inner.param_groups for p in group["params"]}
    return any(id(p) in ours for group in outer.param_groups for p in group["params"])


def foreign(given: Any) -> bool:
    return type(given).__module__.startswith("accelerate.")


def kind(given: Any) -> str:
    name = type(given).__name__
    return f"{'an' if name[0] in 'AEIOUaeiou' else 'a'} {name}"


def gathers(models: Sequence[nn.Module]) -> bool:
    """Whether parameters are FullyShardedDataParallel's: their gradients are gone from a forward pass to its end."""
    return any(hasattr(part, "_fsdp_wrapped_module") for m in models for part in m.modules())


def named(models: Sequence[nn.Module]) -> dict[torch.Tensor, str]:
    """Parameter -> its name, without what wrappers add."""
    return {p: clean(name) for m in models for name, p in m.named_parameters()}


def clean(name: str) -> str:
    for part in ("_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module."):
        name = name.replace(part, "")
    return name.removeprefix("module.")
