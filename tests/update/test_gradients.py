"""Norms are right at the extremes, and read once."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradlab.update.gradients import Gradients, measure, tensor_norms, total_norm


def reference(tensors: list[torch.Tensor]) -> float:
    return math.sqrt(sum((t.double() ** 2).sum().item() for t in tensors))


@settings(deadline=None, max_examples=50)
@given(
    st.lists(st.integers(0, 40), min_size=1, max_size=5),
    st.floats(-37, 37),
    st.integers(0, 2**20),
)
def test_norm_equals_float64_at_any_magnitude(sizes: list[int], exponent: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    tensors = [torch.randn(n, generator=generator) * 10.0**exponent for n in sizes]
    got = total_norm(tensor_norms(tensors)).item()
    assert got == pytest.approx(reference(tensors), rel=1e-5, abs=1e-45)


def test_finite_gradients_of_1e30_have_a_finite_norm_where_torch_returns_infinity() -> None:
    tensors = [torch.full((100,), 1e30), torch.full((3,), 1e-30)]
    assert torch.isinf(torch.nn.utils.get_total_norm(tensors))
    assert total_norm(tensor_norms(tensors)).item() == pytest.approx(1e31, rel=1e-6)
    assert tensor_norms(tensors)[1].item() == pytest.approx(math.sqrt(3) * 1e-30, rel=1e-6)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_norm_is_not_finite_exactly_if_an_element_is_not(bad: float) -> None:
    tensors = [torch.ones(4), torch.tensor([1.0, bad])]
    assert not torch.isfinite(total_norm(tensor_norms(tensors)))
    assert torch.isfinite(tensor_norms(tensors)[0])


def test_missing_empty_and_zero_gradients() -> None:
    p = [torch.nn.Parameter(torch.ones(2)) for _ in range(4)]
    p[1].grad, p[2].grad = torch.zeros(2), torch.full((2,), 3.0)
    empty = torch.nn.Parameter(torch.ones(0))
    empty.grad = torch.ones(0)
    gradients = measure(list("abcde"), [*p, empty])
    assert gradients.names == ["b", "c", "e"]
    assert gradients.norms.tolist() == pytest.approx([0, 3 * math.sqrt(2), 0])
    assert measure(["a"], [p[0]]).total.item() == 0


def test_scaling_multiplies_every_element_and_does_nothing_at_one() -> None:
    tensors = [torch.tensor([1.0, -2.0]), torch.tensor([[3.0]])]
    gradients = Gradients([], [], tensors, torch.zeros(2), torch.zeros(()))
    gradients.scale_(torch.tensor(0.5, dtype=torch.float64))
    assert [t.tolist() for t in tensors] == [[0.5, -1.0], [[1.5]]]
    version = tensors[0]._version
    gradients.scale_(torch.tensor(1.0))
    assert tensors[0]._version == version
