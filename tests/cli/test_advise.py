"""Advice from synthetic streams with known answers, and from folders with too little in them."""

import json
import math
import random
from pathlib import Path
from typing import Any

import made
import pytest
from helpers import composed

from gradlab.base.statistics import quantile
from gradlab.cli.advise import advise, main
from gradlab.config.schema import to_config
from gradlab.diagnosis.advice.accumulation import batch_advice
from gradlab.diagnosis.advice.learning_rate import finetuning_advice, update_advice
from gradlab.diagnosis.advice.line import Advice
from gradlab.diagnosis.advice.max_norm import clip_advice, steady_norms
from gradlab.runs.record import RunRecord


def usual(number: int, median: float = 1.0, spread: float = 0.3, seed: int = 0) -> list[float]:
    """Norms as they are: lognormal."""
    draw = random.Random(seed)
    return [median * math.exp(draw.gauss(0, spread)) for _ in range(number)]


def with_spikes(norms: list[float], fraction: float, factor: float) -> list[float]:
    every = round(1 / fraction)
    return [n * factor if i % every == every - 1 else n for i, n in enumerate(norms)]


def advised(norms: list[float], failed: bool = False, clip: str = "none", **rest: Any) -> Advice:
    own = {"name": clip, **rest}
    return clip_advice(steady_norms(norms, failed), None, own, 0.5, False)[0]


@pytest.mark.parametrize("median", [1e-6, 0.3, 7.0, 1e5])
@pytest.mark.parametrize("fraction", [0.01, 0.05, 0.1])
def test_max_norm_clips_the_spikes_and_not_the_usual(median: float, fraction: float) -> None:
    """Spikes of 30 times the usual: the limit lies between the two whatever the scale, and clips just them."""
    norms = usual(2000, median)
    limit = advised(with_spikes(norms, fraction, 30)).numbers["max_norm"]
    assert quantile(norms, 0.98) < limit < 30 * quantile(norms, 0.01)
    assert advised(with_spikes(norms, fraction, 30)).numbers["fraction"] == pytest.approx(fraction, abs=0.012)
    calm = advised(norms)
    assert calm.numbers["fraction"] < 0.012 and calm.override == f"clip=norm clip.max_norm={calm.numbers['max_norm']:g}"


def test_equal_norms() -> None:
    found = advised([2.0] * 100)
    assert found.numbers["max_norm"] == 2.5 and found.numbers["fraction"] == 0


def test_the_runs_own_explosion_is_not_usual() -> None:
    """The norm doubles for 40 updates before the failure; without those it is that of the calm run."""
    calm = usual(300)
    blown = [2.0**i for i in range(4, 44)]
    assert advised([*calm, *blown], failed=True).numbers["max_norm"] == advised(calm).numbers["max_norm"]
    assert "the last 40 before the failure" in advised([*calm, *blown], failed=True).rests_on
    assert advised([*calm, math.inf, math.nan], failed=True).numbers["max_norm"] == advised(calm).numbers["max_norm"]


def test_norms_that_fell_are_measured_where_they_are_now() -> None:
    """A large beginning is no outlier of the rest, and does not widen it."""
    found = advised([*usual(400, 50.0), *usual(400, 1.0)])
    assert 1.5 < found.numbers["max_norm"] < 5 and "the median went from" in found.rests_on


@pytest.mark.parametrize(
    ("norms", "failed", "why"),
    [
        ([], False, "0 norms before"),
        (usual(10), False, "9 norms before"),
        ([math.nan] * 100, True, "0 norms before"),
        ([0.0] * 100, False, "0 norms before"),
        ([10.0 ** (i / 10) for i in range(300)], True, "never steady"),
        ([1.0, 1e5, 1e9], True, "1 norm before any failure"),
    ],
)
def test_too_little_is_said(norms: list[float], failed: bool, why: str) -> None:
    found = advised(norms, failed)
    assert found.override is None and found.says.startswith("not enough") and why in found.says


def test_beside_the_usual_values() -> None:
    part = steady_norms(usual(500, 20.0), False)
    found = clip_advice(part, "rnn", {"name": "none"}, None, False)
    assert all("would clip 100.0% of these updates: far too low here" in a.says for a in found[1:])
    assert [a.override for a in found[1:]] == [None, None], "nor is it offered"
    close = clip_advice(steady_norms(usual(500, 2.0), False), "rnn", {"name": "none"}, None, False)
    assert [a.override for a in close[1:]] == ["clip=norm clip.max_norm=0.5", "clip=norm clip.max_norm=1"]
    assert not any("too low" in a.says for a in close)
    assert "of a sum" in clip_advice(part, "transformer", {}, None, True)[1].says
    assert clip_advice(part, "cnn", {}, None, False)[1].override == "clip=none"
    assert len(clip_advice(part, None, {}, None, False)) == 1
    mine = clip_advice(part, None, {"name": "norm", "max_norm": 10.0}, 0.97, False)[0]
    assert "max_norm=10 clipped 9" in mine.says and "acted on 97.0% of its updates" in mine.rests_on


@pytest.mark.parametrize(
    ("ratio", "word", "override"),
    [
        (0.5, "lower it", "optimizer.lr=0.001"),
        (0.05, "keep it", "optimizer.lr=0.01"),
        (2e-4, "keep it", "optimizer.lr=0.01"),
        (5e-5, "raise it", "optimizer.lr=0.1"),
        (1e-6, "raise it", "optimizer.lr=0.1"),
    ],
)
def test_the_rate_from_the_size_of_updates(ratio: float, word: str, override: str) -> None:
    """The size of an update is in proportion to the rate: Tenfold at most, up or down."""
    found = update_advice([ratio] * 25 + [math.nan, 0.0], 0.01)
    assert found.says.startswith(word) and found.override == override
    assert update_advice([ratio] * 2, 0.01).says.startswith("not enough")
    assert update_advice([], 0.01).says.startswith("not measured")


def test_no_rate_is_kept_of_a_run_that_does_not_learn() -> None:
    found = update_advice([0.001] * 25, 0.3, well=False)
    assert found.override is None and "keep" not in found.says
    assert update_advice([0.01] * 25, 0.3, well=False).override == "optimizer.lr=0.03", "ten times the typical"
    assert update_advice([0.5] * 25, 0.3, well=False).override == "optimizer.lr=0.03", "too large is too large"


@pytest.mark.parametrize(
    ("verdict", "ill", "says"),
    [
        ("interrupted", False, "keep it"),
        ("too_short", False, "keep it"),
        ("dominant_layer", False, "look elsewhere for what is wrong"),
        ("vanishing", True, "look elsewhere for what is wrong"),
    ],
)
def test_a_run_that_was_stopped_has_not_failed(tmp_path: Path, verdict: str, ill: bool, says: str) -> None:
    steps = [made.line(i, 2.0 - i / 100) | {"update/ratio": 6e-4} for i in range(1, 100)]
    found = made.diagnosis(verdict, ill=ill, findings=[{"code": verdict, "causes": ["its layers"]}] * ill)
    told = advise(RunRecord(made.run(tmp_path / "run", steps, found)))
    rate = next(a.says for a in told if a.about == "lr")
    assert says in rate and "fails" not in rate


def test_no_bound_comes_from_norms_that_decayed_to_nothing() -> None:
    gone = [10.0 ** (1 - i / 20) for i in range(200)]
    part = steady_norms(gone, False)
    assert "decayed" in part.why_not
    assert clip_advice(part, None, {}, None, False)[0].override is None
    assert not steady_norms([3.0 - i / 100 for i in range(200)], False).why_not


def test_no_bound_comes_from_norms_after_a_gradient_that_is_gone_at_once() -> None:
    """The first tenth is left out, and its size is not: a bound of 1e-9 would clip it all."""
    gone = [*usual(20), *usual(180, 1e-9)]
    assert "decayed from" in steady_norms(gone, False).why_not
    assert not steady_norms([*usual(20, 20.0), *usual(180)], False).why_not


def test_shares_are_of_the_updates_that_are_counted() -> None:
    """Of a run that clipped most of its updates, and few of the last ones."""
    norms = [*usual(200, 5.0), *usual(200, 1.0)]
    found = advised(norms, clip="norm", max_norm=4.0)
    steady = steady_norms(norms, False).norms
    assert len(steady) < 200 and f"of {len(steady)} updates" in found.says
    says = advised([*[9.0] * 5, *[2.0] * 95]).says
    assert "would clip none of" in says and "insurance" not in says, "of those; not none so far"


@pytest.mark.parametrize(
    ("causes", "says", "override"),
    [
        (["the learning rate is near its limit"], "a likely cause", "optimizer.lr=0.1"),
        (["initial weights that are too small"], "look elsewhere", None),
        ([], "look elsewhere", None),
    ],
)
def test_ordinary_updates_rule_the_rate_out_only_where_the_diagnosis_does(
    causes: list[str], says: str, override: str | None
) -> None:
    found = update_advice([0.001] * 25, 0.3, False, causes)
    assert says in found.says and found.override == override


@pytest.mark.parametrize(("largest", "override"), [(0.05, "optimizer.lr=2.7"), (4.0, "optimizer.lr=0.02")])
def test_ordinary_updates_after_one_that_was_far_too_large_keep_no_rate(largest: float, override: str) -> None:
    found = update_advice([largest, 4e-4, 4e-6, 4e-4], 8.0, False, ["the learning rate is too high"])
    assert found.override == override and (f"was {largest:g}:" in found.says) == (largest > 0.1)


def test_a_rate_that_is_no_cause_is_not_lowered_for_being_above_the_typical() -> None:
    elsewhere = update_advice([0.007] * 25, 0.3, False, ["initial weights that are too small"])
    assert elsewhere.override is None and "look elsewhere" in elsewhere.says
    assert update_advice([0.007] * 25, 0.3, False).override == "optimizer.lr=0.043", "where no cause is known"


def test_updates_that_clipping_makes_small_do_not_raise_the_rate() -> None:
    found = update_advice([8e-6] * 25, 0.02, False, ["the limit of clipping"], 3e-4)
    assert found.override is None and "clipping leaves 0.0003 of the gradient" in found.says


def test_a_step_that_is_not_the_whole_way_says_so() -> None:
    assert "10 times at a time, then measure again" in update_advice([3e-7] * 25, 1e-7).says
    assert "at a time" not in update_advice([0.005] * 25, 1e-2, False).says


def test_the_rate_of_fine_tuning() -> None:
    (found,) = finetuning_advice(3e-3, None)
    assert found.override == "optimizer.lr=0.001"
    for hours, relative, absolute in [(3, 1e-4, 1e-5), (5, 3.3e-4, 3e-5), (50, 5e-4, 5e-5), (500, 1e-3, 1e-4)]:
        found = finetuning_advice(1e-3, hours)
        assert [a.override for a in found] == [f"optimizer.lr={relative:g}", f"optimizer.lr={absolute:g}"]
        assert "disagree" in found[0].says
    assert finetuning_advice(None, None) == []


@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize("batch_size", [1, 7, 32])
@pytest.mark.parametrize("wanted", [1, 5, 24, 96, 100, 1000])
def test_accumulation_is_what_it_says(wanted: int, batch_size: int, world_size: int) -> None:
    """Exact where it can be, and no multiple is nearer than the nearest that is given."""
    found = batch_advice(wanted, batch_size, world_size)
    unit = batch_size * world_size
    for advice in found:
        n = advice.numbers
        assert n["global_batch_size"] == n["steps"] * n["batch_size"] * world_size and n["batch_size"] <= batch_size
        assert f"accumulation.steps={n['steps']}" in (advice.override or "")
        assert (f"data.batch_size={n['batch_size']}" in (advice.override or "")) is (n["batch_size"] != batch_size)
        assert ("not" in advice.says) is (n["global_batch_size"] != wanted)
    best = min(abs(a.numbers["global_batch_size"] - wanted) for a in found)
    assert best <= min(abs(k * unit - wanted) for k in range(1, 1001))
    assert best == abs(found[0].numbers["global_batch_size"] - wanted), "the best comes first"
    if wanted % unit == 0:
        assert len(found) == 1 and found[0].numbers["steps"] == wanted // unit


def folder_of(path: Path, norms: list[float], failed: bool = False, **looked: Any) -> Path:
    """A run's folder, as far as advice reads it; a failed run ends with ten skipped updates."""
    (path / ".hydra").mkdir(parents=True)
    config = {"model": {"layers": 4}, "clip": {}, "data": {"batch_size": 16}, "optimizer": {"lr": 0.1}}
    (path / ".hydra" / "config.yaml").write_text(json.dumps(config))
    hydra = {"hydra": {"runtime": {"choices": {"model": "custom", "clip": "none"}}}}
    (path / ".hydra" / "hydra.yaml").write_text(json.dumps(hydra))
    ends = [math.nan] * 10 * failed
    with (path / "metrics.jsonl").open("w") as file:
        for i, norm in enumerate([*norms, *ends], 1):
            line = {"attempt": i, "train/loss": 1.0, "grad/norm": norm, "lr": 0.1 * min(1, i / 200)}
            line |= {"update/skipped": norm != norm, "clip/fraction": 0.0}
            line |= looked if i % 20 == 1 else {}
            file.write(json.dumps({k: "NaN" if v != v else v for k, v in line.items()}) + "\n")
        file.write(json.dumps({"attempt": 3, "eval/loss": 1.0}) + "\n")
    with (path / "layers.jsonl").open("w") as file:
        file.write(json.dumps({"names": ["rnn.weight_hh_l0"]}) + "\n")
        for i in range(1, len(norms), 5):
            file.write(json.dumps({"attempt": i, "grad/layer": [1.0]}) + "\n")
    return path


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = folder_of(tmp_path / "one", usual(100), failed=True, **{"update/ratio": 0.4})
    two = folder_of(tmp_path / "two", usual(100))
    assert main([str(one), str(two), "--batch", "64", "--world-size", "2"]) == 0
    said = capsys.readouterr().out
    assert f"== {one}" in said and f"== {two}" in said
    assert "the failure that ended the run began at update 101, at a rate of 0.0505" in said
    content = json.loads((one / "advice.json").read_text())
    assert content["run"] == {"updates": 110, "applied_before_failure": 100, "failed_at": 101, "architecture": "rnn"}
    overrides = [a["override"] for a in content["advice"]]
    assert "optimizer.lr=0.017" in overrides, "a third of the rate that failed, in a warm-up"
    assert "optimizer.lr=0.01" in overrides, "updates of 0.4 are far too large: a tenth of the rate at most"
    assert overrides[-1] == "accumulation=fixed accumulation.steps=2"
    two_overrides = [a["override"] for a in json.loads((two / "advice.json").read_text())["advice"]]
    assert None in two_overrides, "the size of updates was not measured"
    for override in {*overrides, *two_overrides} - {None}:
        to_config(composed("model=lstm", *override.split()))
    for advice in content["advice"]:
        assert advice["rests_on"]


def test_folders_that_are_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = folder_of(tmp_path / "sweep" / "0", usual(30))
    for arguments, says in [
        ([str(tmp_path / "sweep")], "holds no metrics.jsonl); runs are in 0"),
        ([str(tmp_path / "none")], "no such folder"),
        ([str(run), "--batch", "0"], "--batch=0: must be >= 1"),
        ([str(run), "--hours", "-1"], "--hours=-1.0: must be > 0"),
        ([], "see python -m gradlab.advise --help"),
    ]:
        assert main(arguments) == 2
        error = capsys.readouterr().err
        assert says in error and error.count("\n") == 1
    (run / "metrics.jsonl").write_text('{"attempt": 1,\n')
    assert main([str(run)]) == 2 and "cannot be read" in capsys.readouterr().err
    (run / "metrics.jsonl").write_text("")
    for name in ("config.yaml", "hydra.yaml"):
        (run / ".hydra" / name).unlink()
    assert main([str(run), "--batch", "8"]) == 0
    assert capsys.readouterr().out.count("not enough") == 2


@pytest.mark.parametrize("verdict", ["diverged", "healthy"])
def test_one_run_has_one_rate_to_try(tmp_path: Path, verdict: str) -> None:
    folder = folder_of(tmp_path / "run", usual(100), **{"update/ratio": 0.4})
    told = json.loads((folder / "diagnosis.json").read_text()) if (folder / "diagnosis.json").exists() else {}
    remedies = [{"overrides": ["clip=norm"], "why": ""}, {"overrides": ["optimizer.lr=0.0014"], "why": "too far"}]
    (folder / "diagnosis.json").write_text(json.dumps(told | {"verdict": verdict, "remedies": remedies}))
    found = [a for a in advise(RunRecord(folder)) if a.about == "lr"]
    assert len(found) == 1 and (found[0].override == "optimizer.lr=0.0014") == (verdict == "diverged")


@pytest.mark.parametrize(("severity", "kept"), [("info", True), ("critical", False)])
def test_a_bound_that_makes_updates_ordinary_is_kept_with_the_rate(tmp_path: Path, severity: str, kept: bool) -> None:
    folder = folder_of(tmp_path / "run", usual(100), **{"update/ratio": 2e-4})
    found = [{"code": "overclipped", "severity": severity, "evidence": {"coefficient": 5.8e-7}}]
    (folder / "diagnosis.json").write_text(json.dumps({"verdict": "too_short", "findings": found}))
    (folder / ".hydra").mkdir(exist_ok=True)
    (folder / ".hydra" / "hydra.yaml").write_text(
        "hydra:\n  runtime:\n    choices:\n      optimizer: sgd\n      clip: norm\n"
    )
    clip = [a for a in advise(RunRecord(folder)) if a.about == "clip"]
    assert (len(clip) == 1 and clip[0].says.startswith("keep it: it leaves 5.8e-07")) == kept
    assert any(a.override for a in clip) != kept
