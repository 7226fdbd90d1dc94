"""Checks of the data before the first update, with one sentence per error."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import torch

from gradlab.base.option import Invalid, require
from gradlab.data.base import IGNORE, Remaining, Split, Splits, TensorSplit, TokenSplit
from gradlab.data.spec import Spec
from gradlab.data.stream import some, streamed

CHUNK = 4096
FEW = 20
"""Faulty samples of the training set, at most a tenth of it, that are named as those to leave out."""


def check(splits: Splits, batch_size: int, ignore_index: int = IGNORE) -> None:
    """Raise `Invalid` for sets that cannot be trained on, of all their faults; warn if inputs are all the same.

    ignore_index: a target that the loss does not count, besides -100.
    """
    for split, name in ((splits.train, "training"), (splits.test, "test")):
        if isinstance(split, TensorSplit) and split.inputs.shape[0] != split.targets.shape[0]:
            message = f"has {split.inputs.shape[0]} {name} inputs but {split.targets.shape[0]} targets"
            raise Invalid("", splits.name, message)
    samples = len(splits.train)
    if not samples:
        raise Invalid("", splits.name, "the training set is empty")
    allowed = f"at most {samples}, the number of training samples"
    require(batch_size <= samples, "batch_size", batch_size, allowed)
    if streamed(splits.train):
        return  # each batch is checked as it is read
    said, leaves_out, constant = checked(splits.train, splits.spec, "training", ignore_index)
    if splits.test is not None and len(splits.test):
        of_test, _, _ = checked(splits.test, splits.spec, "test", ignore_index)
        said += of_test
        leaves_out *= not of_test  # which is of the training set alone
    if said:
        raise Invalid("", splits.name, "; ".join([*said, *filter(None, [leaves_out])]))
    if constant:
        warnings.warn(f"data={splits.name}: all training inputs are the same number", stacklevel=2)


def checked(split: Split, spec: Spec, part: str, ignore_index: int) -> tuple[list[str], str, bool]:
    """What is wrong with samples of a set, what leaves them out, if they are few, and whether all inputs are alike."""
    found: list[torch.Tensor] = []  # (faults, n) bool a chunk
    low, high = [], []
    for inputs, targets in pieces(split):
        found.append(
            torch.stack([*faults(inputs, spec.vocabulary), *faults(targets, spec.outputs, IGNORE, ignore_index)])
        )
        low.append(inputs.min())
        high.append(inputs.max())
    bad = torch.cat(found, dim=1)  # (4, N)
    message = (
        "inputs hold NaN or Inf",
        f"inputs hold tokens out of [0, {spec.vocabulary})",
        "targets hold NaN or Inf",
        f"targets are out of [0, {spec.outputs})",
    )
    each = [(places(split, which), what) for which, what in zip(bad, message, strict=True) if which.any()]
    said = [f"{len(index)} of {bad.shape[1]} {part} {what}, the first at index {index[0]}" for index, what in each]
    every, leaves_out = places(split, bad.any(0)), ""
    if every and not isinstance(split, TokenSplit) and len(every) <= min(FEW, bad.shape[1] // 10):
        out = {*range(len(split.whole))} - {*split.kept.tolist()} if isinstance(split, Remaining) else set()
        listed = ",".join(map(str, sorted({*out, *every})))
        leaves_out = f"data.without=[{listed}] leaves {'them' if len(every) > 1 else 'it'} out"
    return said, leaves_out, bool(torch.stack(low).min() == torch.stack(high).max())


def places(split: Split, which: torch.Tensor) -> list[int]:
    """Places in the whole set of the samples that (n,) bool marks."""
    index = which.nonzero()[:, 0]
    return list((split.kept.cpu()[index.cpu()] if isinstance(split, Remaining) else index).tolist())


def pieces(split: Split) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Inputs and targets of all samples, in chunks; of windows of a text, each token once; of a stream some batches."""
    if isinstance(split, TensorSplit):
        yield from zip(split.inputs.split(CHUNK), split.targets.split(CHUNK), strict=True)
    elif isinstance(split, TokenSplit):
        for tokens in split.tokens.split(16 * CHUNK):
            yield tokens.long(), tokens.long()  # the targets are the inputs, one later
    elif streamed(split):
        yield from some(split)
    else:
        yield from map(split.batch, torch.arange(len(split), device=split.device).split(CHUNK))


def targets_of(split: Split) -> Iterator[torch.Tensor]:
    """Targets of all samples as a loss is given them, in chunks; of windows that overlap each token once."""
    if isinstance(split, TokenSplit) and len(split) * split.length <= split.tokens.numel():
        windows = torch.arange(len(split), device=split.device).split(max(1, 16 * CHUNK // split.length))
        yield from (split.batch(index)[1] for index in windows)
    else:
        yield from (targets for _, targets in pieces(split))


def faults(values: torch.Tensor, limit: int, *ignored: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Which of (n, ...) hold a float that is not finite, and which an integer out of [0, limit): (n,) bool each."""
    if values.is_floating_point():
        wrong = ~values.isfinite()
    else:
        wrong = (values < 0) | (values >= limit)
        for value in ignored:
            wrong &= values != value
    wrong = wrong.flatten(1).any(1) if wrong.dim() > 1 else wrong  # (n,)
    none = torch.zeros_like(wrong)
    return (wrong, none) if values.is_floating_point() else (none, wrong)
