"""The order of an epoch's samples and its division among micro-batches and ranks: pure functions."""

from __future__ import annotations

import hashlib

import torch

POOL = 64
"""Micro-steps in a pool, within which samples are sorted by length."""


def epoch_order(samples: int, seed: int, epoch: int) -> torch.Tensor:
    """(N,) int64 on the CPU: a permutation of the samples that depends on nothing but the arguments."""
    digest = hashlib.blake2b(f"{seed},{epoch}".encode(), digest_size=8).digest()
    # PyTorch's generator on the CPU uses 32 bits of its seed: two permutations, one after the other, use all 64.
    first, second = (
        torch.randperm(samples, generator=torch.Generator().manual_seed(int.from_bytes(half, "little")))
        for half in (digest[:4], digest[4:])
    )
    return first[second]


def bucketed(order: torch.Tensor, lengths: torch.Tensor, size: int, seed: int, epoch: int) -> torch.Tensor:
    """The same samples with those of like lengths in one micro-step of `size`; micro-steps come in random order.

    Within each pool of POOL micro-steps the samples are sorted by length. The last, smaller micro-step stays the last.
    """
    steps = [
        step
        for pool in order[: len(order) // size * size].split(POOL * size)
        for step in pool[lengths[pool].argsort(stable=True)].split(size)
    ]
    mixed = epoch_order(len(steps), seed, -1 - epoch).tolist()
    return torch.cat([*(steps[i] for i in mixed), order[len(steps) * size :]])


def window(
    order: torch.Tensor, cursor: int, batch_size: int, steps: int, rank: int, world_size: int
) -> tuple[list[torch.Tensor], int]:
    """This rank's micro-batches (indices) of the window that begins at `cursor`, and the next cursor.

    The window is the next batch_size * steps * world_size samples, or what is left of the epoch. It is cut into
    micro-steps of batch_size * world_size samples (the last may be smaller), and each of these into nearly equal
    parts, one a rank. All ranks have equally many micro-batches; in a remainder some may be empty.
    """
    end = min(cursor + batch_size * steps * world_size, order.shape[0])
    if cursor >= end:
        return [], end
    micro_steps = order[cursor:end].split(batch_size * world_size)
    return [micro_step.tensor_split(world_size)[rank] for micro_step in micro_steps], end
