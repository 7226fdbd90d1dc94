"""A model that is divided among ranks is the same model: as in one process, as under DDP, and resumed anywhere."""

from pathlib import Path
from typing import Any

import pytest
import torch
from forked import Commands, told
from fsdp_ranks import AS_DDP, FSDP
from helpers import HERE, differences, load, metrics, resumed, trainer
from ranks import DIGITS, SAME

from gradlab.base.distributed import World
from gradlab.base.json_lines import read_lines
from gradlab.base.option import Invalid
from gradlab.config.compose import compose
from gradlab.config.schema import to_config
from gradlab.train import fsdp

pytestmark = pytest.mark.distributed
ONE = ("digits", "noise_and_clip")
FEW = ("bf16", "groups", "optimizers", "one of wholes", "ema")
"""What the default tests run."""
TWO = (*ONE, *FEW, "half", "resumed", "elsewhere")


def cases(gradlab: Commands, folder: Path, *names: str, timeout: int = 200, ranks: int = 2) -> None:
    """Run cases of fsdp_ranks.py in one launch."""
    ended = gradlab.torchrun(ranks, str(HERE / "fsdp_ranks.py"), *names, cwd=folder, timeout=timeout)
    assert ended.code == 0, ended.err


def left(folder: Path, *names: str, ranks: int = 2) -> dict[str, list[dict[str, Any]]]:
    """What each rank left, by case."""
    return {
        name: [torch.load(folder / f"{name}.{rank}.pt", weights_only=False) for rank in range(ranks)] for name in names
    }


@pytest.fixture(scope="module")
def folder(gradlab: Commands, once: Any) -> Path:
    return once("fsdp_two", lambda folder: cases(gradlab, folder, *TWO))


@pytest.fixture(scope="module")
def two(folder: Path) -> dict[str, list[dict[str, Any]]]:
    return left(folder, *TWO)


@pytest.fixture(scope="module")
def more(gradlab: Commands, once: Any) -> dict[str, list[dict[str, Any]]]:
    names = *(name for name in (*SAME, *AS_DDP) if name not in (*ONE, *FEW)), "failing"
    return left(once("fsdp_more", lambda folder: cases(gradlab, folder, *names)), *names)


def close(found: Any, expected: Any, bound: float, path: str = "") -> None:
    """Numbers of two nested structures agree to rounding."""
    if isinstance(expected, torch.Tensor):
        torch.testing.assert_close(found, expected, rtol=bound, atol=bound, msg=lambda text: f"{path}: {text}")
    elif isinstance(expected, dict):
        assert found.keys() == expected.keys(), path
        for name, value in expected.items():
            close(found[name], value, bound, f"{path}/{name}")
    elif isinstance(expected, list):
        assert len(found) == len(expected), path
        for i, value in enumerate(expected):
            close(found[i], value, bound, f"{path}/{i}")
    else:
        assert found == (pytest.approx(expected, abs=bound, rel=bound) if type(expected) is float else expected), path


MACHINE = ("time/", "throughput/", "memory/", "activation/", "time/ratio")
"""Not the same, or of a rank's own samples."""


def of_the_model(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{k: v for k, v in line.items() if not k.startswith(MACHINE)} for line in lines]


def same_as_one(tmp_path: Path, found: list[dict[str, Any]], name: str) -> None:
    one = trainer(tmp_path, *SAME[name], "monitor=full", "data.batch_size=8")
    one.run()
    close(found[0]["state"], one.full_state(), 5e-6)
    for ours, theirs in zip(one.outcome.eval, found[1]["outcome"]["eval"], strict=True):
        assert ours["eval/loss"] == pytest.approx(theirs["eval/loss"], rel=1e-5)


@pytest.mark.parametrize("name", ONE)
def test_two_ranks_are_one_process(tmp_path: Path, two: Any, name: str) -> None:
    """Weights, the optimizer's state and evaluations; half of the parameters' elements are on each rank."""
    same_as_one(tmp_path, two[name], name)
    elements = sum(t.numel() for t in two[name][0]["state"]["model"].values())
    assert sum(rank["elements"] for rank in two[name]) == elements > max(r["elements"] for r in two[name]) * 1.5


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in SAME if name not in ONE])
def test_two_ranks_are_one_process_in_other_cases_too(tmp_path: Path, more: Any, name: str) -> None:
    same_as_one(tmp_path, more[name], name)


def test_what_is_measured_of_layers_is_of_whole_parameters(tmp_path: Path, two: Any) -> None:
    one = trainer(tmp_path, *SAME["digits"], "monitor=full", "data.batch_size=8")
    one.run()
    theirs, ours = of_the_model(two["digits"][0]["layers"]), of_the_model(list(read_lines(tmp_path / "layers.jsonl")))
    close(theirs, ours, 2e-5)
    assert {"grad/mean", "grad/std", "grad/max", "update/norm", "param/norm"} <= set(theirs[1])


@pytest.mark.slow
def test_two_groups_of_two_ranks_are_one_process(gradlab: Commands, tmp_path: Path) -> None:
    """HSDP: each group has every element once, and norms count it once."""
    names = (*ONE, "unused", "terms")
    every = (*names, "half", "resumed")
    cases(gradlab, tmp_path, *every, ranks=4)
    found = left(tmp_path, *every, ranks=4)
    as_by_hand(found["half"][0])
    as_the_whole(found["resumed"][0])
    for name in names:
        one = tmp_path / f"{name}_alone"
        same_as_one(one, found[name], name)
        elements = sum(t.numel() for t in found[name][0]["state"]["model"].values())
        for group in (found[name][:2], found[name][2:]):
            assert sum(rank["elements"] for rank in group) == elements, name
        if name != "unused":  # whose gradient is zero, and in one process none
            close(of_the_model(found[name][0]["layers"]), of_the_model(list(read_lines(one / "layers.jsonl"))), 2e-5)
        close(
            [line["grad/norm"] for line in found[name][0]["metrics"] if "grad/norm" in line],
            [line["grad/norm"] for line in metrics(one) if "grad/norm" in line],
            1e-5,
        )


def test_groups_of_one_rank_or_unequal_ones_are_refused() -> None:
    for replicas in (3, 4):
        with pytest.raises(Invalid, match=r"trainer\.fsdp_replicas"):
            fsdp.mesh_of(replicas, torch.device("cpu"), World(size=4))


def same_as_ddp(found: list[dict[str, Any]]) -> None:
    ddp, divided = found[0]["ddp"], found[0]["fsdp"]
    close(divided["state"], ddp["state"], 1e-6)
    close(of_the_model(divided["metrics"]), of_the_model(ddp["metrics"]), 1e-5)


@pytest.mark.parametrize("name", FEW)
def test_fsdp_is_ddp(two: Any, name: str) -> None:
    """Every number of the checkpoint and of the metrics."""
    same_as_ddp(two[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in AS_DDP if name not in FEW])
def test_fsdp_is_ddp_in_other_cases_too(more: Any, name: str) -> None:
    same_as_ddp(more[name])


def test_gathered_in_half_it_is_fully_shard_with_mixed_precision(two: Any) -> None:
    as_by_hand(two["half"][0])


def as_by_hand(found: dict[str, Any]) -> None:
    """And not as the run that gathers in fp32."""
    close(found["true"], found["by_hand"], 1e-5)
    with pytest.raises(AssertionError):
        close(found["false"], found["by_hand"], 1e-5)


def test_a_resumed_run_ends_as_the_whole_one(two: Any) -> None:
    """With dropout, fp16, accumulation, clipping, noise and recomputed activations."""
    as_the_whole(two["resumed"][0])


def as_the_whole(found: dict[str, Any]) -> None:
    assert differences(found["resumed"]["state"], found["whole"]["state"]) == []
    assert differences(found["resumed"]["metrics"], found["whole"]["metrics"]) == []
    skipped = found["whole"]["outcome"]["attempts"] - found["whole"]["outcome"]["applied"]
    assert skipped > 0, "the loss scale was found by skips"


def test_a_checkpoint_is_resumed_on_any_number_of_ranks(tmp_path: Path, folder: Path, two: Any) -> None:
    """Begun on two ranks and ended in a plain process, or the reverse: the run of one process."""
    one = trainer(tmp_path, *DIGITS, "data.batch_size=8")
    one.run()
    again = resumed(folder / "begun_by_two", *DIGITS, "data.batch_size=8")
    said: list[str] = []
    again.say = said.append
    again.run()
    close(again.full_state()["model"], one.full_state()["model"], 5e-6)
    close(two["elsewhere"][0]["state"], one.full_state(), 5e-6)
    assert "written by 2 ranks, resumed by 1: what ranks draw, as for dropout, is not repeated" in said
    assert load(folder / "begun_by_two")["model"].keys() == one.module.state_dict().keys()


@pytest.mark.slow
def test_all_ranks_skip_or_stop_when_one_overflows(more: Any) -> None:
    for rank in more["failing"]:
        skipped = rank["skip"]["outcome"]
        assert skipped["status"] == "completed" and skipped["applied"] == skipped["attempts"] - 1
        assert rank["stop"]["outcome"]["status"] == "failed" and rank["stop"]["outcome"]["attempts"] == 4
    main = more["failing"][0]
    assert all(t.isfinite().all() for how in ("skip", "stop") for t in main[how]["state"]["model"].values())
    assert main["crash"]["model"].keys() == main["stop"]["state"]["model"].keys() and main["inspection"] != "None"


@pytest.mark.slow
def test_all_ranks_go_through_a_collapse_of_the_loss_scale(gradlab: Commands, tmp_path: Path) -> None:
    cases(gradlab, tmp_path, "collapse", timeout=60)
    ranks = left(tmp_path, "collapse")["collapse"]
    assert all(rank["outcome"]["status"] == "failed" and rank["outcome"]["attempts"] == 8 for rank in ranks)
    crash, ended = ranks[0]["crash"], ranks[0]["state"]["model"]
    assert (crash["attempt"], crash["update"]["attempts"]) == (3, 2)
    assert all(not torch.equal(crash["model"][name], tensor) for name, tensor in ended.items())


REFUSED = {
    "compile": ("trainer.compile=true", "trainer.compile"),
    "pitfall": ("+pitfall=no_clip", "pitfall"),
    "agc": ("clip=agc", "clip"),
    "muon": ("optimizer=muon", "optimizer=muon: .*whole parameters"),
    "stable_adamw": ("optimizer=stable_adamw", "optimizer=stable_adamw: .*whole parameters"),
    "adafactor": ("optimizer=adafactor", "optimizer=adafactor: .*whole parameters"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_exact_is_refused(what: str) -> None:
    override, named = REFUSED[what]
    with pytest.raises(Invalid, match=named):
        fsdp.check(to_config(compose([FSDP, override])), torch.device("cpu"))


class Nested(torch.nn.Module):
    """Blocks in a list, one of them with a list of its own, and parts that are only kept in one."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(2, 2)
        inner = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Tanh())
        self.blocks = torch.nn.ModuleList([torch.nn.Linear(2, 2), inner, torch.nn.Tanh()])
        self.kept = torch.nn.ModuleList([torch.nn.Linear(2, 2)])


def test_blocks_are_what_lists_hold_and_is_called() -> None:
    model = Nested()
    called = ["", "first", "blocks.0", "blocks.1", "blocks.1.0", "blocks.1.1", "blocks.2"]
    assert fsdp.blocks_of(model, called, None) == ["blocks.0", "blocks.1"]
    assert fsdp.blocks_of(model, called, r"first|blocks\.1(\.0)?") == ["first", "blocks.1", "blocks.1.0"]
    for pattern in ("kept.0", "blocks.2", "("):
        with pytest.raises(Invalid, match=r"trainer\.fsdp_blocks"):
            fsdp.blocks_of(model, called, pattern)


def test_one_rank_divides_nothing_and_says_so(gradlab: Commands, tmp_path: Path) -> None:
    said: list[str] = []
    run = trainer(tmp_path, *DIGITS, FSDP, "trainer.updates=1")
    run.say = said.append
    run.run()
    assert "trainer.parallel=fsdp: with one rank nothing is divided" in said
    assert "trainer.parallel" in told(gradlab("trainer.parallel=ddpp", cwd=tmp_path))
