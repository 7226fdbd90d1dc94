"""Single updates that damage a run: which of their samples is at fault, and that none is where the rate is."""

import copy
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import composed
from test_rules import line

from gradlab.base.distributed import World
from gradlab.config.schema import to_config
from gradlab.data.base import Data, Splits, TensorSplit
from gradlab.data.order import epoch_order
from gradlab.data.spec import Spec
from gradlab.diagnosis.diagnose import MetricStream, diagnose
from gradlab.diagnosis.measurements import Measurements
from gradlab.diagnosis.options import Thresholds
from gradlab.diagnosis.rules.batches import BadBatch
from gradlab.measure.samples import Sample, measured, ranked, searched
from gradlab.runs.job import Job
from gradlab.train.inspection import target_size
from gradlab.train.samples import indices, samples_of
from gradlab.train.trainer import Trainer
from gradlab.update.loss import MeanSquaredError

NET = ("loss=mse", "model=sigmoid_mlp", "model.layers=2", "model.width=16", "model.activation=relu", "model.init=he")


@dataclass
class Regression(Data):
    """250 samples; sample 100, and others, may be far from the rest, in their inputs or their target."""

    inputs: float = 1.0
    target: float | None = None
    bad: tuple[int, ...] = (100,)

    def load(self, device: torch.device) -> Splits:
        x = torch.randn(314, 4, generator=torch.Generator().manual_seed(0))
        y = x[:, :1] * x[:, 1:2]
        train, target = x[:250].clone(), y[:250].clone()
        train[[*self.bad]] *= self.inputs
        target[[*self.bad]] = target[[*self.bad]] if self.target is None else self.target
        return Splits(TensorSplit(train, target), TensorSplit(x[250:], y[250:]), Spec("vectors", (4,), "values", 1))


def ended(folder: Path, data: Data, *overrides: str, net: tuple[str, ...] = NET) -> dict[str, Any]:
    config = to_config(composed(*net, "trainer.epochs=6", *overrides))
    config.data = data
    folder.mkdir(exist_ok=True)
    Job(config, {}, folder, [], "run", World()).run()
    return json.loads((folder / "diagnosis.json").read_text())


@pytest.mark.parametrize(("inputs", "target"), [(1e4, None), (1.0, 3000.0)], ids=["inputs", "target"])
@pytest.mark.parametrize("optimizer", ["optimizer=sgd optimizer.lr=0.02", "optimizer=adam optimizer.lr=0.003"])
def test_a_single_sample_that_spoils_a_run_is_the_verdict_and_named(
    tmp_path: Path, inputs: float, target: float | None, optimizer: str
) -> None:
    told = ended(tmp_path, Regression(16, inputs, target), *optimizer.split())
    assert told["verdict"] == "bad_batch" and told["evidence"]["samples"] == [100], told["sentence"]
    found = next(f for f in told["findings"] if f["code"] == "bad_batch")
    assert found["severity"] == "critical" or "adam" in optimizer
    batch = epoch_order(250, 0, (found["began"] - 1) // 16)[(found["began"] - 1) % 16 * 16 :][:16]
    assert 100 in batch


def test_where_all_inputs_are_of_wild_scale_no_sample_is_at_fault(tmp_path: Path) -> None:
    told = ended(tmp_path, Regression(16, 1e4, bad=tuple(range(250))), "optimizer=sgd", "optimizer.lr=0.02")
    cause = next(f["causes"][0] for f in told["findings"] if f["code"] == told["verdict"])
    assert told["verdict"] != "bad_batch" and cause.startswith("inputs of wild scale: ")
    assert (
        told["remedies"][0]["lines"]
        == "subtract the mean of the inputs, feature by feature, and divide by their spread"
    )
    samples = {30: ranked([Sample(i, 1.0 + 99 * (i == 3), 1.0) for i in range(16)])}
    for size, codes in ((1.0, {"bad_batch"}), (1e4, set())):
        stream = MetricStream(Thresholds())
        for i in range(1, 60):
            stream.observe(line(i, 100.0 if i >= 30 else 1.0, 100.0 if i == 30 else 1.0))
        found = diagnose(stream, Measurements(input_size=size), lambda _: samples)
        assert {f.code for f in found.findings} & {"bad_batch"} == codes


@pytest.mark.parametrize("rate", [0.02, 1.0])
def test_clean_data_are_never_at_fault(tmp_path: Path, rate: float) -> None:
    """Neither in a healthy run, nor where the rate is what blows up."""
    told = ended(tmp_path, Regression(16), "optimizer=sgd", f"optimizer.lr={rate}")
    assert "bad_batch" not in {f["code"] for f in told["findings"]} and (told["verdict"] == "healthy") == (rate < 1)


def test_a_run_that_fails_at_once_by_a_sample_of_its_first_batch(tmp_path: Path) -> None:
    """In batches of 64 sample 100 comes in the third of four; a rate that is too high has no sample to name."""
    assert 100 in epoch_order(250, 0, 0)[128:192]
    told = ended(tmp_path / "sample", Regression(64, 1e6), "optimizer=sgd", "optimizer.lr=0.02")
    assert told["verdict"] == "bad_batch" and told["evidence"]["samples"] == [100], told["sentence"]
    told = ended(tmp_path / "rate", Regression(64), "optimizer=sgd", "optimizer.lr=20")
    assert told["outcome"]["status"] == "failed" and "bad_batch" not in {f["code"] for f in told["findings"]}


@pytest.mark.parametrize(("inputs", "verdict"), [(1.0, "nan_forward"), (1e3, "bad_batch")])
def test_where_an_operation_overflows_a_sample_is_at_fault_only_if_it_is_unlike_the_others(
    tmp_path: Path, inputs: float, verdict: str
) -> None:
    """exp overflows on ordinary samples, or on the one that is a thousand times larger."""
    given = ("model=custom", "model.target=nets:Exponential", f"+model.kwargs.factor={40.0 if inputs == 1 else 1.0}")
    given += ("loss=custom", "loss.target=torch.nn.functional:l1_loss", "optimizer=adam", "optimizer.lr=0.003")
    config = to_config(composed(*given, "trainer.epochs=2"))
    config.data = Regression(16, inputs)
    Job(config, {}, tmp_path, [], "run", World()).run()
    told = json.loads((tmp_path / "diagnosis.json").read_text())
    assert told["verdict"] == verdict, told["sentence"]
    assert told["first_overflow"]["operation"] == "exp"
    assert ("bad_batch" in {f["code"] for f in told["findings"]}) == (verdict == "bad_batch")


@pytest.mark.parametrize(("rate", "named"), [(30.0, False), (1e-3, True)], ids=["others too", "it alone"])
def test_a_sample_is_at_fault_only_where_the_others_of_its_update_are_finite(
    tmp_path: Path, rate: float, named: bool
) -> None:
    """Of 64 in the second update: after a large first one exp overflows on others, too, whatever is among them."""
    unlike = int(epoch_order(250, 0, 0)[64])
    given = ("model=custom", "model.target=nets:Exponential", "+model.kwargs.factor=-0.5", "loss=mse")
    net = (*given, "optimizer=adam", f"optimizer.lr={rate}")
    told = ended(tmp_path, Regression(64, 1e3, bad=(unlike,)), net=net)
    found = {f["code"]: f["evidence"] for f in told["findings"]}
    assert told["outcome"]["first_failed_attempt"] == 2 and ("bad_batch" in found) == named, told["findings"]
    assert not named or found["bad_batch"]["samples"] == [unlike]


NORMALISED = ("loss=mse", "model=custom", "model.target=nets:Normalised")
OWN_LOSS = ("loss=custom", "loss.target=nets:relative")


@pytest.mark.parametrize(
    ("verdict", "data", "given"),
    [
        ("nan_forward", {"inputs": 0.0}, ("+model.kwargs.after=false",)),
        ("nan_gradient", {"inputs": 0.0}, ("+model.kwargs.after=true",)),
        ("nan_loss", {"target": 0.0}, ("+model.kwargs.after=true", *OWN_LOSS)),
    ],
)
@pytest.mark.parametrize("batch", [16, 125])
def test_samples_that_are_not_finite_by_themselves_are_named_and_left_out(
    tmp_path: Path, verdict: str, data: dict[str, float], given: tuple[str, ...], batch: int
) -> None:
    """All of the training set, whichever of them the first failing update has; then the places are the same."""
    bad = (3, 100, 101, 240)
    net = (*NORMALISED, *given, "optimizer=adam", "optimizer.lr=0.003")
    told = ended(tmp_path, Regression(batch, bad=bad, **data), net=net)
    assert told["verdict"] == verdict and told["evidence"]["samples"] == [*bad], told["sentence"]
    assert "samples 3, 100, 101, 240 are not finite by themselves" in told["sentence"]
    assert told["remedies"][0]["overrides"] == ["data.without=[3, 100, 101, 240]"]
    told = ended(tmp_path / "less", Regression(batch, bad=bad, **data, without=[1, 3, 100, 240]), net=net)
    assert told["verdict"] == verdict and told["evidence"]["samples"] == [101], told["sentence"]
    assert told["remedies"][0]["overrides"] == ["data.without=[1, 3, 100, 101, 240]"]


def test_where_the_weights_are_lost_no_sample_is_named(tmp_path: Path) -> None:
    """Nor where every sample fails."""
    net = (*NORMALISED, "+model.kwargs.after=true", "optimizer=sgd")
    told = ended(tmp_path / "rate", Regression(16), "optimizer.lr=1e30", net=net)
    assert told["outcome"]["status"] == "failed" and not told["evidence"].get("samples"), told["sentence"]
    told = ended(tmp_path / "all", Regression(16, target=0.0, bad=tuple(range(250))), net=(*net, *OWN_LOSS))
    assert told["verdict"] == "nan_loss" and not told["evidence"]["samples"], told["sentence"]


@pytest.mark.parametrize("rate", [0.3, 3.0])
def test_a_recurrence_that_its_first_updates_throw_explodes(tmp_path: Path, rate: float) -> None:
    """By the update before the one that overflows; numbers that the initial weights make are the model's own."""
    net = ("loss=mse", "model=custom", "model.target=nets:Repeated", "optimizer=sgd", f"optimizer.lr={rate}")
    told = ended(tmp_path / "thrown", Regression(16), net=net)
    assert told["outcome"]["status"] == "failed" and told["verdict"] == "exploding", told["sentence"]
    told = ended(tmp_path / "own", Regression(16), "+model.kwargs.squares=true", net=net)
    assert told["verdict"] == "nan_forward", told["sentence"]


@pytest.mark.parametrize("factor", [{"inputs": 1e4}, {"target": 3000.0}], ids=["inputs", "target"])
def test_samples_as_unlike_the_others_as_those_of_the_update_are_named_with_them(
    tmp_path: Path, factor: dict[str, float]
) -> None:
    told = ended(tmp_path, Regression(16, bad=(3, 100, 240), **factor), "optimizer=adam", "optimizer.lr=0.003")
    assert told["verdict"] == "bad_batch" and sorted(told["evidence"]["samples"]) == [3, 100, 240], told["sentence"]


def test_a_search_of_many_finds_those_that_stand_out_and_no_others() -> None:
    model, x, calls = torch.nn.Linear(1, 1), torch.zeros(1000, 1), 0
    y = torch.linspace(0.5, 1.5, 1000)[:, None]
    y[[7, 777]] = 40.0
    y[500] = math.nan
    torch.nn.init.zeros_(model.bias)

    def read(index: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        nonlocal calls
        calls += 1
        return x[index], y[index]

    loss, everyone = MeanSquaredError(), torch.arange(1000)
    found = searched(model, loss, everyone, read, measured(model, loss, torch.arange(20, 60), read))
    assert {s.index for s in found} == {7, 500, 777} and found[0].fails and all(s.unlike for s in found[1:])
    assert calls < 500, "most are never measured alone"


def test_a_spike_is_blamed_on_the_data_only_where_a_sample_stands_out() -> None:
    stream = MetricStream(Thresholds())
    for i in range(1, 101):
        stream.observe(line(i, 90.0 if i == 61 else 1.0 if i < 61 else 9.0, 90.0 if i == 61 else 1.0))

    def found(samples: list[Sample], key: str = "severity") -> dict[str, str]:
        told = diagnose(copy.deepcopy(stream), samples_of=lambda attempts: dict.fromkeys(attempts, ranked(samples)))
        return {f.code: getattr(f, key) for f in told.findings}

    alike = [Sample(i, 5.0 + i, 3.0) for i in range(8)]
    assert found([*alike, Sample(8, 299.0, 3.0)])["bad_batch"] == "critical"
    assert found([*alike, Sample(8, 299.0, 3.0)], "lost")["bad_batch"] == "diverged", "the damage lasts"
    assert "bad_batch" not in found(alike) and found(alike)["diverged"] == "critical"
    unmeasured = diagnose(stream)
    assert unmeasured.verdict == "exploding" and "bad_batch" in unmeasured.unchecked, "the loss never came back"


def test_spikes_that_come_back_are_no_damage() -> None:
    for height, code in ((90.0, "info"), (1.0, None)):
        stream = MetricStream(Thresholds())
        for i in range(1, 101):
            stream.observe(line(i, height if i == 61 else 1.0, height if i == 61 else 1.0 + i % 2))
        told = diagnose(
            stream,
            samples_of=lambda attempts: {
                a: ranked([Sample(i, 99 if i == 3 else 1, 1) for i in range(8)]) for a in attempts
            },
        )
        assert {f.code: f.severity for f in told.findings}.get("bad_batch") == code


@pytest.mark.parametrize(("hurts", "severity"), [((61,), "info"), (range(21, 300, 20), "warning")])
def test_of_many_spikes_one_that_is_followed_by_larger_losses_is_chance(hurts: list[int], severity: str) -> None:
    stream, base = MetricStream(Thresholds()), 1.0
    for i in range(1, 301):
        base = 3.0 if any(0 < i - at < 8 for at in hurts) else 1.0
        spikes = i % 20 == 1 and i > 20
        stream.observe(line(i, 90.0 if spikes else base, 1.2 if spikes else 1.0) | {"clip/coefficient": 0.5})
    told = diagnose(
        stream,
        Measurements(clips=True),
        samples_of=lambda attempts: {
            a: ranked([Sample(i, 99 if i == 3 else 1, 1) for i in range(8)]) for a in attempts
        },
    )
    found = {f.code: f for f in told.findings}["bad_batch"]
    assert found.severity == severity
    assert "loss 90 (their median: 1)" in found.sentence and "gradient norm 0.6" not in found.sentence, "not far above"


@pytest.mark.parametrize("target", [1.0, 1e9])
def test_what_is_said_of_an_update_is_of_those_before_it_and_of_its_samples(target: float) -> None:
    """Three came before the fourth; a sample whose input and target are as the others' is no outlier in them."""
    stream = MetricStream(Thresholds())
    for i in range(1, 101):
        stream.observe(line(i, 2.0 - i / 100, 500.0 if i == 4 else 1.0) | {"clip/coefficient": 1.0})
    samples = [Sample(i, 99.0 if i < 2 else 1.0, 1.0, input=1.0, target=target if i < 2 else 1.0) for i in range(32)]
    told = diagnose(stream, Measurements(clips=True), lambda attempts: {a: ranked(samples) for a in attempts})
    found = next(f for f in told.findings if f.code == "bad_batch")
    above = "update 4 is far above the median of the 3 before it: gradient norm after clipping 500 (their median: 1)"
    assert found.sentence.startswith(above)
    assert "loss 1" not in found.sentence.partition(";")[0] and "stand out, the first 99 times" in found.sentence
    assert any("outlier" in cause for cause in found.causes) == (target > 1)


def test_a_label_of_the_smaller_class_is_no_outlier() -> None:
    labels = [0.0] * 20 + [1.0] * 12

    def failing(targets: list[float]) -> Sample:
        samples = [Sample(i, 0.3, 1.0, target=t) for i, t in enumerate(targets)]
        samples[-1].grad_norm = math.nan
        return ranked(samples)[0]

    assert failing(labels).fails and not failing(labels).unlike
    assert failing([*labels, 900.0]).unlike and failing([*[0.0] * 31, 900.0]).unlike


@pytest.mark.parametrize("steps", [1, 3])
def test_the_samples_of_an_update_are_those_that_it_was_made_of(tmp_path: Path, steps: int) -> None:
    config = to_config(composed(*NET, "trainer.epochs=2", f"accumulation.steps={steps}", "data.batch_size=16"))
    config.data = Regression(16)
    run = Trainer(config, tmp_path, say=lambda text: None)
    seen: list[torch.Tensor] = []
    batches = run.data.train.batch
    run.data.train.batch = lambda index: seen.append(index) or batches(index)  # type: ignore[method-assign]
    run.run()
    made = [s for s in seen if len(s) <= 16]
    for attempt in (1, 2, 5, run.outcome.attempts):
        index = indices(run, attempt)
        an_epoch = -(-16 // steps)
        epoch, place = divmod(attempt - 1, an_epoch)
        wanted = torch.cat(made[epoch * 16 : epoch * 16 + 16][place * steps : place * steps + steps])
        assert index is not None and torch.equal(index, wanted)


def test_a_samples_own_numbers_are_those_of_a_batch_of_it_alone(tmp_path: Path) -> None:
    config = to_config(composed(*NET))
    config.data = Regression(16, target=50.0)
    run = Trainer(config, tmp_path, say=lambda text: None)
    before = torch.get_rng_state()
    found = samples_of(run, [3])[3]
    assert torch.equal(before, torch.get_rng_state()) and run.module.training
    x, y = run.data.train.batch(torch.tensor([found[-1].index]))
    loss = torch.nn.functional.mse_loss(run.module(x), y)
    loss.backward()
    norm = torch.cat([p.grad.flatten() for p in run.module.parameters()]).norm()
    assert (found[-1].loss, found[-1].grad_norm) == pytest.approx((loss.item(), norm.item()), rel=1e-5)
    assert found == sorted(found, key=lambda s: -s.outlier)


def test_of_a_large_batch_the_samples_with_the_largest_losses_are_measured() -> None:
    model, x = torch.nn.Linear(1, 1), torch.zeros(1000, 1)
    y = torch.arange(1000.0)[:, None] * 0.001
    y[777] = 30.0
    found = measured(model, MeanSquaredError(), torch.arange(1000), lambda i: (x[i], y[i]))
    assert len(found) <= 64 and 777 in {s.index for s in found}
    assert ranked(found)[0].index == 777 and ranked(found)[0].stands_out
    bad = ranked([Sample(0, 1.0, 1.0), Sample(1, math.nan, 1.0), Sample(2, 1.0, 1.0)])
    assert bad[0].index == 1 and [s.stands_out for s in bad] == [True, False, False]


def test_units_are_judged_on_as_many_samples_as_is_said(tmp_path: Path) -> None:
    config = to_config(composed(*NET, "trainer.updates=18"))
    config.data = Regression(16)
    job, seen = Job(config, {}, tmp_path, [], "run", World()), []
    job.run()
    job.trainer.module.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    found = job.inspection()
    assert found is not None and len(torch.cat(seen).unique(dim=0)) == found.samples == 16 + 128


def test_what_spikes_have_of_the_gradient_is_without_new_levels() -> None:
    bad = BadBatch()
    stream = MetricStream(Thresholds())
    bad.begin()
    for i in range(1, 80):
        one = line(i, 9.0 if i >= 40 else 1.0, 50.0 if i == 20 else 1.0)
        stream.known.observe(one, None)
        bad.observe(one, None, stream.known)
    assert bad.count == 1 and bad.theirs == 50.0


def test_a_single_skipped_update_at_the_end_is_no_failure(tmp_path: Path) -> None:
    """A scale that grows far after each good update overflows at every other one, and the last."""
    scale = {"init_scale": 2.0**10, "growth_factor": 2.0**40, "backoff_factor": 2.0**-40, "growth_interval": 1}
    given = ["precision=fp16", *(f"precision.{name}={value}" for name, value in scale.items())]
    told = ended(tmp_path, Regression(16), *given, "optimizer=adam", "optimizer.lr=0.003")
    lines = [json.loads(each) for each in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [each for each in lines if "train/loss" in each][-1]["update/skipped"]
    assert "dead_units" in told["checked"] and told["first_overflow"] is None, told["sentence"]


@pytest.mark.parametrize(("inputs", "lr"), [(1e5, 0.01), (1.0, 3e3)], ids=["initial weights", "rate"])
def test_the_rate_is_no_cause_of_overflows_that_the_initial_weights_have(
    tmp_path: Path, inputs: float, lr: float
) -> None:
    """Single updates without one were applied before."""
    half = ("precision=fp16", "precision.min_scale=1e-6", "optimizer=adam", f"optimizer.lr={lr}")
    told = ended(tmp_path, Regression(1, inputs, bad=tuple(range(0, 250, 2))), *half)
    found = next(f for f in told["findings"] if f["code"] == "overflow_fp16")
    assert told["outcome"]["applied"] > 0 and (inputs == 1 or "where it is rounded" in found["sentence"])
    assert ("with the initial weights" in found["sentence"]) == (inputs > 1)
    for code in ("overflow_fp16", "scale_collapse"):
        causes = next((f["causes"] for f in told["findings"] if f["code"] == code), [])
        assert any("learning rate" in cause for cause in causes) == (inputs == 1)
    assert any("optimizer.lr" in o for r in told["remedies"] for o in r["overrides"]) == (inputs == 1)


@pytest.mark.parametrize("by_target", [True, False])
def test_a_sample_is_at_fault_where_it_fails_whatever_the_weights_are(tmp_path: Path, by_target: bool) -> None:
    """Not where the initial weights happen to give it a negative output."""
    config = to_config(composed(*NET, "trainer.epochs=1"))
    config.data = Regression(25, target=-1e3)
    job = Job(config, {}, tmp_path, [], "run", World())
    wanted = next(a for a in range(1, 11) if 100 in indices(job.trainer, a))
    with torch.no_grad():
        outputs = job.trainer.module(job.trainer.data.train.batch(indices(job.trainer, wanted))[0])
    below = outputs.flatten().sort().values[:2].mean()  # one of 25 is

    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return (targets + 900 if by_target else outputs - below).log().sum()

    job.trainer.loss.sum = loss
    samples = samples_of(job.trainer, [wanted])[wanted]
    failing = [s for s in samples if not s.finite]
    assert failing and any(s.fails for s in failing) == by_target


def test_the_size_of_targets_is_that_of_numbers_and_labels_have_none(tmp_path: Path) -> None:
    values = to_config(composed(*NET, "trainer.updates=2"))
    values.data = Regression(16, target=1e6)
    labels = to_config(composed("model=sigmoid_mlp", "data=synthetic", "trainer.updates=2"))
    for config, low, high in ((values, 0.01, 3.0), (labels, 1.0, 1.0)):
        job = Job(config, {}, tmp_path, [], "run", World())
        job.run()
        assert low <= target_size(job.trainer) <= high, "a usual sample's, not that of the largest"
