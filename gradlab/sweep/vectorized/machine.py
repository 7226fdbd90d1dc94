"""Memory and processes of this machine."""

from __future__ import annotations

import contextlib
import ctypes
import os
from pathlib import Path
from typing import Any

import torch


def keep_memory() -> None:
    """Let the allocator keep freed memory. glibc returns large tensors to the system and faults them in again, which
    costs a stack of lanes up to half of its time. Without glibc this does nothing."""
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        for option, value in ((-4, 0), (-1, 2**31 - 1), (-2, 2**26)):  # M_MMAP_MAX, M_TRIM_THRESHOLD, M_TOP_PAD
            libc.mallopt(option, value)


def can_fork() -> bool:
    """Whether a forked process can train: threads of autograd, one for each CUDA device, do not come with it."""
    return not torch.cuda.is_available()


def spare_compiler() -> None:
    """Do not import the compiler, which takes seconds: optimizers load it only to exclude themselves from it."""
    for name in ("add_param_group", "state_dict", "load_state_dict", "zero_grad"):
        inner: Any = getattr(getattr(torch.optim.Optimizer, name), "__wrapped__", None)
        if inner is not None:
            inner.__dynamo_disable = inner  # what torch._compile asks for before it imports anything


def free_memory(device: torch.device) -> int:
    """Bytes of memory that are free."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
        free = 1024 * int(next(line for line in lines if line.startswith("MemAvailable")).split()[1])
    with contextlib.suppress(OSError, ValueError):  # a container's limit; "max" where there is none
        limit, used = (
            int(Path("/sys/fs/cgroup", f"memory.{name}").read_text(encoding="utf-8")) for name in ("max", "current")
        )
        free = min(free, limit - used)
    return max(free, 0)
