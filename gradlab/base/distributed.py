"""One process among many: torchrun's environment, and the few collectives that an update needs."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import Any

import torch

from gradlab.base import restarts
from gradlab.base.parent_process import end_with_parent


@dataclass(frozen=True)
class World:
    """This process's rank in its world. A world of one needs no process group, and its collectives are identities."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    group: Any = None
    """The ranks of which sums and maxima are taken; None: all."""

    @property
    def main(self) -> bool:
        """Whether this is the rank that writes files and prints."""
        return self.rank == 0

    def sum_(self, tensor: torch.Tensor) -> torch.Tensor:
        """Sum over all ranks, in place."""
        if self.size > 1:
            torch.distributed.all_reduce(tensor, group=self.group)
        return tensor

    def max_(self, tensor: torch.Tensor) -> torch.Tensor:
        """Maximum over all ranks, in place."""
        if self.size > 1:
            torch.distributed.all_reduce(tensor, torch.distributed.ReduceOp.MAX, group=self.group)
        return tensor

    def share_(self, tensors: list[torch.Tensor]) -> None:
        """Overwrite tensors with rank 0's."""
        if self.size > 1:
            for tensor in tensors:
                torch.distributed.broadcast(tensor, src=0)

    def broadcast(self, value: Any) -> Any:
        """Rank 0's value of a small Python object."""
        if self.size == 1:
            return value
        box = [value]
        torch.distributed.broadcast_object_list(box, src=0)
        return box[0]

    def gather(self, value: Any) -> list[Any]:
        """Every rank's value of a small Python object, in the order of the ranks."""
        if self.size == 1:
            return [value]
        found = [None] * self.size
        torch.distributed.all_gather_object(found, value)
        return found

    def barrier(self) -> None:
        """Wait for all ranks."""
        if self.size > 1:
            torch.distributed.barrier()


def under_torchrun() -> bool:
    """Whether a launcher set the rank and size of a world."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def devices_shared() -> bool:
    """Whether ranks of this host have a CUDA device in common, which NCCL refuses."""
    return 0 < torch.cuda.device_count() < int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def world() -> World:
    """This process's world; joins the process group at the first call, once a process however many runs follow."""
    if not under_torchrun():
        return World()
    rank, size, local = (int(os.environ.get(name, "0")) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    if "TORCHELASTIC_RUN_ID" in os.environ:  # ranks wait for each other: left alone, they would do so for ever
        end_with_parent()
    if size > 1 and not torch.distributed.is_initialized():
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() and not devices_shared() else "gloo"
        if torch.cuda.is_available():
            torch.cuda.set_device(local % torch.cuda.device_count())
        start = restarts.start()
        if start is None:
            torch.distributed.init_process_group(backend)
        else:
            torch.distributed.init_process_group(backend, store=start.store, rank=rank, world_size=size)
    return World(rank, size, local)


def leave() -> None:
    """Leave the process group, if this process is in one."""
    group = sys.modules.get("torch.distributed")  # an import that was interrupted must not begin again
    if group is not None and getattr(group, "is_initialized", bool)():
        group.destroy_process_group()
