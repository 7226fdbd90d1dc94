"""Whole jobs as lanes against the same jobs one by one: their files, verdicts, and what can be done with them later."""

import contextlib
import copy
import io
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import MEASURED, composed
from omegaconf import OmegaConf

from gradlab.base.distributed import World
from gradlab.base.json_lines import read_lines
from gradlab.config.schema import to_config
from gradlab.runs.job import Job
from gradlab.sweep.vectorized.lane import Lane
from gradlab.sweep.vectorized.planning import PlannedJob
from gradlab.sweep.vectorized.program import Program
from gradlab.train import checkpoint


def planned(folder: Path, number: int, *overrides: str) -> PlannedJob:
    """A job as the launcher plans it. What is common to many is composed once."""
    values = [o for o in overrides if "." in o.split("=")[0] and o[0] not in "+~"]
    cfg = copy.deepcopy(composed(*(o for o in overrides if o not in values)))
    for override in values:
        OmegaConf.update(
            cfg, override.split("=")[0], OmegaConf.select(OmegaConf.from_dotlist([override]), override.split("=")[0])
        )
    (folder / str(number)).mkdir(parents=True, exist_ok=True)
    plain: Any = OmegaConf.to_container(cfg, resolve=True)
    return PlannedJob(number, list(overrides), folder / str(number), to_config(cfg), plain, "run")


def one_by_one(folder: Path, jobs: Sequence[Sequence[str]]) -> list[int]:
    """Exit codes."""
    codes = []
    with contextlib.redirect_stdout(io.StringIO()):
        for i, overrides in enumerate(jobs):
            job = planned(folder, i, *overrides)
            codes.append(Job(job.config, job.plain, job.folder, job.overrides, job.group, World()).run())
    return codes


def as_lanes(folder: Path, jobs: Sequence[Sequence[str]], lanes: int = 64) -> list[int]:
    """Exit codes of the same, trained in stacks of so many; all of one that is no larger in the same."""
    codes: dict[int, int] = {}
    program = Program([planned(folder, i, *overrides) for i, overrides in enumerate(jobs)])
    for i in range(0, len(jobs), lanes):
        program.run(range(i, min(i + lanes, len(jobs))), codes.__setitem__, lambda updates: None)
    return [codes[i] for i in range(len(jobs))]


def described(value: Any) -> Any:
    """A nested structure with the kinds of its leaves for their values."""
    if isinstance(value, torch.Tensor):
        return str(value.dtype), tuple(value.shape)
    if isinstance(value, dict):
        return {k: described(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [described(v) for v in value]
    return "number" if isinstance(value, int | float) else value if value is None else type(value)


@dataclass
class Left:
    """What a job left in its folder."""

    folder: Path

    @property
    def files(self) -> list[str]:
        return sorted(str(p.relative_to(self.folder)) for p in self.folder.rglob("*"))

    @property
    def diagnosis(self) -> dict[str, Any]:
        return json.loads((self.folder / "diagnosis.json").read_text())

    def lines(self, name: str) -> list[dict[str, Any]]:
        return list(read_lines(self.folder / f"{name}.jsonl"))

    def state(self, name: str) -> dict[str, Any]:
        return torch.load(self.folder / f"{name}.pt", weights_only=True)


def close(a: Any, b: Any, rel: float) -> bool:
    """Whether two values of a line are the same up to rounding."""
    if isinstance(a, list):
        return len(a) == len(b) and all(close(x, y, rel) for x, y in zip(a, b, strict=True))
    if isinstance(a, float) and isinstance(b, float | int):
        return a == pytest.approx(b, rel=rel, abs=1e-7, nan_ok=True)
    return a == b


def same_lines(lane: Left, alone: Left, updates: int, rel: float) -> None:
    """All lines have the same names; the first updates' the same values."""
    for name in ("metrics", "layers"):
        got, wanted = lane.lines(name), alone.lines(name)
        assert [list(line) for line in got] == [list(line) for line in wanted], name
        for a, b in zip(got, wanted, strict=True):
            if b.get("attempt", 0) <= updates:
                for key, value in b.items():
                    assert key in MEASURED or close(a[key], value, rel), (name, b.get("attempt"), key, a[key], value)


def same_states(lane: Left, alone: Left) -> None:
    for name in ("checkpoint", "crash"):
        if (alone.folder / f"{name}.pt").is_file():
            got, wanted = lane.state(name), alone.state(name)
            assert described({**got, "files": 0}) == described({**wanted, "files": 0})


def same_jobs(
    folder: Path, jobs: Sequence[Sequence[str]], updates: int = 10**9, rel: float = 1e-3
) -> list[dict[str, Any]]:
    """Run jobs both ways, compare what they leave, and return the diagnoses of the lanes.

    updates: from which on trajectories may differ in more than rounding.
    """
    codes = one_by_one(folder / "alone", jobs), as_lanes(folder / "lanes", jobs)
    assert codes[0] == codes[1]
    found = []
    for i, overrides in enumerate(jobs):
        alone, lane = (Left(folder / name / str(i)) for name in ("alone", "lanes"))
        assert lane.files == alone.files, overrides
        got, wanted = lane.diagnosis, alone.diagnosis
        assert described(got["outcome"]) == described(wanted["outcome"]) and got["outcome"]["seconds"] > 0
        for key in wanted:
            if key not in ("evidence", "findings", "outcome", "sentence", "first_overflow", "measured"):
                assert got[key] == wanted[key], (overrides, key)
        for key in ("status", "attempts", "applied", "epoch", "epochs_completed", "first_failed_attempt"):
            assert got["outcome"][key] == wanted["outcome"][key], (overrides, key)
        assert described(got["measured"]) == described(wanted["measured"])
        assert [f["code"] for f in got["findings"]] == [f["code"] for f in wanted["findings"]]
        assert (got["first_overflow"] or {}).get("module") == (wanted["first_overflow"] or {}).get("module")
        same_lines(lane, alone, updates, rel)
        same_states(lane, alone)
        found.append(got)
    return found


def weights(folder: Path) -> torch.Tensor:
    state = Left(folder).state("checkpoint")["model"]
    return torch.cat([v.double().flatten() for v in state.values()])


SHORT = ("expect=any", "trainer.epochs=2", "monitor.every=2", "monitor.step_every=3")
EXPLODING = (
    *("+experiment=exploding", "clip=norm", "data.samples=400", "data.test_samples=50", "model.width=16"),
    *("data.length=20", *SHORT),
)


def test_jobs_that_learn_and_jobs_that_explode_leave_what_they_leave_alone(tmp_path: Path) -> None:
    """Lanes 0 and 3 end early, by a gradient that is not finite; the lane that gives the module its name is one."""
    rates = ("100", "0.01", "0.03", "30", "0.01")
    norms = ("1e9", "1", "0.1", "1e9", "10")
    jobs = [(*EXPLODING, f"optimizer.lr={lr}", f"clip.max_norm={n}") for lr, n in zip(rates, norms, strict=True)]
    jobs[4] = (*jobs[4], "seed=1")
    found = same_jobs(tmp_path, jobs, 10)
    assert [d["verdict"] == "exploding" for d in found] == [True, False, False, True, False]
    assert (tmp_path / "lanes" / "0" / "crash.pt").is_file()


MLP = ("model=sigmoid_mlp", "model.norm=batch", "data.batch_size=64", *SHORT, "trainer.updates=30")


@pytest.mark.slow
def test_jobs_whose_loss_scale_collapses_leave_what_they_leave_alone(tmp_path: Path) -> None:
    """fp16: one lane overflows for good, and ends at the floor of its scale; one skips a few updates; one never."""
    fp16 = ("precision=fp16", "precision.growth_interval=5", "optimizer=sgd", "model.activation=relu", "seed=2")
    base = ("model=sigmoid_mlp", "data.batch_size=64", *SHORT, "trainer.updates=30", *fp16)
    jobs = [
        (*base, "optimizer.lr=1e5", "precision.min_scale=0.01", "precision.init_scale=256"),
        (*base, "optimizer.lr=0.01", f"precision.init_scale={2.0**24}"),
        (*base, "optimizer.lr=0.01", "precision.init_scale=256"),
        (*base, "optimizer.lr=1e5", "precision.min_scale=1e-4", "precision.init_scale=256", "precision.check_every=7"),
    ]
    found = same_jobs(tmp_path, jobs, 8, 0.02)
    outcomes = [d["outcome"] for d in found]
    assert [o["scale_too_small"] for o in outcomes] == [True, False, False, True]
    assert outcomes[1]["attempts"] > outcomes[1]["applied"] == 30 == outcomes[2]["attempts"]
    assert [(tmp_path / "lanes" / str(i) / "crash.pt").is_file() for i in range(4)] == [True, False, False, True]


@pytest.mark.slow
def test_a_streak_of_failures_is_kept_although_an_update_comes_through_after_it(tmp_path: Path) -> None:
    """A loss so large that fp16 has its gradient only with a scale far below 1; the floor is looked at much later."""
    base = (
        *("model=lstm", "data=adding", "data.length=8", "data.samples=1000", "data.batch_size=16", "optimizer=sgd"),
        *("loss=mse", "loss.unit=3000", "precision=fp16", "precision.init_scale=64", "precision.min_scale=0.5"),
        *("precision.check_every=35", "precision.growth_interval=3", "clip=norm", *SHORT),
    )
    found = same_jobs(tmp_path, [(*base, f"optimizer.lr={lr}") for lr in (0.05, 0.1)], rel=0.05)
    for i, told in enumerate(found):
        o = told["outcome"]
        assert o["scale_too_small"] and 20 < o["first_failed_attempt"] < 35 == o["attempts"] and o["applied"] > 3
        alone, lane = (Left(tmp_path / kind / str(i)).state("crash")["model"] for kind in ("alone", "lanes"))
        first = Left(tmp_path / "alone" / "0").state("crash")["model"]
        for k, v in alone.items():
            assert (lane[k] - v).norm() < 1e-3 * v.norm()  # not those of the beginning
            assert not i or (first[k] - v).norm() > 1e-2 * v.norm()


@pytest.mark.slow
def test_the_others_do_not_notice_a_lane_that_dies(tmp_path: Path) -> None:
    """Batch norm, whose statistics a lane that overflows would spoil; the first of all dies, and with others."""
    well = [(*MLP, f"optimizer.lr={lr}", f"seed={seed}") for lr, seed in ((0.001, 0), (0.01, 1), (0.003, 0))]
    ill = [(*MLP, "optimizer.lr=3e38", "seed=0"), (*MLP, "optimizer.lr=1e38", "seed=1")]
    as_lanes(tmp_path / "well", well)
    as_lanes(tmp_path / "all", [ill[0], well[0], well[1], ill[1], well[2]])
    for i in (0, 3):
        assert Left(tmp_path / "all" / str(i)).diagnosis["outcome"]["status"] == "failed"
    for i, j in enumerate((1, 2, 4)):
        with_them, without = Left(tmp_path / "all" / str(j)), Left(tmp_path / "well" / str(i))
        assert with_them.diagnosis["outcome"]["applied"] == 30
        same_lines(with_them, without, 30, 1e-4)
        apart = (weights(with_them.folder) - weights(without.folder)).norm()
        assert apart < 1e-4 * weights(without.folder).norm()


@pytest.mark.slow
def test_a_lane_resumed_alone_goes_on_as_the_run_alone(tmp_path: Path) -> None:
    """Adam's moments, a clip that remembers, a schedule, statistics and noise, from the middle of an epoch."""
    base = (
        *("model=sigmoid_mlp", "model.norm=batch", "data.batch_size=64", "expect=any", "clip=autoclip"),
        *("clip.history=5", "schedule=warmup_cosine", "schedule.warmup=3", "schedule.updates=30", "noise=gaussian"),
        *("noise.eta=1e-4", "trainer.epochs=2", "optimizer.eps=1e-4"),
    )
    jobs = [(*base, f"optimizer.lr={lr}", f"seed={seed}") for lr, seed in ((0.003, 1), (0.01, 2))]
    one_by_one(tmp_path / "alone", [(*job, "trainer.updates=30") for job in jobs])
    as_lanes(tmp_path / "lanes", [(*job, "trainer.updates=13") for job in jobs])
    for i, overrides in enumerate(jobs):
        folder = tmp_path / "lanes" / str(i)
        job = planned(tmp_path / "lanes", i, *overrides, "trainer.updates=30", f"resume={folder}")
        with contextlib.redirect_stdout(io.StringIO()):
            Job(job.config, job.plain, folder, job.overrides, "run", World()).run()
        alone = Left(tmp_path / "alone" / str(i))
        assert [line["update"] for line in Left(folder).lines("metrics")][-2:] == [30, 30]
        assert (
            Left(folder).state("checkpoint")["random"][0]["python"] == alone.state("checkpoint")["random"][0]["python"]
        )
        got, wanted = ([e for e in left.lines("metrics") if "lr" in e] for left in (Left(folder), alone))
        assert [(e["attempt"], e["epoch"], e["lr"]) for e in got] == [
            (e["attempt"], e["epoch"], e["lr"]) for e in wanted
        ]
        assert [e["train/loss"] for e in got] == pytest.approx([e["train/loss"] for e in wanted], rel=1e-3)
        apart = (weights(folder) - weights(alone.folder)).norm()
        assert apart < 1e-3 * weights(alone.folder).norm()


@pytest.mark.slow
def test_lanes_begin_with_the_weights_that_they_are_given(tmp_path: Path) -> None:
    """init_from, another checkpoint in each lane; both look at the test set before the first update."""
    small = ("model=sigmoid_mlp", "data.batch_size=64", *SHORT, "trainer.updates=6")
    one_by_one(tmp_path / "before", [(*small, "seed=5"), (*small, "seed=6")])
    jobs = [(*small, f"init_from={tmp_path / 'before' / str(i)}", "optimizer.lr=0.001") for i in (0, 1)]
    found = same_jobs(tmp_path, jobs)
    assert all(d["outcome"]["eval"][0]["epoch"] == 0 for d in found)
    assert found[0]["outcome"]["eval"][0] != found[1]["outcome"]["eval"][0]


@pytest.mark.slow
def test_checkpoints_on_the_way_are_those_of_the_job_alone(tmp_path: Path) -> None:
    base = (
        *("model=sigmoid_mlp", "model.norm=batch", "data.batch_size=256", "expect=any", "trainer.checkpoint_every=4"),
        *("trainer.updates=12", "trainer.epochs=2"),
    )
    kept: dict[str, list[Any]] = {"alone": [], "lanes": []}
    save = checkpoint.save

    def spy(path: Path, state: dict[str, Any]) -> None:
        kept[path.parent.parent.name].append((path.parent.name, state["position"], state["update"]["attempts"]))
        save(path, state)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint, "save", spy)
        same_jobs(tmp_path, [(*base, "optimizer.lr=0.01"), (*base, "optimizer.lr=0.001", "seed=1")])
    assert sorted(kept["lanes"], key=str) == sorted(kept["alone"], key=str) and len(kept["lanes"]) == 8


def test_a_fault_that_is_not_of_training_costs_one_lane(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A disk that is full for one lane's metrics; a diagnosis that breaks; a folder that cannot be written to."""
    write, diagnose = Lane.write, Job.diagnose

    def full(self: Lane, metrics: dict[str, Any], layers: Any) -> None:
        if self.folder.name == "1" and metrics["attempt"] == 3:
            raise OSError(28, "No space left on device")
        write(self, metrics, layers)

    def broken(self: Job, outcome: Any) -> Any:
        if self.folder.name == "2":
            raise ZeroDivisionError("by zero")
        return diagnose(self, outcome)

    monkeypatch.setattr(Lane, "write", full)
    monkeypatch.setattr(Job, "diagnose", broken)
    jobs = [("model=sigmoid_mlp", *SHORT, "trainer.updates=6", f"optimizer.lr={lr}") for lr in (0.1, 0.2, 0.3, 0.4)]
    (tmp_path / "3" / "metrics.jsonl").mkdir(parents=True)
    assert as_lanes(tmp_path, jobs) == [0, 1, 1, 1]
    assert Left(tmp_path / "0").diagnosis["outcome"]["applied"] == 6
    says = [Left(tmp_path / str(i)).diagnosis["sentence"] for i in (1, 2, 3)]
    assert "No space left" in says[0] and "by zero" in says[1] and "Is a directory" in says[2]
    told = capsys.readouterr().err
    assert all(f"job {i}: " in told for i in (1, 2, 3))


UPDATES = ("expect=any", "clip=norm", "monitor.step_every=0", "trainer.threads=1")
MAPS: dict[str, tuple[str, ...]] = {
    "rnn": (*EXPLODING, "trainer.updates=20"),
    "rnn, fp16": (
        *EXPLODING,
        "trainer.updates=20",
        "precision=fp16",
        "precision.min_scale=1",
        "precision.init_scale=64",
    ),
    "lstm": (
        *("model=lstm", "data=adding", "model.width=16", "data.length=10", "data.samples=640"),
        *("data.test_samples=50", "optimizer=sgd", "trainer.updates=20", *UPDATES),
    ),
    "sigmoid_mlp": (
        *("model=sigmoid_mlp", "model.layers=6", "optimizer=sgd", "data.batch_size=64", "trainer.updates=25", *UPDATES),
    ),
    "transformer": (
        *("model=transformer", "model.layers=1", "model.width=16", "model.heads=2", "data.length=12", "optimizer=sgd"),
        *("data.samples=320", "data.test_samples=32", "data.batch_size=16", "trainer.updates=20", *UPDATES),
    ),
    "transformer, fp16": (
        *("model=transformer", "model.layers=1", "model.width=16", "model.heads=2", "data.length=12", "optimizer=sgd"),
        *("data.samples=320", "data.test_samples=32", "data.batch_size=16", "trainer.updates=20", *UPDATES),
        *("precision=fp16", "precision.min_scale=1", "precision.init_scale=1024", "model.norm=none"),
    ),
    "resnet": (
        *("model=resnet", "model.norm=none", "optimizer=sgd", "data.batch_size=2", "trainer.updates=3", *UPDATES[:2]),
        *("trainer.evaluate_every=0", "trainer.threads=1", "monitor=none"),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MAPS)
def test_a_map_has_the_verdicts_of_the_jobs_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Learning rates and max_norms, some of which explode; at the very edge chaos may decide one or two."""
    monkeypatch.setattr(checkpoint, "save", lambda path, state: None)  # of ResNets: gigabytes
    side = {"resnet": 3, "transformer": 5}.get(name, 4)
    lrs, norms = ([a * (b / a) ** (i / (side - 1)) for i in range(side)] for a, b in ((1e-3, 1e3), (1e-2, 1e4)))
    jobs = [(*MAPS[name], f"optimizer.lr={lr:.4g}", f"clip.max_norm={norm:.4g}") for lr in lrs for norm in norms]
    one_by_one(tmp_path / "alone", jobs)
    as_lanes(tmp_path / "lanes", jobs, 4 if name == "resnet" else 64)
    verdicts = [
        [Left(tmp_path / kind / str(i)).diagnosis["verdict"] for i in range(len(jobs))] for kind in ("alone", "lanes")
    ]
    apart = [(*jobs[i][-2:], a, b) for i, (a, b) in enumerate(zip(*verdicts, strict=True)) if a != b]
    print(name, Counter(verdicts[0]), "apart:", apart)
    assert len(set(verdicts[0])) > 1 and len(apart) <= 1, apart
