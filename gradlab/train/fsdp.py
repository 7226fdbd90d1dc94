"""`trainer.parallel=fsdp`: every parameter sharded over the ranks, by PyTorch's fully_shard (FSDP2)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from gradlab.base.distributed import World, devices_shared
from gradlab.base.option import OPTIONS, Invalid
from gradlab.config.schema import Config, choices
from gradlab.train.recompute import matching
from gradlab.update.sharded import as_dtensor, local_shard


class Sharded(torch.nn.Module):
    """A sharded model, with the interface of one that is wrapped in DDP."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.module: Any = module

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Inside, gradients are kept whole; the first backward pass after it reduces them."""
        self.module.set_requires_gradient_sync(False)
        try:
            yield
        finally:
            self.module.set_requires_gradient_sync(True)


def check(config: Config, device: torch.device) -> None:
    """Raise `Invalid` for what cannot be exact, or cannot work, on shards of parameters."""
    if device.type == "cuda" and devices_shared():
        raise Invalid("trainer.parallel", "fsdp", "needs a CUDA device for each rank: these share one")
    if config.trainer.compile:
        raise Invalid("trainer.compile", True, "not with trainer.parallel=fsdp")
    if config.pitfall is not None:
        raise Invalid("trainer.parallel", "fsdp", "not with a pitfall, which is compared under ddp")
    kinds = {"optimizer": type(config.optimizer)}
    kinds |= {f"optimizer.{field}": kind for field, kind in config.optimizer.group_optimizers().items()}
    for field, kind in kinds.items():
        if not kind.shardable:
            name = next((name for (_, name), known in OPTIONS.items() if known is kind), kind.__name__)
            raise Invalid(field, name, "not with trainer.parallel=fsdp: it needs whole parameters")
    if not config.clip.shardable:
        name = choices(config).get("clip", type(config.clip).__name__)
        raise Invalid("clip", name, "not with trainer.parallel=fsdp: it reads gradients that are divided among ranks")


def shard(model: torch.nn.Module, called: Sequence[str], config: Config, device: torch.device, world: World) -> Sharded:
    """Shard a model block by block, so that one block at a time is gathered. All ranks begin with rank 0's weights."""
    t = config.trainer
    if scalar := next((name for name, p in model.named_parameters() if not p.dim()), None):
        raise Invalid("trainer.parallel", "fsdp", f"divides no parameter without dimensions, as {scalar} is")
    blocks = blocks_of(model, called, t.fsdp_blocks)
    world.share_([*(p.data for p in model.parameters()), *model.buffers()])
    how: dict[str, Any] = {"mesh": mesh_of(t.fsdp_replicas, device, world)}
    how["reshard_after_forward"] = None if t.fsdp_reshard else False
    half = config.precision.build(device).dtype
    if t.fsdp_half and half is not None:
        how["mp_policy"] = MixedPrecisionPolicy(half, reduce_dtype=torch.float32, cast_forward_inputs=False)
    for name in reversed(blocks):  # a block within a block first
        fully_shard(model.get_submodule(name), **how)
    whole: Any = fully_shard(model, **how)
    if t.find_unused_parameters:
        if not hasattr(whole, "set_reduce_scatter_unused_params"):
            raise Invalid("trainer.find_unused_parameters", True, "with fsdp needs a newer PyTorch")
        whole.set_reduce_scatter_unused_params(True)
    return Sharded(model)


def mesh_of(replicas: int, device: torch.device, world: World) -> DeviceMesh:
    """One mesh of all ranks; or as many groups of consecutive ranks, which torchrun places on one host."""
    if world.size % replicas or world.size == replicas > 1:
        why = f"must divide the {world.size} ranks into groups of two or more"
        raise Invalid("trainer.fsdp_replicas", replicas, why)
    if replicas == 1:
        return init_device_mesh(device.type, (world.size,))
    names = ("replicate", "shard")
    return init_device_mesh(device.type, (replicas, world.size // replicas), mesh_dim_names=names)


def blocks_of(model: torch.nn.Module, called: Sequence[str], pattern: str | None) -> list[str]:
    """Names of the modules that are sharded by themselves, outer ones first.

    pattern: of their names; None: the children of every ModuleList and Sequential that is not in another. Modules that
    are not called, but only hold others, are left out.
    """
    usable = [name for name in called if name and has_parameters(model.get_submodule(name))]
    if pattern is not None:
        return ordered(model, matching("trainer.fsdp_blocks", pattern, usable))
    lists = torch.nn.ModuleList, torch.nn.Sequential
    kept: list[str] = []
    for name, module in model.named_modules():
        inside = any(f"{name}.".startswith(f"{block}.") for block in kept)
        if isinstance(module, lists) and not inside:
            kept += [f"{name}.{child}".lstrip(".") for child, _ in module.named_children()]
    return ordered(model, [name for name in kept if name in usable])


def ordered(model: torch.nn.Module, names: Sequence[str]) -> list[str]:
    return [name for name, _ in model.named_modules() if name in names]


def has_parameters(module: torch.nn.Module) -> bool:
    return any(True for _ in module.parameters())


def sharded_as(state: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """Whole tensors, sharded as those of the model's own state are."""
    return {name: placed(value, own.get(name)) for name, value in state.items()}


def placed(value: Any, own: Any) -> Any:
    if not hasattr(own, "device_mesh") or value.shape != own.shape:
        return value
    return as_dtensor(local_shard(value.to(own.device), own), own)
