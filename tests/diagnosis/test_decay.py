"""Weight decay that holds a model at its constant answer is named as the cause, by what the weights did."""

from pathlib import Path

import pytest
from test_batches import Regression, ended


@pytest.mark.parametrize(
    "given", ["adamw optimizer.lr=0.01 20", "sgd optimizer.lr=0.02 0.5", "sgd optimizer.lr=0.02 1"]
)
def test_decay_that_outweighs_the_gradient_is_the_cause_of_not_learning(tmp_path: Path, given: str) -> None:
    optimizer, rate, decay = given.split()
    told = ended(
        *(tmp_path, Regression(16), f"optimizer={optimizer}", rate),
        *(f"optimizer.weight_decay={decay}", "trainer.epochs=12", "monitor.step_every=10"),
    )
    assert (told["verdict"], told["exit_code"]) == ("not_learning", 1), told["sentence"]
    assert "weight decay has taken the weights from a norm of" in told["sentence"]
    assert told["findings"][0]["causes"] == ["weight decay that outweighs the gradient"]
    assert told["remedies"][0]["overrides"][0].startswith("optimizer.weight_decay=")


@pytest.mark.parametrize(
    "given", ["sgd optimizer.lr=0.02 0.1", "adamw optimizer.lr=0.01 5", "sgd optimizer.lr=1e-6 1e-4"]
)
def test_decay_with_which_a_run_learns_or_that_is_not_felt_is_no_cause(tmp_path: Path, given: str) -> None:
    optimizer, rate, decay = given.split()
    told = ended(
        *(tmp_path, Regression(16), f"optimizer={optimizer}", rate),
        *(f"optimizer.weight_decay={decay}", "trainer.epochs=12", "monitor.step_every=10"),
    )
    assert not any("decay" in f["sentence"] for f in told["findings"])
    assert (told["verdict"] == "healthy") == (rate != "optimizer.lr=1e-6"), told["sentence"]
