"""The one way in which an optimizer's update is applied or skipped, and its rate set."""

from __future__ import annotations

from typing import Any

import torch

from gradlab.update.joined import leaf_optimizers


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
