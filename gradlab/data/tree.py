"""Batches of any shape: a tensor, or mappings, tuples, lists and dataclasses of them, nested."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch


def mapped(function: Callable[[torch.Tensor], torch.Tensor], tree: Any) -> Any:
    """The same tree with the function of every tensor; a mapping becomes a dict, and what is no tensor stays."""
    if isinstance(tree, torch.Tensor):
        return function(tree)
    if isinstance(tree, Mapping):
        return {name: mapped(function, inner) for name, inner in tree.items()}
    if isinstance(tree, tuple | list):
        inner = [mapped(function, each) for each in tree]
        return type(tree)(*inner) if hasattr(tree, "_fields") else type(tree)(inner)
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        return dataclasses.replace(tree, **{k: mapped(function, v) for k, v in vars(tree).items()})
    return tree


def leaves(tree: Any) -> Iterator[torch.Tensor]:
    """The tensors of a tree."""
    found: list[torch.Tensor] = []
    mapped(lambda tensor: found.append(tensor) or tensor, tree)  # type: ignore[func-returns-value]
    yield from found


def first(tree: Any) -> torch.Tensor:
    """The first tensor of a tree."""
    return next(leaves(tree))


def samples(tree: Any) -> int:
    """B, the samples of a batch: rows of its first tensor that has any."""
    return next((t.shape[0] for t in leaves(tree) if t.dim()), 1)


def shapes(tree: Any) -> str:
    """The shapes of a tree's tensors, for messages."""
    return ", ".join(str(tuple(t.shape)) for t in leaves(tree))
