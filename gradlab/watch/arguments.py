"""The arguments of a watch: checked, and unwrapped from other libraries' wrappers."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import UninitializedParameter

SCALER_METHODS = ("scale", "unscale_", "step", "update", "is_enabled")
WRAPPER_PREFIXES = ("_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module.")
"""What torch.compile, FSDP and activation checkpointing insert into parameter names."""


def as_list(given: Any) -> list[Any]:
    return [] if given is None else list(given) if isinstance(given, (list, tuple)) else [given]


def checked_models(given: Any) -> list[nn.Module]:
    models = as_list(given)
    for model in models:
        if not isinstance(model, nn.Module):
            raise TypeError(f"watch: model is {type_name(model)}, expected a torch.nn.Module, or a list of them")
        if any(isinstance(p, UninitializedParameter) for p in model.parameters()):
            raise ValueError(f"watch: model is {type_name(model)} with uninitialized parameters: call it once before")
    if not models:
        raise TypeError("watch: model is empty, expected a torch.nn.Module, or a list of them")
    return models


def checked_optimizers(given: Any) -> list[torch.optim.Optimizer]:
    optimizers = list({id(o): o for o in (unwrapped(o) for o in as_list(given))}.values())
    if given is not None and not optimizers:
        raise TypeError("watch: optimizer is empty, expected a torch.optim.Optimizer, a list of them, or None")
    for optimizer in optimizers:
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise TypeError(
                f"watch: optimizer is {type_name(optimizer)}, expected a torch.optim.Optimizer, or a list of them"
            )
    return optimizers


def checked_schedules(given: Any) -> list[Any]:
    schedules = [s.scheduler if is_accelerate(s) and hasattr(s, "scheduler") else s for s in as_list(given)]
    for schedule in schedules:
        if isinstance(schedule, (nn.Module, torch.optim.Optimizer)) or not callable(getattr(schedule, "step", None)):
            raise TypeError(
                f"watch: schedule is {type_name(schedule)}, expected one of torch.optim.lr_scheduler, or a list"
            )
    return schedules


def checked_scaler(given: Any) -> Any:
    missing = [name for name in SCALER_METHODS if not callable(getattr(given, name, None))]
    if given is not None and missing:
        raise TypeError(f"watch: scaler is {type_name(given)}, expected a torch.amp.GradScaler")
    return given


def checked_flag(name: str, given: Any) -> bool:
    if not isinstance(given, bool):
        raise TypeError(f"watch: {name} is {given!r}, expected True or False")
    return given


def checked_count(name: str, given: Any, least: int) -> int:
    if not isinstance(given, int) or isinstance(given, bool) or given < least:
        raise ValueError(f"watch: {name} is {given!r}, expected a whole number >= {least}")
    return given


def check_names(called: Callable[..., Any], given: Mapping[str, object], without: Sequence[str] = ()) -> None:
    """Raise a TypeError that suggests a name, for a keyword argument that does not exist.

    without: parameters of the call that may not be given by name.
    """
    known = [name for name in inspect.signature(called).parameters if name not in ("self", *without)]
    for name in given:
        if name not in known:
            close = get_close_matches(name, known, n=1)
            hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(known)}"
            raise TypeError(f"watch: no argument {name!r} ({hint})")


def unwrapped(given: Any) -> Any:
    """The optimizer inside a wrapper of Accelerate, Fabric or Lightning, or inside an optimizer of optimizers."""
    for inner in vars(given).values() if hasattr(given, "__dict__") else ():
        if isinstance(inner, torch.optim.Optimizer) and inner is not given and shares_parameters(given, inner):
            return unwrapped(inner)
    return given


def shares_parameters(outer: Any, inner: torch.optim.Optimizer) -> bool:
    """Whether two optimizers move the same parameters; a wrapper that is no optimizer has none of its own."""
    if not isinstance(outer, torch.optim.Optimizer):
        return True
    ids = {id(p) for group in inner.param_groups for p in group["params"]}
    return any(id(p) in ids for group in outer.param_groups for p in group["params"])


def is_accelerate(given: Any) -> bool:
    return type(given).__module__.startswith("accelerate.")


def type_name(given: Any) -> str:
    """With an article, for a message."""
    name = type(given).__name__
    return f"{'an' if name[0] in 'AEIOUaeiou' else 'a'} {name}"


def is_fsdp1(models: Sequence[nn.Module]) -> bool:
    """Whether parameters belong to FullyShardedDataParallel: their gradients are absent from the start of a forward
    pass to the end of its backward pass."""
    return any(hasattr(part, "_fsdp_wrapped_module") for m in models for part in m.modules())


def parameter_names(models: Sequence[nn.Module]) -> dict[torch.Tensor, str]:
    """Parameter -> its name, without what wrappers insert."""
    return {p: without_wrappers(name) for m in models for name, p in m.named_parameters()}


def without_wrappers(name: str) -> str:
    for part in WRAPPER_PREFIXES:
        name = name.replace(part, "")
    return name.removeprefix("module.")
