"""Bytes of an update's tensors against a manual count, the time of its passes, and what reduces them."""

import time
from pathlib import Path

import pytest
import torch
from helpers import differences, load, of_the_run, trainer, updates
from torch import nn

from gradlab.measure.memory import Alive, Kept, Memory
from gradlab.measure.timing import Passes

FLOAT = 4
SMALL = ("model=transformer", "model.width=32", "data.length=32", "data.samples=64", "trainer.updates=3")
QUIET = ("trainer.evaluate_every=0", "monitor.cost=true")


def mlp() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 11), nn.Sigmoid(), nn.Linear(11, 1))


def test_an_mlp_saves_its_hidden_activations() -> None:
    """A linear layer keeps its input, tanh and sigmoid their output: of each hidden layer one and the same tensor."""
    model, x = mlp(), torch.randn(13, 5)
    memory = Memory(model)
    with memory.counting([(x, x)]):
        model(x).sum().backward()
    assert memory.bytes["memory/activation_bytes"] == 13 * (7 + 11) * FLOAT
    assert memory.bytes["memory/update_bytes"] > memory.bytes["memory/activation_bytes"]


def test_inputs_and_parameters_count_only_where_they_are_not_named() -> None:
    model, x = mlp(), torch.randn(13, 5)
    kept = Kept()
    with torch.autograd.graph.saved_tensors_hooks(kept.pack, kept.unpack):
        loss = model(x).sum()
    weights = 7 * 11 + 11 * 1  # the first layer's is not needed: its input asks for no gradient
    assert kept.most == kept.now == FLOAT * (13 * (5 + 7 + 11) + weights)
    loss.backward()
    assert kept.now == 0 and kept.most > 0, "the backward pass lets go of all"


def test_gradients_are_those_without_counting() -> None:
    grads = []
    for count in (False, True):
        model, x = mlp(), torch.linspace(-3, 3, 65).reshape(13, 5)
        memory = Memory(model)
        for _ in range(2):
            if count:
                with memory.counting([(x, x)]):
                    model(x).square().sum().backward()
            else:
                model(x).square().sum().backward()
        grads.append([p.grad for p in model.parameters()])
    assert differences(*grads) == []


def test_tensors_are_alive_until_their_last_reference_goes() -> None:
    there = torch.ones(100)
    with Alive() as alive:
        a = there + 1
        view = a[:10]
        assert alive.now == 100 * FLOAT, "a view has no storage of its own"
        del a
        assert alive.now == 100 * FLOAT
        del view
        assert alive.now == 0
        there.mul_(2)
        b = torch.zeros(30).requires_grad_()
        c = (b.exp() + 1).sum()  # exp keeps its result, which no name holds
        assert alive.now == (30 + 30 + 1) * FLOAT
        del c
        assert alive.now == 30 * FLOAT
    assert alive.most == 100 * FLOAT


def counted(folder: Path, *overrides: str) -> tuple[list[dict], dict[str, float]]:
    trainer(folder, *SMALL, *QUIET, *overrides).run()
    lines = updates(folder)
    assert all("memory/activation_bytes" not in line for line in lines[1:])
    return lines, lines[0]


def test_recomputation_and_accumulation_lower_it_without_changing_the_run(tmp_path: Path) -> None:
    one, whole = counted(tmp_path / "one", "data.batch_size=16")
    four, parts = counted(tmp_path / "four", "data.batch_size=4", "accumulation.steps=4")
    again, recomputed = counted(tmp_path / "again", "data.batch_size=16", "model.activation_checkpointing=true")
    kept = {name: line["memory/activation_bytes"] for name, line in (("1", whole), ("4", parts), ("r", recomputed))}
    made = {name: line["memory/update_bytes"] for name, line in (("1", whole), ("4", parts), ("r", recomputed))}
    positions = 32 * 32 * FLOAT + 32 * 8  # their embedding and the index of it do not depend on the batch
    assert kept["4"] == pytest.approx(kept["1"] / 4, abs=positions)
    assert kept["r"] < kept["1"] / 4
    assert made["4"] < made["1"] / 2 and made["r"] < made["1"] / 2
    assert made["r"] - kept["r"] > kept["1"] / 6, "one of four blocks at a time is there, all the same"
    for other in (four, again):
        assert [ln["train/loss"] for ln in other] == pytest.approx([ln["train/loss"] for ln in one], rel=1e-5)
        assert [ln["grad/norm"] for ln in other] == pytest.approx([ln["grad/norm"] for ln in one], rel=1e-4)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_counting_does_not_change_the_run(tmp_path: Path, precision: str) -> None:
    recompute = ("model.activation_checkpointing=true", f"precision={precision}", "model.dropout=0.1")
    for name in ("true", "false"):
        trainer(tmp_path / name, *SMALL, *recompute, f"monitor.cost={name}", "trainer.evaluate_every=0").run()
    states = [of_the_run(load(tmp_path / name)) for name in ("true", "false")]
    for state in states:
        state["random"][0].pop("python")  # a first import may draw from it
    assert differences(*states) == []


@pytest.mark.filterwarnings(
    "ignore:.torch.jit.script_method. is deprecated:DeprecationWarning"
)  # of PyTorch 2.10's own
def test_a_compiled_model_stays_compiled(tmp_path: Path) -> None:
    run = trainer(tmp_path, "trainer.compile=true", "monitor=full")
    record = run.observed.record(1)
    assert record is not None and record.memory is None and record.passes is None and record.elements
    plain = trainer(tmp_path, "monitor=full").observed
    assert plain.record(1).memory and not plain.record(1).passes and plain.record(6).passes


class Slow(nn.Module):
    """Sleeps in its forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(0.03)
        return self.linear(x)


def test_forward_passes_and_the_rest_are_timed_separately() -> None:
    model = Slow()
    passes = Passes(model, torch.device("cpu"))
    began = time.perf_counter()
    with passes.timing():
        for _ in range(2):
            loss = model(torch.randn(2, 3)).sum()
            time.sleep(0.01)
            loss.backward()
    whole, seconds = time.perf_counter() - began, passes.seconds()
    assert seconds["time/forward"] >= 0.06 and seconds["time/backward"] >= 0.02
    assert sum(seconds.values()) <= whole
    assert not model._forward_hooks and not model._forward_pre_hooks
