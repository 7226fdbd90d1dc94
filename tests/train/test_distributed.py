"""Several ranks are one machine, larger: the same trajectory as a plain loop in one process, and as each other."""

import copy
import json
import math
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from forked import Commands
from helpers import (
    HERE,
    differences,
    load,
    losses,
    metrics,
    of_the_run,
    run,
    start,
    torchrun,
    trainer,
    wait_for,
    weights,
)
from ranks import EVERYTHING, SAME

from gradlab.data.order import epoch_order

pytestmark = pytest.mark.distributed


def cases(gradlab: Commands, once: Any, ranks: int, *names: str) -> Callable[[str], list[dict[str, Any]]]:
    """Run cases of ranks.py in one launch; what each rank left, by case."""

    def launch(folder: Path) -> None:
        ended = gradlab.torchrun(ranks, str(HERE / "ranks.py"), *names, cwd=folder)
        assert ended.code == 0, ended.err

    folder = once(f"ranks_{ranks}", launch)
    return lambda name: [torch.load(folder / f"{name}.{rank}.pt", weights_only=False) for rank in range(ranks)]


@pytest.fixture(scope="module")
def two(gradlab: Commands, once: Any) -> Callable[[str], list[dict[str, Any]]]:
    return cases(gradlab, once, 2, "digits", "text", "everything", "interrupted", "overflow_of_one_rank", "buckets")


@pytest.fixture(scope="module")
def four(gradlab: Commands, once: Any) -> Callable[[str], list[dict[str, Any]]]:
    return cases(gradlab, once, 4, *SAME)


@pytest.fixture(scope="module")
def swept(gradlab: Commands, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A multirun from the command line, on two ranks."""
    folder = tmp_path_factory.mktemp("swept")
    sweep = ("-m", *EVERYTHING, "seed=0,1", "hydra.sweep.dir=sweep")
    ended = gradlab.torchrun(2, "-m", "gradlab", *sweep, cwd=folder)
    assert ended.code == 0, ended.err
    return folder, ended.out


def plain_loop(folder: Path, overrides: tuple[str, ...], windows: list[int]) -> tuple[list[float], torch.Tensor]:
    """What one big batch gives: a forward pass of the whole window, the mean over its samples or tokens, SGD."""
    begun = trainer(folder / "begun", *overrides, "data.batch_size=8")  # for the first weights and the data alone
    model, data = copy.deepcopy(begun.module), begun.data.train
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    found = []
    for epoch in range(3):
        position, order = 0, epoch_order(len(data), 7, epoch)
        for size in windows:
            x, y = data.batch(order[position : position + size])
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x).flatten(0, -2), y.flatten(), ignore_index=-100)
            loss.backward()
            optimizer.step()
            found.append(loss.item())
            position += size
        assert position == len(data)
    return found, weights(model)


@pytest.mark.parametrize(("name", "windows"), [("digits", [24, 24, 2]), ("text", [24, 21])])
def test_one_two_and_four_ranks_are_one_plain_loop(
    tmp_path: Path, two: Any, four: Any, name: str, windows: list[int]
) -> None:
    expected, final = plain_loop(tmp_path, SAME[name], windows)
    one = trainer(tmp_path / "one", *SAME[name], "data.batch_size=8")
    one.run()
    everyone = [*two(name), *four(name)]
    for found in (losses(tmp_path / "one"), two(name)[0]["losses"], four(name)[0]["losses"]):
        assert found == pytest.approx(expected, rel=1e-5)
    for found in (weights(one.module), *(rank["weights"] for rank in everyone)):
        assert found.numpy() == pytest.approx(final.numpy(), abs=2e-6)
    assert len({tuple(rank["weights"].tolist()) for rank in two(name)}) == 1, "bitwise the same on all ranks"
    for ours, theirs in zip(one.outcome.eval, everyone[-1]["outcome"]["eval"], strict=True):
        assert ours["eval/loss"] == pytest.approx(theirs["eval/loss"], rel=1e-5)
        assert ours["eval/accuracy"] == pytest.approx(theirs["eval/accuracy"])


def test_noise_and_clipping_act_on_the_gradient_of_all_ranks(tmp_path: Path, four: Any) -> None:
    one = trainer(tmp_path, *SAME["noise_and_clip"], "data.batch_size=8")
    one.run()
    for rank in four("noise_and_clip"):
        assert rank["weights"].numpy() == pytest.approx(weights(one.module).numpy(), abs=5e-6)


@pytest.mark.parametrize("name", ["summed", "unused", "streamed", "terms", "late"])
def test_a_summed_loss_unused_parameters_and_streamed_data_are_as_on_one_rank(
    tmp_path: Path, four: Any, name: str
) -> None:
    """Of four ranks some have no sample in the last window."""
    one = trainer(tmp_path, *SAME[name], "data.batch_size=8")
    one.run()
    for rank in four(name):
        assert rank["weights"].numpy() == pytest.approx(weights(one.module).numpy(), abs=5e-6)


def test_one_rank_under_torchrun_is_bitwise_the_plain_run(gradlab: Commands, tmp_path: Path) -> None:
    folder = tmp_path / "torchrun"
    ended = gradlab.torchrun(1, "-m", "gradlab", *EVERYTHING, f"hydra.run.dir={folder}", cwd=tmp_path)
    assert ended.code == 0, ended.err
    trainer(tmp_path / "plain", *EVERYTHING).run()
    assert differences(of_the_run(load(folder)), of_the_run(load(tmp_path / "plain"))) == []
    assert differences(metrics(folder), metrics(tmp_path / "plain")) == []


def test_one_all_reduce_of_the_gradient_an_update(two: Any) -> None:
    for rank in two("buckets"):
        assert len(rank["reduced"][-1]) > 1, "DDP cuts the gradient into buckets after its first backward pass"
        for reduced in rank["reduced"]:
            assert sorted(reduced) == list(range(len(reduced))), (
                "each bucket once, whatever the number of micro-batches"
            )


def test_everything_at_once_and_resumed_on_two_ranks(two: Any) -> None:
    """DDP, accumulation, fp16, clipping, noise, dropout, activation checkpointing and checkpoints."""
    main, other = two("everything")
    assert (
        main["outcome"]["status"] == "completed" and 0 < main["outcome"]["applied"] < main["outcome"]["attempts"] == 6
    )
    assert torch.equal(main["weights"], other["weights"]) and torch.isfinite(main["weights"]).all()
    assert differences(main["resumed"], main["whole"]) == []
    assert torch.equal(other["resumed_weights"], main["resumed_weights"])
    draws = main["whole"]["random"]
    assert not torch.equal(draws[0]["cpu"], draws[1]["cpu"]), "each rank drops its own units"


def test_all_ranks_stop_when_one_is_told_to(two: Any) -> None:
    for rank in two("interrupted"):
        assert rank["outcome"]["status"] == "interrupted" and rank["outcome"]["attempts"] == 3 and rank["checkpoint"]


def test_all_ranks_skip_or_stop_when_one_overflows(two: Any) -> None:
    ranks = two("overflow_of_one_rank")
    for rank in ranks:
        assert rank["skip"]["outcome"]["status"] == "completed"
        assert rank["skip"]["outcome"]["applied"] == rank["skip"]["outcome"]["attempts"] - 1
        assert rank["stop"]["outcome"]["status"] == "failed" and rank["stop"]["outcome"]["attempts"] == 4
        assert all(torch.isfinite(rank[how]["weights"]).all() for how in ("skip", "stop"))
        assert sum(len(x) for x, _ in rank["crash"]) == 8, "the batches of all ranks: the fault may be in any of them"
    assert torch.equal(ranks[0]["skip"]["weights"], ranks[1]["skip"]["weights"])


@pytest.mark.slow
def test_a_sweep_on_two_ranks_makes_one_folder_a_job(tmp_path: Path, swept: tuple[Path, str]) -> None:
    folder, said = swept
    assert sorted(p.name for p in folder.iterdir()) == ["sweep"]
    for seed in (0, 1):
        job = folder / "sweep" / str(seed)
        assert {"checkpoint.pt", "metrics.jsonl", "layers.jsonl", "diagnosis.json", ".hydra"} <= {
            p.name for p in job.iterdir()
        }
        attempts = [line["attempt"] for line in metrics(job) if "train/loss" in line]
        assert attempts == [1, 2, 3, 4, 5, 6], "rank 0 alone writes"
        assert load(job)["config"]["seed"] == seed
    assert not list(folder.glob("**/.hydra/**/1")) and len(list(folder.glob("**/metrics.jsonl"))) == 2
    assert said.count("verdict:") == 2


FAULTY = (
    "model=custom",
    "model.target=streams:Net",
    "data=custom",
    "data.target=streams:faulty_on_rank1",
    "data.batch_size=4",
)
FAILING = {
    "unused": (
        ("model=custom", "model.target=nets:Unused", "trainer.epochs=1"),
        "find_unused_parameters=false: must be",
    ),
    "model": (("model=custom", "model.target=nets:FailsOnRank1"), "the third forward pass of rank 1 is out of luck"),
    "data": (("data=custom", "data.target=nets:data_missing_on_rank1"), "/data/shard_1: No such file or directory"),
    "stream": (
        (*FAULTY, "+data.kwargs.how=ends", "data.batches=40"),
        "rank 1: data.batches=40: batches of an epoch were expected, but streams:faulty_on_rank1 ended before batch 16",
    ),
    "sample": (
        (*FAULTY, "+data.kwargs.how=raises", "data.workers=1"),
        "rank 1: data.target=streams:faulty_on_rank1: sample 77 raises KeyError: 'no such file'",
    ),
    "worker": (
        (*FAULTY, "+data.kwargs.how=dies", "data.workers=1"),
        "rank 1: data.workers",  # and more, unless PyTorch's handler of signals finds it elsewhere
    ),
}


def failing(gradlab: Commands, here: Path, *names: str) -> None:
    """At the same time: a rank that fails waits ten seconds for the others, in case that they do too."""
    launches = []
    for what in names:
        (here / what).mkdir()
        told = str(here / what / "error.json")  # which torchrun prints
        command = ("-m", "gradlab", *FAILING[what][0], "hydra.run.dir=run")
        launches.append(gradlab.ranks(2, *command, cwd=here / what, TORCHELASTIC_ERROR_FILE=told))
    for what, ended, ranks in zip(names, gradlab.ended(launches), launches, strict=True):
        message = FAILING[what][1]
        assert ended.code != 0 and message in ended.err and "[c10d]" not in ended.err, ended.err
        assert message in json.loads((here / what / "error.json").read_text())["message"]["message"]
        if (failed_at := here / what / "failed_at").exists():
            seconds = max(rank.ended_at for rank in ranks) - float(failed_at.read_text())
            assert seconds < 20, f"it took {seconds:.0f} s to end"


def test_ranks_that_all_fail_end_the_run_with_their_message(gradlab: Commands, tmp_path: Path) -> None:
    failing(gradlab, tmp_path, "unused")


@pytest.mark.slow
def test_a_rank_that_fails_ends_the_run_everywhere_with_its_message(gradlab: Commands, tmp_path: Path) -> None:
    failing(gradlab, tmp_path, *(what for what in FAILING if what != "unused"))


DIFFERENT = {
    "field": (("seed=${oc.env:RANK}",), "seed=0 on rank 0, 1 on rank 1: must be the same on all ranks"),
    "samples": (
        ("data=custom", "data.target=nets:more_data_on_rank1"),
        "data=custom: must have as many samples on every rank, but ranks 0 to 1 have 64, 65",
    ),
    "data": (
        ("data=custom", "data.target=nets:other_data_on_rank1"),
        "data=custom: must be the same on every rank, which takes its part of it, but on rank 1 it begins otherwise",
    ),
}


@pytest.mark.parametrize("what", ["field", *(pytest.param(w, marks=pytest.mark.slow) for w in ("samples", "data"))])
def test_ranks_that_differ_are_refused_by_all(gradlab: Commands, tmp_path: Path, what: str) -> None:
    """They would train apart, or wait for each other for ever."""
    overrides, message = DIFFERENT[what]
    ended = gradlab.torchrun(2, "-m", "gradlab", *overrides, "hydra.run.dir=run", cwd=tmp_path)
    assert ended.code != 0 and ended.err.count(f"gradlab: {message}\n") == 1, ended.err
    assert "Traceback" not in ended.err, ended.err
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_ctrl_c_under_torchrun_leaves_a_checkpoint_to_resume(gradlab: Commands, tmp_path: Path) -> None:
    """torchrun passes the signal on to its ranks; the resumed run ends as the uninterrupted one."""
    folder = tmp_path / "run"
    endless = (*EVERYTHING, "trainer.epochs=10000", "trainer.evaluate_every=0", "expect=any")
    process = start(
        torchrun(2, "-m", "gradlab", *endless, "trainer.updates=100000", f"hydra.run.dir={folder}"), tmp_path
    )
    wait_for((folder / "checkpoint.pt").is_file, process)
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=60)[0]
    assert process.returncode != 0 and f"resume={folder}" in said, said
    done = load(folder)["update"]["attempts"]
    assert metrics(folder)[-1]["attempt"] == done and math.isfinite(losses(folder)[-1])
    whole = tmp_path / "whole"
    for command in ([f"resume={folder}"], [*endless, f"hydra.run.dir={whole}"]):
        ended = gradlab.torchrun(2, "-m", "gradlab", *command, f"trainer.updates={done + 20}", cwd=tmp_path)
        assert ended.code == 0, ended.err
    assert differences(of_the_run(load(folder)), of_the_run(load(whole))) == []


@pytest.mark.slow
def test_rank_0_has_said_all_before_a_failed_run_is_ended(tmp_path: Path) -> None:
    """The launcher ends every rank once one ends with 1; rank 0 looks for the module that overflowed meanwhile."""
    fails = ("model=custom", "model.target=nets:SlowToExplain", "precision=fp16", "precision.init_scale=1")
    ended = run(torchrun(2, "-m", "gradlab", *fails, "trainer.progress=none", "hydra.run.dir=run"), tmp_path)
    assert ended.returncode == 1 and "the output of the model (SlowToExplain" in ended.stdout
    assert (tmp_path / "run" / "diagnosis.json").is_file() and (tmp_path / "run" / "crash.pt").is_file()


@pytest.mark.slow
def test_a_remedy_that_does_not_fit_the_weights_to_begin_with_does_not_end_a_sweep(
    gradlab: Commands, tmp_path: Path
) -> None:
    """Rank 0 alone reads the weights: the others must not wait for it in the model's first collective."""
    short = ("model=sigmoid_mlp", "model.width=8", "model.layers=2", "data=digits", "trainer.updates=3")
    trainer(tmp_path / "begun", *short).run()
    given = ["-m", *short, "trainer.progress=none", "init_from=begun", "+remedy=smaller_model,lower_lr,none"]
    ended = gradlab.torchrun(2, "-m", "gradlab", *given, "hydra.sweep.dir=sweep", cwd=tmp_path)
    assert ended.code == 0, ended.err
    told = [json.loads((tmp_path / "sweep" / str(job) / "diagnosis.json").read_text()) for job in range(3)]
    assert [one["verdict"] for one in told] == [None, "too_short", "too_short"]
    assert not told[0]["remedy"]["applies"] and "does not fit the model" in told[0]["remedy"]["why_not"]
