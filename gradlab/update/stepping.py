"""An optimizer's step: applied or skipped, with which rate, and what of its groups is resumed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from gradlab.update.joined_optimizers import leaf_optimizers


def skips_in_kernel(optimizer: torch.optim.Optimizer) -> bool:
    """Whether the optimizer's kernel reads `found_inf` itself, so that the host does not wait for it."""
    every = leaf_optimizers(optimizer)
    fused = all(one.defaults.get("fused") and getattr(one, "_step_supports_amp_scaling", False) for one in every)
    return fused and bool(optimizer.param_groups[0]["params"][0].is_cuda)


def step_unless_(optimizer: torch.optim.Optimizer, skipped: torch.Tensor, in_kernel: bool) -> None:
    """Apply the update unless skipped, () float32, is 1; on the host that waits for the device."""
    if in_kernel:
        every: list[Any] = leaf_optimizers(optimizer)
        for one in every:
            one.found_inf, one.grad_scale = skipped, None
        try:
            optimizer.step()
        finally:
            for one in every:
                del one.found_inf, one.grad_scale
    elif not skipped.item():
        optimizer.step()


def lr_scales(optimizer: torch.optim.Optimizer) -> dict[str, float]:
    """The factors of the groups with a rate of their own, by what they match."""
    found = {group.get("label", ""): group.get("lr_scale", 1.0) for group in optimizer.param_groups}
    return {label: scale for label, scale in found.items() if scale != 1.0}


def set_lr_(optimizer: torch.optim.Optimizer, lr: torch.Tensor) -> None:
    """Set the rate of the next update from a () tensor; a group's is scaled."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], torch.Tensor):
            group["lr"].copy_(lr * group["lr_scale"] if "lr_scale" in group else lr)
        else:
            group["lr"] = lr.item() * group.get("lr_scale", 1.0)


def changed_settings(now: dict[str, Any], begun: dict[str, Any]) -> list[str]:
    """Names of the settings that the optimizer itself has changed in a group: its state, not its configuration."""
    others = now.keys() - {"params", "lr"}
    return sorted(k for k in others if isinstance(now[k], torch.Tensor) or now[k] != begun.get(k))


def unless(skipped: torch.Tensor, now: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
    """`before` where the update was skipped, else `now`. skipped: (), or (L,) for tensors of L lanes."""
    return torch.where(skipped.reshape(skipped.shape + (1,) * (now.dim() - skipped.dim())), before, now)


def load_optimizer(
    optimizer: torch.optim.Optimizer, state: dict[str, Any], changed: Sequence[Sequence[str]] | None
) -> None:
    """Load an optimizer's state; raise `ValueError` where its groups are others.

    changed: the settings of each group that come from the state, as the optimizer had changed them (see
    `changed_settings`); the others stay as they are configured now, such as weight_decay.
    """
    groups, given = optimizer.param_groups, state["param_groups"]
    if [g.keys() for g in groups] != [g.keys() for g in given]:
        raise ValueError("its parameter groups have other fields")
    if [g.get("names") for g in groups] != [g.get("names") for g in given]:
        raise ValueError("its parameter groups hold other parameters")
    taken = [{"params", "lr", *names} for names in changed or [()] * len(groups)]
    own = [{k: v for k, v in group.items() if k not in names} for group, names in zip(groups, taken, strict=True)]
    optimizer.load_state_dict(state)
    for group, settings in zip(optimizer.param_groups, own, strict=True):
        group.update(settings)


def keeps_second_moments(optimizer: torch.optim.Optimizer) -> bool:
    """Whether it has two decay rates and, as Adam and unlike Lion, two averages of each weight's gradient."""
    held = [p for group in optimizer.param_groups if "betas" in group for p in group["params"]]
    kept = ([v for v in optimizer.state.get(p, {}).values() if isinstance(v, torch.Tensor)] for p in held)
    return any(sum(v.shape == p.shape for v in each) >= 2 for p, each in zip(held, kept, strict=True) if p.ndim)
