"""Updates that are rounded off: what is counted equals a plain comparison of bits, in runs and in watched loops."""

from pathlib import Path

import pytest
import torch
from helpers import trainer, updates
from torch import nn

import gradlab
from gradlab.diagnosis.diagnose import MetricStream, diagnose
from gradlab.diagnosis.options import Thresholds
from gradlab.measure.rounded_off import given, narrow, rounded_off, some, still


def test_elements_that_a_step_leaves_bitwise_as_they_are() -> None:
    torch.manual_seed(0)
    weights = torch.randn(4000).bfloat16()
    grads = torch.randn(4000).bfloat16() * (torch.rand(4000) > 0.3)
    for rate in (1e-5, 1e-3, 1e-1, 10.0):
        after = weights - (rate * grads).bfloat16()
        same = (after.view(torch.int16) == weights.view(torch.int16)) & (grads != 0)
        moved = weights - after
        assert rounded_off([moved, moved], [grads, None]).tolist() == [same.sum().item(), 0.0]
    assert given([grads, None]).tolist() == [(grads != 0).sum().item(), 0.0]
    assert still([some(weights)], [some(weights * 2)]).item() < 0.01 and still([some(weights)], [some(weights)]) == 1.0
    assert len(some(weights)) <= 1024 and len(some(weights[:5])) == 5
    kinds = [torch.bfloat16, torch.float16, torch.float32, torch.float64]
    assert [narrow(torch.ones(2, dtype=kind)) for kind in kinds] == [True, True, False, False]


@pytest.mark.parametrize(
    ("dtype", "rate", "found"), [("bfloat16", 1e-5, True), ("bfloat16", 3e-3, False), ("float32", 1e-5, False)]
)
def test_a_run_whose_bf16_weights_hardly_move_says_so(tmp_path: Path, dtype: str, rate: float, found: bool) -> None:
    model = ("model=custom", "model.target=nets:Typed", f"+model.kwargs.dtype={dtype}")
    run = trainer(
        tmp_path, *model, "optimizer=adam", f"optimizer.lr={rate}", "monitor.step_every=10", "trainer.epochs=2"
    )
    run.run()
    stream, lines = MetricStream(Thresholds(), run.update.names), updates(tmp_path)
    for line in lines:
        stream.observe(line)
    codes = {f.code for f in diagnose(stream).findings}
    shares = [line["update/lost"] for line in lines if "update/lost" in line]
    assert ("updates_lost" in codes) is found and bool(shares) is (dtype == "bfloat16")
    assert not found or min(shares) > 0.9


class ByHand(torch.optim.Optimizer):
    """SGD on the sign of gradients, whose result is rounded to nearest, stochastically, or with a carry."""

    def __init__(self, params: object, lr: float, how: str) -> None:
        super().__init__(params, {"lr": lr})  # type: ignore[arg-type]
        self.how = how

    @torch.no_grad()
    def step(self, closure: object = None) -> None:  # type: ignore[override]
        for p in self.param_groups[0]["params"]:
            step = -self.param_groups[0]["lr"] * p.grad.float().sign()
            state = self.state[p]
            wanted = p.float() + step + state.get("left", 0.0)
            if self.how == "stochastic":
                bits = wanted.view(torch.int32) + torch.randint(0, 1 << 16, wanted.shape, dtype=torch.int32)
                wanted = (bits & -(1 << 16)).view(torch.float32)
            p.copy_(wanted.bfloat16())
            if self.how == "kahan":
                state["left"] = wanted - p.float()


@pytest.mark.parametrize("rate", [3e-5, 1e-6])
@pytest.mark.parametrize(("how", "found"), [("nearest", True), ("stochastic", False), ("kahan", False)])
def test_a_watched_loop_that_carries_what_is_rounded_off_loses_nothing(how: str, found: bool, rate: float) -> None:
    """One update changes few weights in all three; over fifty, two of them have changed many times as many."""
    torch.manual_seed(0)
    model = nn.Linear(64, 8).bfloat16()
    optimizer = ByHand(model.parameters(), rate, how)
    x, y = torch.randn(32, 64).bfloat16(), torch.randn(32, 8).bfloat16()
    with gradlab.watch(model, optimizer, folder=None) as watch:
        for _ in range(110):
            optimizer.zero_grad()
            (model(x) - y).square().mean().backward()
            optimizer.step()
    assert ("updates_lost" in watch.report()) is found, watch.report()
