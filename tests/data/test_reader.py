"""What a sample draws is a function of seed, epoch and place, whichever generator it draws from, or only looks at."""

import random
from typing import Any

import numpy as np
import pytest
import torch

from gradlab.base.randomness import OwnGenerators, generators_restored, seeded
from gradlab.data.reader import Reader, stacked

WAYS = {
    "torch": lambda i: torch.rand(()),
    "python": lambda i: torch.tensor(random.random()),
    "numpy": lambda i: torch.tensor(np.random.rand()),
    "of its own": lambda i: torch.rand((), generator=torch.Generator().manual_seed(torch.initial_seed() % 2**31 + i)),
    "late": lambda i: torch.rand(()) if i == 3 else torch.tensor(float(i)),
}


class Drawing:
    def __init__(self, way: str) -> None:
        self.way = WAYS[way]

    def __getitem__(self, place: int) -> Any:
        return self.way(place)


@pytest.mark.parametrize("way", WAYS)
def test_a_sample_draws_the_same_in_whatever_batch_it_is_read_and_another_in_every_epoch(way: str) -> None:
    def read(epoch: int, *batches: tuple[int, ...]) -> dict[int, float]:
        reader = Reader(Drawing(way), stacked, seed=5)
        found = [(batch, reader[epoch, batch][1].tolist()) for batch in batches]
        return {place: value for batch, values in found for place, value in zip(batch, values, strict=True)}

    one = read(1, (0, 1), (2, 3))
    assert one == read(1, (2, 3), (0, 1)) == read(1, (3, 0, 1, 2)) and one != read(2, (0, 1), (2, 3))
    assert len({*one.values()}) == 4


def test_a_collate_function_draws_too() -> None:
    reader = Reader([0.0] * 4, lambda samples: torch.rand(len(samples)), seed=5)
    assert reader[0, (0, 1)][1].tolist() != reader[0, (2, 3)][1].tolist() != reader[1, (2, 3)][1].tolist()


def numbers() -> tuple[float, float, float]:
    return float(torch.rand(())), random.random(), float(np.random.rand())


def test_what_follows_a_block_draws_as_if_it_had_not_been() -> None:
    with seeded(3):
        whole = [numbers() for _ in range(3)]
    with seeded(3):
        first = numbers()
        with pytest.raises(KeyError), generators_restored():
            numbers()
            raise KeyError
        with generators_restored(), seeded(7):
            numbers()
        assert [first, numbers(), numbers()] == whole


def test_blocks_go_on_where_their_last_one_ended() -> None:
    with seeded(1):
        whole = [numbers() for _ in range(4)]
    one, other, found = OwnGenerators(1), OwnGenerators(2), []
    for _ in range(4):
        with one():
            found.append(numbers())
        with other():
            numbers()
    assert found == whole


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_samples_of_tensors_arrays_and_lists_meet_in_one_batch(order: tuple[int, int]) -> None:
    samples = [(torch.tensor([1.0, 2.0]), 3), (np.array([4.0, 5.0], dtype="float32"), np.int64(6))]
    x, y = stacked([samples[place] for place in order])
    assert torch.equal(x[torch.tensor(order)], torch.tensor([[1.0, 2.0], [4.0, 5.0]])) and sorted(y.tolist()) == [3, 6]
