"""Weights that are evaluated and not trained: their moving average, or what a schedule-free optimizer makes of them."""

from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import composed, differences, load, metrics, of_the_run, resumed, trainer, updates, weights
from nets import Tiny

from gradlab.base.option import Invalid
from gradlab.config.schema import to_config
from gradlab.sweep.vectorized.grouping import alone
from gradlab.train.evaluation import evaluate
from gradlab.train.trainer import Trainer

TINY = ("model=custom", "model.target=nets:Tiny", "data=digits", "data.batch_size=64", "trainer.epochs=2")
FREE = ("optimizer=custom", "optimizer.target=nets:ScheduleFree", "optimizer.lr=0.1")
AVERAGED = "trainer.ema=0.9"


class Following(Trainer):
    """Keeps the weights after every attempt."""

    def begin(self) -> None:
        super().begin()
        self.seen = [[p.detach().clone() for p in self.update.params]]

    def one_update(self) -> None:
        super().one_update()
        self.seen.append([p.detach().clone() for p in self.update.params])


@pytest.mark.parametrize("more", [(), ("precision=fp16", "precision.init_scale=1e12")], ids=["fp32", "skips"])
def test_the_average_is_that_of_a_plain_loop_over_applied_updates(tmp_path: Path, more: tuple[str, ...]) -> None:
    run: Any = trainer(tmp_path, *TINY, AVERAGED, *more, cls=Following)
    run.run()
    skipped = [line["update/skipped"] for line in updates(tmp_path)]
    assert any(skipped) == bool(more)
    expected, applied = [p.double() for p in run.seen[0]], 0
    for now, skip in zip(run.seen[1:], skipped, strict=True):
        applied += not skip
        decay = min(0.9, (1 + applied) / (10 + applied))
        if not skip:
            expected = [decay * e + (1 - decay) * p.double() for e, p in zip(expected, now, strict=True)]
    for ours, theirs in zip(run.update.ema.tensors, expected, strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-5, atol=1e-6)
    saved = load(tmp_path)
    model = Tiny()
    model.load_state_dict(saved["model"] | saved["update"]["average"])
    found = evaluate(model, run.data.test, run.loss, run.update.precision, run.evaluation_batch, run.world)
    assert {name: run.outcome.eval[-1][name] for name in found} == found
    assert torch.equal(weights(run.module), torch.cat([p.flatten() for p in run.seen[-1]]))


def test_on_a_device_the_average_is_the_same() -> None:
    """Of a device the host does not know whether the update was applied."""
    from gradlab.update.ema import EMA

    class Elsewhere(torch.Tensor):
        @property
        def device(self) -> Any:
            return torch.device("cuda")

    params = [torch.randn(3, 4), torch.randn(5, dtype=torch.float64), torch.randn(6).bfloat16()]
    for applied, skipped in ((1, 0.0), (500, 0.0), (7, 1.0)):
        two = [EMA.of(params, 0.99) for _ in range(2)]
        now = [p + 1 for p in params]
        for average, kind in zip(two, (torch.Tensor, Elsewhere), strict=True):
            average.follow_(now, torch.tensor(applied).as_subclass(kind), torch.tensor(skipped))
        for a, b, p in zip(two[0].tensors, two[1].tensors, params, strict=True):
            torch.testing.assert_close(a, b)
            assert torch.equal(a, p.to(a.dtype)) == bool(skipped)


@pytest.mark.parametrize("given", [(AVERAGED,), FREE], ids=["ema", "schedule-free"])
def test_killed_and_resumed_it_ends_the_same_and_an_evaluation_changes_no_bit(
    tmp_path: Path, given: tuple[str, ...]
) -> None:
    trainer(tmp_path / "whole", *TINY, *given).run()
    trainer(tmp_path / "blind", *TINY, *given, "trainer.evaluate_every=0").run()
    trainer(tmp_path / "two", *TINY, *given, "trainer.updates=31", "trainer.evaluate_every=0").run()
    resumed(tmp_path / "two", *TINY, *given).run()
    whole, blind, two = (of_the_run(load(tmp_path / name)) for name in ("whole", "blind", "two"))
    assert differences(whole["update"], two["update"]) == differences(whole["model"], two["model"]) == []
    assert differences(whole["update"], blind["update"]) == differences(whole["model"], blind["model"]) == []
    assert metrics(tmp_path / "two")[-1] == metrics(tmp_path / "whole")[-1]


def test_a_schedule_free_optimizer_is_evaluated_in_its_own_way(tmp_path: Path) -> None:
    run = trainer(tmp_path, *TINY, *FREE)
    run.run()
    saved, model = load(tmp_path), Tiny()
    for name, p in saved["model"].items():
        torch.testing.assert_close(saved["update"]["average"][name], p / 3)
    model.load_state_dict(saved["update"]["average"])
    parts: Any = (model, run.data.test, run.loss, run.update.precision, run.evaluation_batch, run.world)
    found = evaluate(*parts)
    assert {name: run.outcome.eval[-1][name] for name in found} == found


def test_an_average_may_begin_in_a_resumed_run_and_end(tmp_path: Path) -> None:
    trainer(tmp_path, *TINY, "trainer.updates=5").run()
    for given in ((AVERAGED,), ()):
        again = resumed(tmp_path, *TINY, *given, "trainer.updates=7")
        again.begin()
        again.close()
        if again.update.ema is not None:
            for average, p in zip(again.update.ema.tensors, again.update.params, strict=True):
                assert torch.equal(average, p)


def test_what_does_not_fit_is_told_in_a_line(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match=r"^trainer.ema=0.9: not with ScheduleFree, which averages the weights itself$"):
        trainer(tmp_path, *TINY, *FREE, AVERAGED)
    with pytest.raises(Invalid, match=r"^trainer.ema=1.5: must be null or in \(0, 1\)$"):
        trainer(tmp_path, *TINY, "trainer.ema=1.5")
    assert "ema" in str(alone(to_config(composed(*TINY, AVERAGED))))
