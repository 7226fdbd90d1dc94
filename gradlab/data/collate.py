"""Batches of samples of unequal lengths: padded with what does not count, or packed in one row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from gradlab.data.base import IGNORE
from gradlab.data.batch_format import LABELS, is_pair
from gradlab.data.reader import stacked, tensors


def padded(samples: Sequence[Any]) -> Any:
    """A batch of pairs or mappings of tensors whose first dimensions differ, padded at their ends to the longest.

    Labels, of a pair the second part, are filled with -100, which no loss counts, and all else with zeros. Beside
    `input_ids` an `attention_mask` says what is a token. Raises ValueError for labels of which every number counts, as
    floats and truth values do.
    """
    made = [tensors(sample) for sample in samples]
    if is_pair(made[0]):
        x, y = zip(*made, strict=True)
        return filled(x, False), filled(y, True)
    if not isinstance(made[0], Mapping):
        raise ValueError(f"padded takes pairs or mappings of tensors, but a sample is {type(made[0]).__name__}")
    check_keys(made)
    batch = {name: filled([sample[name] for sample in made], name in LABELS) for name in made[0]}
    if "input_ids" in batch and "attention_mask" not in batch:
        ones = [torch.ones_like(sample["input_ids"]) for sample in made]
        batch["attention_mask"] = filled(ones, False)
    return batch


def filled(values: Sequence[Any], labels: bool) -> Any:
    """(B, longest, ...) of B tensors (length, ...); what needs no filling as PyTorch's own function makes it."""
    if not isinstance(values[0], torch.Tensor) or len({value.shape for value in values}) == 1:
        return stacked(values)
    if labels and values[0].dtype not in (torch.int64, torch.int32, torch.int16, torch.int8):
        kind = str(values[0].dtype).removeprefix("torch.")
        raise ValueError(f"labels of {kind} cannot be padded: each of their numbers counts")
    return torch.nn.utils.rnn.pad_sequence(list(values), batch_first=True, padding_value=IGNORE if labels else 0)


def packed(samples: Sequence[Any]) -> dict[str, Any]:
    """Mappings of `input_ids` (length,) and perhaps `labels`, one after the other in a row (1, all lengths).

    `position_ids` begin anew with each sample, by which Hugging Face's models keep them apart, but only without a cache
    of keys (`use_cache`). The first label of each is -100: nothing precedes it. Without labels they are the tokens.
    What an `attention_mask` leaves out is left out.
    """
    made = [tensors(sample) for sample in samples]
    for sample in made:
        if not isinstance(sample, Mapping) or "input_ids" not in sample:
            raise ValueError("packed takes mappings with input_ids and perhaps labels")
        if others := sample.keys() - {"input_ids", "labels", "attention_mask"}:
            found = ", ".join(map(str, sorted(others)))
            raise ValueError(f"packed takes input_ids and labels, but a sample has {found}")
    kept = [sample.get("attention_mask", torch.ones_like(sample["input_ids"])).bool() for sample in made]
    tokens = [sample["input_ids"][mask] for sample, mask in zip(made, kept, strict=True)]
    labels = [sample.get("labels", sample["input_ids"])[mask] for sample, mask in zip(made, kept, strict=True)]
    for each in labels:
        each[:1] = IGNORE
    rows = {"input_ids": tokens, "labels": labels, "position_ids": [torch.arange(len(each)) for each in tokens]}
    return {name: torch.cat(parts).unsqueeze(0) for name, parts in rows.items()} | {"use_cache": False}


def check_keys(samples: Sequence[Mapping[str, Any]]) -> None:
    for sample in samples:
        if odd := sample.keys() ^ samples[0].keys():
            raise ValueError(f"samples differ in their keys: not all have {', '.join(map(str, sorted(odd)))}")


KNOWN = {"padded": padded, "packed": packed}
