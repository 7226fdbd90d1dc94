"""Activation checkpointing of any model: the same run to the last bit, with less kept for the backward pass."""

from pathlib import Path

import pytest
import torch
from helpers import differences, trainer

from gradlab.base.option import Invalid
from gradlab.train.recompute import recompute_

RUN = (
    *("model=transformer", "model.layers=2", "model.width=16", "model.dropout=0.2", "data.length=16"),
    *("data.samples=20",),
    *("data.batch_size=4", "accumulation.steps=2", "clip=norm", "trainer.epochs=2"),
)
BLOCKS = "trainer.checkpoint_blocks=blocks\\.\\d+"


def test_a_run_is_bitwise_the_one_without(tmp_path: Path) -> None:
    """With dropout, which draws the same again; and its evaluations."""
    plain = trainer(tmp_path / "plain", *RUN)
    plain.run()
    again = trainer(tmp_path / "again", *RUN, BLOCKS)
    again.run()
    assert differences(again.full_state(), plain.full_state()) == []
    assert again.outcome.eval[-1]["eval/loss"] == plain.outcome.eval[-1]["eval/loss"]


def kept(model: torch.nn.Module, x: torch.Tensor) -> int:
    sizes: list[int] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        sizes.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model(x).sum().backward()
    return sum(sizes)


def stack() -> torch.nn.Sequential:
    torch.manual_seed(0)
    inner = [
        torch.nn.Sequential(*[m for _ in range(4) for m in (torch.nn.Linear(8, 8), torch.nn.Tanh())]) for _ in "ab"
    ]
    return torch.nn.Sequential(*inner, torch.nn.Linear(8, 1))


def test_what_is_inside_is_computed_again_only_where_it_trains() -> None:
    plain, model, x, calls = stack(), stack(), torch.randn(64, 8), []
    called = [name for name, _ in model.named_modules()]
    recompute_(model, r"[01](\.\d)?", called)
    model[0][0].register_forward_hook(lambda *_: calls.append(1))
    assert kept(model, x) < kept(plain, x) / 4
    assert len(calls) == 2, "a block within a block is not computed a third time"
    for p, q in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(p.grad, q.grad)
    model.eval()
    calls.clear()
    model(x).sum().backward()
    assert len(calls) == 1


@pytest.mark.parametrize(("pattern", "why"), [("3", "no module that is called"), ("(", "regular"), ("0", "batch norm")])
def test_what_cannot_be_is_refused(pattern: str, why: str) -> None:
    model = torch.nn.Sequential(torch.nn.BatchNorm1d(3))
    with pytest.raises(Invalid, match=why):
        recompute_(model, pattern, ["", "0"])
