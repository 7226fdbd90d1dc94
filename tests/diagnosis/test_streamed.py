"""Data that are drawn during the run: NaN that no check before it can see, from the update to its verdict."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import composed

from gradlab.base.distributed import World
from gradlab.config.schema import to_config
from gradlab.data.base import Data, Splits, TensorSplit
from gradlab.data.order import epoch_order
from gradlab.data.spec import Spec
from gradlab.runs.job import Job
from gradlab.train import checkpoint

SHORT = ("loss=mse", "trainer.epochs=4")
SMALL = (*SHORT, "model=sigmoid_mlp", "model.width=8", "model.layers=2")


class Stream:
    """Samples that are not stored. how: bad ones come by `chance`, at one `index`, or `once`, at some call.

    Not in the first calls, in which the data are looked at, and the loss and the model are tried.
    """

    device = torch.device("cpu")

    def __init__(self, how: str, where: str) -> None:
        self.how, self.where, self.calls = how, where, 0

    def __len__(self) -> int:
        return 256

    def batch(self, index: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.calls += 1
        x = torch.randn(len(index), 4)
        y = x[:, :1].clone()
        draw, begun = torch.rand(()), self.calls > 10
        bad = {"chance": draw < 0.1, "index": bool((index == 100).any()), "once": self.calls == 30, "never": False}
        if begun and bad[self.how]:
            (x if self.where == "inputs" else y)[0] = torch.nan
        return x, y


@dataclass
class Streamed(Data):
    how: str = "never"
    where: str = "inputs"

    def load(self, device: torch.device) -> Splits:
        return Splits(Stream(self.how, self.where), None, Spec("vectors", (4,), "values", 1))


class Spoils(torch.nn.Module):
    """Changes what it is given, in place, and divides by zero now and then: the data are not at fault."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.calls = torch.nn.Linear(4, 1), 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.head(x.div_(float(self.calls < 20)))


def ended(folder: Path, data: Streamed, *overrides: str) -> dict[str, Any]:
    """diagnosis.json of a run on these data."""
    config = to_config(composed(*overrides))
    config.data = data
    folder.mkdir(exist_ok=True)
    Job(config, {}, folder, [], "run", World()).run()
    return json.loads((folder / "diagnosis.json").read_text())


@pytest.mark.parametrize("where", ["inputs", "targets"])
@pytest.mark.parametrize(
    ("how", "precision"),
    [("index", "bf16"), *(pytest.param(how, "fp32", marks=pytest.mark.slow) for how in ("chance", "once"))],
)
def test_nan_that_comes_in_the_middle_of_a_run_is_of_the_data(
    tmp_path: Path, how: str, where: str, precision: str
) -> None:
    told = ended(tmp_path, Streamed(16, how, where), *SMALL, f"precision={precision}")
    assert told["verdict"] == "nan_input" and told["outcome"]["first_failed_attempt"] > 1
    at = told["outcome"]["first_failed_attempt"]
    assert told["sentence"].startswith(f"the {where} of update {at} are not finite: sample ")
    index = epoch_order(256, 0, (at - 1) // 16)[(at - 1) % 16 * 16 :][:16]  # the first of a batch is the broken one
    assert told["evidence"]["samples"] == [int(index[0])]
    if how == "chance":  # drawn as they were drawn in the run
        inputs, targets = checkpoint.load("crash.pt", tmp_path / "crash.pt")["batches"][0]
        assert bool((inputs if where == "inputs" else targets).isnan().any())


def test_fp16_skips_one_bad_batch(tmp_path: Path) -> None:
    told = ended(tmp_path, Streamed(16, "once"), *SMALL, "precision=fp16", "precision.init_scale=8")
    assert told["verdict"] == "too_short" and told["evidence"]["skipped"] == 1


def test_a_model_that_spoils_its_own_inputs_is_not_a_fault_of_the_data(tmp_path: Path) -> None:
    told = ended(tmp_path, Streamed(16), *SHORT, "model=custom", "model.target=test_streamed:Spoils")
    assert told["verdict"] == "nan_forward" and "a division by zero in div" in told["sentence"]


class FarAway(Data):
    """Training data of ordinary size, and a test set with one sample far from them."""

    def __init__(self, far: float) -> None:
        super().__init__(16)
        self.far = far

    def load(self, device: torch.device) -> Splits:
        x = torch.randn(128, 4, generator=torch.Generator().manual_seed(0))
        test = x[:64].clone()
        test[40] = self.far
        train, y = TensorSplit(x, x[:, :1].clone()), test[:, :1].clone().clamp(max=9.0)
        return Splits(train, TensorSplit(test, y), Spec("vectors", (4,), "values", 1))


@pytest.mark.parametrize(("far", "precision"), [(3e4, "fp16"), (3e4, "fp32"), (3e38, "fp32")])
def test_an_evaluation_that_overflows_is_named_with_its_module(tmp_path: Path, far: float, precision: str) -> None:
    """Not `diverged`: the training loss says nothing of the kind."""
    wide = ("model=sigmoid_mlp", "model.activation=relu", "model.width=64", "model.layers=2", "model.init=he")
    told = ended(tmp_path, FarAway(far), "loss=mse", "trainer.epochs=6", *wide, f"precision={precision}")
    codes = {f["code"] for f in told["findings"]}
    if (far, precision) == (3e4, "fp32"):
        assert not told["ill"] and told["first_overflow"] is None
        return
    assert told["verdict"] == ("overflow_fp16" if precision == "fp16" else "nan_forward") and "diverged" not in codes
    assert (
        told["sentence"].startswith("in the evaluation, the output of ") and told["first_overflow"]["kind"] == "Linear"
    )
