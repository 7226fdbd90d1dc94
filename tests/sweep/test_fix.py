"""The search for a cure: what it asks for, given how runs end; and the command on real runs."""

import json
import math
import signal
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import made
import pytest
from forked import Commands
from helpers import wait_for

from gradlab.base.command import key
from gradlab.fix import main
from gradlab.sweep.search import fix_plan, fix_report
from gradlab.sweep.search.fix_search import LOOSER, NEAR, SHORTEST, FixSearch
from gradlab.sweep.search.fix_trial import Change, Number, Plan
from gradlab.sweep.search.judge import FinishedJob, read
from gradlab.sweep.search.rounds import conduct

World = Callable[[dict[str, str]], bool]
"""Whether a run of these overrides ends healthy."""

RATE = Change("optimizer.lr", ("optimizer.lr=0.01",), "updates were large", Number("optimizer.lr", 10.0))
CLIP = Change("clip=norm", ("clip=norm", "clip.max_norm=0.5"), "outliers", Number("clip.max_norm", math.inf))
BF16 = Change("bf16", ("precision=bf16",), "range")
WARM = Change("schedule=warmup", ("schedule=warmup", "schedule.warmup=20"), "first update")
CHANGES = [RATE, CLIP, BF16, WARM]


def plan(changes: list[Change] = CHANGES, planned: int = 1000, **more: Any) -> Plan:
    made = Plan("diverged", ("model=lstm", "optimizer.lr=10.0", "seed=4"), 4, planned, None, changes)
    return replace(made, **more)


def finished(number: int, good: bool, attempts: int) -> FinishedJob:
    outcome = {"status": "completed", "attempts": attempts}
    told = {"verdict": "healthy" if good else "diverged", "ill": not good, "learns": good, "lost": not good}
    return FinishedJob(str(number), told | {"outcome": outcome, "exit_code": 0})


def run(world: World, given: Plan, late: Callable[[], bool] = lambda: False) -> tuple[FixSearch, list[list[Any]]]:
    """The search in a world, with the jobs of every round."""
    search, rounds = FixSearch(given, late), list[list[Any]]()

    def launch(jobs: list[Any]) -> list[FinishedJob]:
        rounds.append(jobs)
        values = [dict(o.lstrip("+").split("=", 1) for o in job) for job in jobs]
        attempts = [int(v.get("trainer.updates", given.planned)) for v in values]
        return [finished(len(rounds), world(v), n) for v, n in zip(values, attempts, strict=True)]

    conduct(search, launch, None, lambda text: None)
    return search, rounds


def rate(v: dict[str, str]) -> float:
    return float(v["optimizer.lr"])


@pytest.mark.parametrize("edge", [0.011, 0.05, 0.3, 2.0, 9.0])
def test_the_largest_rate_that_cures_is_proven_to_a_factor(edge: float) -> None:
    search, rounds = run(lambda v: rate(v) <= edge, plan())
    assert search.proven is not None
    found = search.proven.value
    assert found <= edge and min(edge, 10.0) / found <= 6
    lost = [t.change.value for t in search.trials if t.change and t.change.name == RATE.name and not t.cured]
    assert all(value / found > NEAR for value in [*lost, 10.0]), "at a distance from every value that does not cure"
    confirmed = [job for job in rounds[-1] if f"optimizer.lr={found:.3g}" in job]
    assert {f"seed={seed}" for seed in (5, 6)} <= {o for job in confirmed for o in job if key(o) == "seed"}
    assert any("optimizer.lr=10.0" in job for job in rounds[-1]), "the run itself under the same seeds"
    assert all("expect=any" in job and "model=lstm" in job for jobs in rounds for job in jobs)


def test_what_is_put_into_a_mapping_has_a_plus_in_jobs_of_the_search_too() -> None:
    weights = Change("loss.weights", ("loss.weights={a: 1.0}",), "a is not learnt")
    _, rounds = run(lambda v: "1.0" in v.get("loss.weights", ""), plan([weights]))
    assert "+loss.weights={a: 1.0}" in rounds[0][0] and not any(o.startswith("loss.weights") for o in rounds[0][0])


def test_a_bound_that_cures_is_loosened_where_there_was_none() -> None:
    def world(v: dict[str, str]) -> bool:
        return float(v.get("clip.max_norm", math.inf)) <= 7

    search, _ = run(world, plan([CLIP, RATE]))
    assert search.proven is not None and 0.5 * LOOSER > search.proven.value > 7 / 6 and search.proven.value <= 7


def test_others_are_tried_for_a_part_of_the_updates_and_the_best_to_its_end() -> None:
    search, rounds = run(lambda v: v.get("precision") == "bf16", plan())
    assert search.proven == BF16
    lengths = [[o for o in job if key(o) == "trainer.updates"] for job in rounds[1]]
    assert len(rounds[1]) == 3 and all(lengths) and len(rounds[2]) == 1
    assert "precision=bf16" in rounds[2][0] and not any(key(o) == "trainer.updates" for o in rounds[2][0])
    assert rounds[3] and len(rounds) == 4, "there is no number to shrink"


def test_pairs_are_tried_where_no_single_change_cures() -> None:
    def world(v: dict[str, str]) -> bool:
        return v.get("precision") == "bf16" and v.get("schedule") == "warmup"

    search, _ = run(world, plan(budget=8.0, died_at=20))
    assert search.proven is not None and set(search.proven.overrides) == {*BF16.overrides, *WARM.overrides}


def test_of_a_pair_only_what_is_needed_is_kept() -> None:
    """A change that looked lost in its trial, and cures alone all the same."""

    def world(v: dict[str, str]) -> bool:
        return v.get("precision") == "bf16" and ("trainer.updates" not in v or v.get("schedule") == "warmup")

    search, _ = run(world, plan(budget=8.0, died_at=20))
    assert search.proven == BF16


def test_what_cures_one_seed_only_is_not_proven() -> None:
    search, _ = run(lambda v: rate(v) <= 0.02 and v["seed"] == "4", plan(budget=6.0))
    assert search.proven is None and search.cure is not None and "further seeds" in search.ended


def test_a_smaller_change_that_fails_under_a_further_seed_is_taken_back() -> None:
    search, _ = run(lambda v: rate(v) <= (1.0 if v["seed"] == "4" else 0.02), plan())
    assert search.proven == RATE
    search, _ = run(lambda v: rate(v) <= (9.0 if v["seed"] == "4" else 2.0), plan())
    assert search.proven is not None and 0.01 < search.proven.value <= 2.0, "half of the way back is enough"


@pytest.mark.parametrize("budget", [1.0, 2.0, 4.0, 7.0])
@pytest.mark.parametrize("planned", [80, 200, 5000])
def test_the_budget_bounds_what_finding_costs(budget: float, planned: int) -> None:
    """And nothing cures: it ends, and says what it has tried."""
    many = [replace(WARM, name=f"w{i}", overrides=("schedule=warmup", f"schedule.warmup={i}")) for i in range(30)]
    search, rounds = run(lambda v: False, plan([*CHANGES, *many], planned, budget=budget))
    assert sum(t.attempts for t in search.trials) <= budget * planned + SHORTEST
    assert search.proven is None and search.cure is None and search.ended
    assert "optimizer.lr=0.01" in str(fix_report.failures(search, None))
    assert len(rounds[0]) == 1, "the likeliest first"


def test_trials_that_cannot_be_run_end_it_and_rule_nothing_out() -> None:
    search = FixSearch(plan())
    search.ask()
    search.tell([FinishedJob("0", {"sentence": "no such module"})])
    assert search.ask() == [] and "no such module" in search.ended
    assert fix_report.failures(search, None) == []


@pytest.mark.parametrize("hidden", [{"4": {9}}, {"4": set(), "6": {9}}, {"4": set(), "5": {9}, "6": {8, 9}}])
def test_samples_by_which_a_trial_is_lost_are_left_out_as_well(hidden: dict[str, set[int]]) -> None:
    """hidden: samples that are bad besides those of the failed run, by the seed that they show under."""
    leave = Change("data.without", ("data.without=[2]",), "it did it")
    search, rounds = FixSearch(plan([leave, RATE])), list[list[Any]]()

    def launch(jobs: list[Any]) -> list[FinishedJob]:
        rounds.append(jobs)
        return [lost_by(len(rounds), dict(o.split("=", 1) for o in job)) for job in jobs]

    def lost_by(number: int, v: dict[str, str]) -> FinishedJob:
        out = set(json.loads(v.get("data.without", "[]")))
        bad = ({2} | hidden.get(v["seed"], set())) - out
        job = finished(number, not bad, 1000 if not bad else 30)
        job.diagnosis["remedies"] = [{"overrides": [f"data.without={sorted(out | {max(bad, default=0)})}"], "why": ""}]
        return job

    conduct(search, launch, None, lambda text: None)
    every = sorted({2}.union(*hidden.values()))
    assert search.proven is not None and search.proven.overrides == (f"data.without={every}",)
    of_it = {t.seed for t in search.trials if t.change == search.proven and t.cured}
    assert of_it == {4, 5, 6}, "under its own seed and the further ones"


def test_what_a_trial_suggests_is_read(tmp_path: Path) -> None:
    suggested = [{"name": "data.without", "overrides": ["data.without=[2]"], "why": "", "lines": ""}]
    made.run(tmp_path / "0", [made.line(1, 1.0)], made.diagnosis("bad_batch", ill=True, remedies=suggested))
    assert read(tmp_path / "0")["remedies"] == suggested


def test_following_samples_leaves_half_of_the_budget_to_other_changes() -> None:
    leave = Change("data.without", ("data.without=[0]",), "it did it")
    search, number = FixSearch(plan([leave, RATE])), 0

    def launch(jobs: list[Any]) -> list[FinishedJob]:
        nonlocal number
        made = []
        for job in jobs:
            number += 1
            made.append(finished(number, "data.without" not in str(job) and "optimizer.lr=10.0" not in job, 1000))
            made[-1].diagnosis["remedies"] = [{"overrides": [f"data.without={[*range(number + 1)]}"], "why": ""}]
        return made

    conduct(search, launch, None, lambda text: None)
    assert search.proven is not None and search.proven.name == RATE.name
    assert sum("data.without" in str(t.change) for t in search.trials) == 2


@pytest.mark.parametrize(
    ("evaluations", "last", "cures"),
    [
        ([0.9, 0.5, 0.4], 0.4, True),
        ([0.9, 0.4, 1.1], 1.0, False),
        ([0.9, 0.4, 1.1], 0.4, True),  # overfitting is no divergence
        ([0.9, 0.4, 0.4], 1.0, True),  # a noisy batch at the end
        ([0.9, 0.5, 0.7], 0.55, True),  # noise about a level
        ([1.7, 1.6, 1.6], 1.6, False),
    ],
)
def test_a_healthy_run_whose_loss_rises_is_no_cure(evaluations: list[float], last: float, cures: bool) -> None:
    """Nor one that ends no better than the run that failed, where both came to their ends."""
    search = FixSearch(plan(end=1.5))
    search.ask()
    job = finished(1, True, 1000)
    job.diagnosis["outcome"]["eval"] = [{"epoch": i + 1, "eval/loss": v} for i, v in enumerate(evaluations)]
    job.diagnosis["evidence"] = {
        "loss_first": 2.3,
        "loss_best": min(last, 0.38),
        "loss_last": last,
        "loss_of_constant_answer": 2.3,
    }
    search.tell([job])
    trial = search.trials[0]
    assert trial.cured is cures and bool(trial.but) is not cures and trial.said.startswith("healthy")


def test_nothing_begins_when_the_time_is_over() -> None:
    calls = iter([False, False, True])
    search, rounds = run(lambda v: rate(v) <= 0.02, plan(), lambda: next(calls, True))
    assert len(rounds) == 2 and search.proven is None and search.cure == RATE and "time" in search.ended


def test_where_the_time_is_over_no_smaller_change_is_why_a_cure_is_not_proven() -> None:
    """It was taken back, and the cure itself was still to be run under further seeds."""

    def world(v: dict[str, str]) -> bool:
        return rate(v) <= (1.0 if v["seed"] == "4" else 0.02)

    asked: list[int] = []
    whole, rounds = run(world, plan())
    search, _ = run(world, plan(), lambda: asked.append(1) or len(asked) == len(rounds))
    assert whole.proven == RATE and search.proven is None and search.ended == "the time is over"


def test_a_proof_that_has_run_counts_though_the_time_is_over_after_it() -> None:
    asked: list[int] = []
    _, rounds = run(lambda v: rate(v) <= 0.3, plan())
    search, again = run(lambda v: rate(v) <= 0.3, plan(), lambda: asked.append(1) or len(asked) > len(rounds))
    assert again == rounds and search.proven is not None and not search.ended


@pytest.mark.parametrize("edge", [0.011, 0.5])
def test_the_reason_of_a_value_is_not_that_of_another(edge: float) -> None:
    """A measurement that aims at one rate says nothing of another, be it larger or kept at a distance."""
    search, _ = run(lambda v: rate(v) <= edge, plan())
    assert search.proven is not None and search.proven.value != RATE.value
    assert fix_report.reason(search, search.proven) == "found from optimizer.lr=0.01 (updates were large)"
    assert fix_report.reason(search, RATE) == RATE.why


def test_it_depends_on_the_results_alone() -> None:
    def world(v: dict[str, str]) -> bool:
        return rate(v) <= 0.3 and v["seed"] != "5"

    assert run(world, plan())[1] == run(world, fix_plan.from_dict(json.loads(json.dumps(asdict(plan())))))[1]


def test_what_did_not_cure_is_told_by_its_values_and_how_it_ended() -> None:
    """Not as a cause that is ruled out: another optimizer that learns was not at fault."""
    search = FixSearch(plan([WARM]))
    search.ask()
    job = finished(1, False, 1000)
    job.diagnosis.update(verdict="dominant_layer", learns=True)
    search.tell([job])
    content = {"plan": asdict(search.plan), "cure": None, "ended": "", "code": [], "proven": False}
    said = fix_report.lines(content | {"did_not_help": fix_report.failures(search, None)})
    assert "  schedule=warmup schedule.warmup=20: dominant_layer, though it learns" in said
    assert not any("does not cure" in line for line in said)


def test_an_estimate_says_what_it_assumes() -> None:
    said = " ".join(fix_report.estimate(plan(), 2.0))
    assert "2 s" in said and "as fast" in said and "at most" not in said
    many = plan([replace(WARM, overrides=[f"optimizer.lr={i}"]) for i in range(5)])
    assert "optimizer.lr=2; and 2 more" in fix_report.estimate(many, 2.0)[0]


@pytest.mark.parametrize(
    ("override", "another"),
    [("loss.weights={a: 1.0}", True), ("loss.reduction=mean", False), ("optimizer.lr=0.1", False)],
)
def test_losses_of_other_weights_are_not_compared(override: str, another: bool) -> None:
    assert fix_report.another_loss(Change("a", (override,), "")) == another


def test_an_interval_ends_at_all_of_what_there_is() -> None:
    assert fix_report.share({"mean": 0.95, "low": 0.82, "high": 1.08}) == "+95.0% [+82.0%, +100.0%]"


def test_raised_rates_and_loosened_bounds_are_not_shrunk() -> None:
    from helpers import composed

    from gradlab.config.schema import to_config

    config = to_config(composed("clip=norm", "optimizer.lr=0.01"))
    assert fix_plan.shrinkable(["optimizer.lr=0.001"], config) == Number("optimizer.lr", 0.01)
    assert fix_plan.shrinkable(["clip.max_norm=0.1"], config) == Number("clip.max_norm", 1.0)
    for overrides in (["optimizer.lr=0.1"], ["clip.max_norm=3"], ["precision=bf16"], ["model.init=he"]):
        assert fix_plan.shrinkable(overrides, config) is None
    bare = to_config(composed())
    assert fix_plan.shrinkable(["clip=norm", "clip.max_norm=3"], bare) == Number("clip.max_norm", math.inf)
    assert NEAR > 1


# --- the command ------------------------------------------------------------------------------------------------------

NET = """
import torch

class Net(torch.nn.Sequential):
    def __init__(self):
        super().__init__(torch.nn.Flatten(), torch.nn.Linear(64, 16), torch.nn.Tanh(), torch.nn.Linear(16, 10))
"""
OWN = (
    *("model=custom", "model.target=mynet:Net", "optimizer=sgd", "optimizer.lr=100", "trainer.updates=100"),
    *("trainer.epochs=10", "trainer.progress=none", "hydra.run.dir=outputs/run/a"),
)


@pytest.fixture(scope="module")
def fixed(gradlab: Commands, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any, Any]:
    """A run of a user's own model at a rate far too high, and its fix."""
    here = tmp_path_factory.mktemp("fixed")
    (here / "mynet.py").write_text(NET)
    lost = gradlab(*OWN, cwd=here)
    return here, lost, gradlab.python("-m", "gradlab.fix", "outputs/run/a", cwd=here).result(60)


@pytest.mark.slow
def test_a_run_of_ones_own_model_is_fixed(fixed: tuple[Path, Any, Any], gradlab: Commands) -> None:
    here, lost, result = fixed
    assert lost.code == 1 and "python -m gradlab.fix " in lost.out, lost
    assert result.code == 0 and "== fixed: optimizer.lr=" in result.out, result
    folder = here / "outputs" / "run" / "a_fix"
    content = json.loads((folder / "fix.json").read_text())
    assert content["proven"] and content["effect"]["seeds"] == 3 and content["cost"]
    page = (folder / "report.html").read_text()
    assert "fix-view" in page and "the runs of the search" in page
    verdicts = [json.loads((folder / t["job"] / "diagnosis.json").read_text())["verdict"] for t in content["trials"]]
    assert verdicts == [t["verdict"] for t in content["trials"]]
    again = gradlab(*content["command"].split()[3:], "trainer.progress=none", cwd=here)
    assert again.code == 0 and "verdict: healthy" in again.out, again


@pytest.mark.slow
def test_given_again_it_runs_nothing_and_says_the_same(fixed: tuple[Path, Any, Any], gradlab: Commands) -> None:
    here, _, first = fixed
    folder = here / "outputs" / "run" / "a_fix"
    before = {p: p.stat().st_mtime_ns for p in folder.glob("*/metrics.jsonl")}
    second = gradlab.python("-m", "gradlab.fix", "outputs/run/a", cwd=here).result(60)
    assert second.code == 0 and before == {p: p.stat().st_mtime_ns for p in folder.glob("*/metrics.jsonl")}
    assert second.out[second.out.index("== fixed") :] == first.out[first.out.index("== fixed") :]


def test_wrong_folders_are_told_in_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fine = made.run(tmp_path / "fine", [made.line(1, 1.0)], made.diagnosis("healthy"))
    cut = made.run(tmp_path / "cut", [made.line(1, 1.0)], None)
    lost = made.run(tmp_path / "lost", [made.line(1, 1.0)], made.diagnosis("diverged", ill=True))
    for arguments, says in [
        ([str(tmp_path / "nowhere")], "no such folder"),
        ([str(fine)], "has nothing to fix: its verdict is healthy"),
        ([str(cut)], "has no verdict to begin with"),
        ([str(lost), "--runs", "0"], "--runs=0.0: must be >= 1"),
        ([str(lost), "--seeds", "0"], "--seeds=0: must be in [1, 100]"),
        ([], "see python -m gradlab.fix --help"),
    ]:
        assert main(arguments) == 2
        error = capsys.readouterr().err
        assert says in error and error.count("\n") <= 2, error


@pytest.mark.slow
def test_interrupted_it_goes_on_where_it_was(gradlab: Commands, tmp_path: Path) -> None:
    (tmp_path / "mynet.py").write_text(NET)
    gradlab(*OWN, "trainer.updates=600", "trainer.epochs=100", cwd=tmp_path, timeout=200)
    folder = tmp_path / "outputs" / "run" / "a_fix"
    command = gradlab.python("-m", "gradlab.fix", "outputs/run/a", cwd=tmp_path)
    wait_for(lambda: len(list(folder.glob("*/metrics.jsonl"))) >= 2, command)
    command.send_signal(signal.SIGINT)
    assert command.wait(100) == 130, command.result()
    done = {p: p.stat().st_mtime_ns for p in folder.glob("*/diagnosis.json") if '"interrupted"' not in p.read_text()}
    second = gradlab.python("-m", "gradlab.fix", "outputs/run/a", cwd=tmp_path, timeout=300).result(300)
    assert second.code == 0, second
    assert done and done == {p: p.stat().st_mtime_ns for p in done}


@pytest.mark.slow
def test_a_run_fixes_itself_where_it_is_asked_to(gradlab: Commands, tmp_path: Path) -> None:
    (tmp_path / "mynet.py").write_text(NET)
    result = gradlab(*OWN, "fix=true", cwd=tmp_path, timeout=200)
    assert result.code == 0 and "== fixed: optimizer.lr=" in result.out, result
