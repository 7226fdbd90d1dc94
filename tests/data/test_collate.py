"""Samples of unequal lengths, padded or packed: the same loss and gradient as of each sample alone."""

from pathlib import Path
from typing import Any

import pytest
import streams
import torch
import torch.nn.functional as F
from helpers import trainer
from torch import nn

from gradlab.data.budget import budgeted
from gradlab.data.collate import packed, padded

PAIRS = [(torch.randn(length, 3), torch.arange(length)) for length in (2, 5, 4)]


def test_padding_does_not_count() -> None:
    x, y = padded(PAIRS)
    assert x.shape == (3, 5, 3) and not x[0, 2:].any()
    head = nn.Linear(3, 6)
    alone = [F.cross_entropy(head(x), y, reduction="sum") for x, y in PAIRS]
    together = F.cross_entropy(head(x).flatten(0, 1), y.flatten(), reduction="sum")
    torch.testing.assert_close(together, torch.stack(alone).sum())


def test_of_a_mapping_every_key_is_padded_by_what_it_is() -> None:
    given = [{"input_ids": [5, 6, 7], "labels": [5, 6, 7], "kind": 1}, {"input_ids": [8], "labels": [8], "kind": 2}]
    assert {name: value.tolist() for name, value in padded(given).items()} == {
        "input_ids": [[5, 6, 7], [8, 0, 0]],
        "labels": [[5, 6, 7], [8, -100, -100]],
        "attention_mask": [[1, 1, 1], [1, 0, 0]],
        "kind": [1, 2],
    }


def test_packed_samples_are_one_row_and_begin_anew() -> None:
    given = [{"input_ids": [5, 6, 7], "labels": [-100, 6, 7]}, {"input_ids": [8, 9]}]
    batch = packed(given)
    assert batch.pop("use_cache") is False
    assert {name: value.tolist() for name, value in batch.items()} == {
        "input_ids": [[5, 6, 7, 8, 9]],
        "labels": [[-100, 6, 7, -100, 9]],
        "position_ids": [[0, 1, 2, 0, 1]],
    }
    assert given[1] == {"input_ids": [8, 9]}, "the samples stay as they are"


@pytest.mark.parametrize(
    ("collate", "sample", "message"),
    [
        (padded, (torch.ones(2), torch.ones(2)), "labels of float32 cannot be padded"),
        (padded, (torch.ones(2), torch.ones(2) > 0), "labels of bool cannot be padded"),
        (padded, "text", "padded takes pairs or mappings of tensors, but a sample is str"),
        (packed, (torch.ones(2), torch.ones(2)), "packed takes mappings with input_ids"),
        (packed, {"input_ids": [1], "pixels": [1], "kind": 2}, "a sample has kind, pixels$"),
    ],
)
def test_what_cannot_be_joined_is_said(collate: Any, sample: Any, message: str) -> None:
    shorter = tuple(part[:1] for part in sample) if isinstance(sample, tuple) else sample
    with pytest.raises(ValueError, match=message):
        collate([sample, shorter])


def test_a_key_that_not_all_samples_have_is_named() -> None:
    samples = [{"input_ids": [1, 2]}, {"input_ids": [1], "labels": [1]}]
    for given in (samples, samples[::-1]):
        with pytest.raises(ValueError, match=r"not all have labels$"):
            padded(given)


def test_padding_is_not_packed() -> None:
    batch = packed([{"input_ids": [0, 5, 6], "attention_mask": [0, 1, 1]}, {"input_ids": [7], "attention_mask": [1]}])
    assert batch["input_ids"].tolist() == [[5, 6, 7]] and batch["position_ids"].tolist() == [[0, 1, 0]]
    assert batch["labels"].tolist() == [[-100, 6, -100]]


def test_a_budget_of_packed_samples_is_their_sum() -> None:
    lengths = torch.tensor([7, 1, 3, 2, 5, 6])
    assert budgeted(lengths, 8) == [[1, 3], [2], [4], [5], [0]]
    assert budgeted(lengths, 8, packed=True) == [[1, 3, 2], [4], [5], [0]]


@pytest.mark.parametrize("fields", [("data.batch_size=11",), ("data.max_tokens=30", "data.lengths=streams:lengths")])
def test_packed_and_padded_train_alike(tmp_path: Path, fields: tuple[str, ...]) -> None:
    pytest.importorskip("transformers")
    model = ("model=custom", "model.target=streams:llama", "optimizer=sgd", "optimizer.lr=0.1", "loss=model")
    data = ("data=custom", "data.target=streams:unnamed", "accumulation.steps=99", "trainer.epochs=3", *fields)
    weights = []
    for collate in ("packed", "padded"):
        run = trainer(tmp_path / collate, *model, *data, f"data.collate={collate}")
        before = nn.utils.parameters_to_vector(run.module.parameters()).detach().clone()
        run.run()
        weights.append(nn.utils.parameters_to_vector(run.module.parameters()).detach())
        assert (weights[-1] - before).norm() > 0.01
    torch.testing.assert_close(*weights, rtol=0, atol=1e-6)
    assert streams.unnamed()[0][0].keys() == {"input_ids", "labels"}
