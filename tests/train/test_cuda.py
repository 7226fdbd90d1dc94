"""On a CUDA device (`pytest -m gpu`): the same numbers as on the CPU, no waiting, and what is left can be resumed."""

import copy
import os
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import nets
import pytest
import torch
from forked import Commands
from helpers import differences, load, losses, metrics, of_the_run, resumed, trainer, weights
from test_resume import EVERYTHING, Copying

from gradlab.base.distributed import World
from gradlab.update.clip import NormClip
from gradlab.update.loss import CrossEntropy
from gradlab.update.noise import NoNoise
from gradlab.update.precision import FP16
from gradlab.update.schedule import Constant
from gradlab.update.sgd import SGD
from gradlab.update.stats import MicroBatch
from gradlab.update.step import Update

pytestmark = pytest.mark.gpu
SMALL = ("model=transformer", "model.layers=2", "model.width=32", "data.length=16")
SMALL += ("data.samples=64", "data.batch_size=8")
ON = "trainer.device=cuda"


@pytest.fixture(autouse=True)
def exact() -> Iterator[None]:
    """TF32 rounds what a convolution multiplies."""
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    yield
    torch.backends.cudnn.allow_tf32 = before
    torch.cuda.set_sync_debug_mode("default")


CHOICES = {
    "plain": (),
    "accumulated": ("accumulation.steps=3", "data.variable_length=true"),
    "clipped": ("clip=norm", "clip.max_norm=0.1"),
    "per layer": ("clip=per_layer", "clip.max_norm=0.1"),
    "by value": ("clip=value",),
    "agc": ("clip=agc",),
    "autoclip": ("clip=autoclip",),
    "zclip": ("clip=zclip",),
    "sgd": ("optimizer=sgd",),
    "adam": ("optimizer=adam",),
    "muon": ("optimizer=muon",),
    "lion": ("optimizer=lion",),
    "ema": ("trainer.ema=0.9",),
}


@pytest.mark.parametrize("choice", CHOICES.values(), ids=CHOICES.keys())
def test_a_run_has_the_numbers_of_the_cpu(tmp_path: Path, choice: tuple[str, ...]) -> None:
    runs = {}
    for device in ("cpu", "cuda"):
        run = runs[device] = trainer(tmp_path / device, *SMALL, *choice, f"trainer.device={device}", "trainer.epochs=2")
        if device == "cuda":  # initial weights are drawn on the CPU
            begun = trainer(tmp_path / "begun", *SMALL, *choice, "trainer.device=cpu")
            assert torch.equal(weights(run.module).cpu(), weights(begun.module))
        assert run.run().status == "completed" and run.device.type == device
    assert losses(tmp_path / "cuda") == pytest.approx(losses(tmp_path / "cpu"), rel=1e-3)
    norms = [[line["grad/norm"] for line in metrics(tmp_path / d) if "grad/norm" in line] for d in runs]
    assert norms[1] == pytest.approx(norms[0], rel=1e-2)


@pytest.mark.parametrize("monitor", ["none", "summary", "full"])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_no_update_waits_for_the_device(tmp_path: Path, monitor: str, precision: str) -> None:
    choice = (f"monitor={monitor}", f"precision={precision}", "clip=norm", "accumulation.steps=2", "trainer.epochs=4")
    run = trainer(tmp_path, *SMALL, *choice, ON, "trainer.evaluate_every=0")
    waits: Counter[str] = Counter()
    updates = 0

    def told(message: object, *_: object, **__: object) -> None:
        if "synchroniz" in str(message):
            frames = [f for f in traceback.extract_stack() if f"{os.sep}gradlab{os.sep}" in f.filename]
            waits.update(f"{Path(frame.filename).name}:{frame.lineno}" for frame in frames[-1:])

    run.begin()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = told
        for action in run.actions():
            if action == run.one_update:
                updates += 1
                torch.cuda.set_sync_debug_mode("warn" if updates > 2 else "default")
            else:
                torch.cuda.set_sync_debug_mode("default")
            action()
            torch.cuda.set_sync_debug_mode("default")
    run.close()
    assert updates == 16 and not waits, waits


@pytest.mark.parametrize("every", [1, 3])
def test_killed_at_any_update_and_resumed_it_ends_the_same(tmp_path: Path, every: int) -> None:
    overrides = (*EVERYTHING, ON, "trainer.epochs=4", f"trainer.checkpoint_every={every}")
    outcome = trainer(tmp_path / "whole", *overrides, cls=Copying).run()
    expected, lines = of_the_run(load(tmp_path / "whole")), metrics(tmp_path / "whole")
    assert outcome.status == "completed"
    killed = [folder for folder in sorted(tmp_path.glob("killed_*")) if (folder / "checkpoint.pt").is_file()]
    assert killed
    for folder in killed:
        torch.randn(3, device="cuda")
        resumed(folder, *overrides).run()
        assert differences(of_the_run(load(folder)), expected) == [], folder.name
        assert differences(metrics(folder), lines) == [], folder.name


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_compiled_it_learns_the_same(tmp_path: Path, precision: str) -> None:
    for name in ("eager", "compiled"):
        extra = (f"trainer.compile={str(name == 'compiled').lower()}", f"precision={precision}", "clip=norm")
        trainer(tmp_path / name, *SMALL, *extra, ON, "trainer.epochs=3").run()
    assert losses(tmp_path / "compiled") == pytest.approx(losses(tmp_path / "eager"), rel=1e-2)


def test_lanes_are_the_runs_alone(gradlab: Commands, tmp_path: Path) -> None:
    grid = ("optimizer.lr=1e-3,1e-2,1e-1", "clip=norm", "clip.max_norm=0.1,1", "expect=any", "trainer.epochs=2", *SMALL)
    for launcher in ("basic", "vectorized"):
        ran = gradlab(
            "-m", *grid, ON, f"hydra/launcher={launcher}", f"hydra.sweep.dir={launcher}", cwd=tmp_path, timeout=200
        )
        assert ran.code == 0, ran.err
    for job in map(str, range(6)):
        alone, lane = (losses(tmp_path / launcher / job) for launcher in ("basic", "vectorized"))
        assert len(alone) == len(lane) and lane[:4] == pytest.approx(alone[:4], rel=1e-2, nan_ok=True)


class Collective(World):
    """One process whose collectives run all the same."""

    def sum_(self, tensor: torch.Tensor) -> torch.Tensor:
        torch.distributed.all_reduce(tensor)
        return tensor


def test_under_ddp_over_nccl_an_update_is_that_of_one_process() -> None:
    x, y = torch.randn(12, 64, device="cuda"), torch.randint(0, 10, (12,), device="cuda")
    torch.manual_seed(0)
    model = nets.Tiny().cuda()
    other = copy.deepcopy(model)
    window = [MicroBatch(x[:8], y[:8]), MicroBatch(x[8:], y[8:])]
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511"}
    torch.distributed.init_process_group("cpu:gloo,cuda:nccl", rank=0, world_size=1)
    try:
        wrapped = torch.nn.parallel.DistributedDataParallel(other, device_ids=[0], gradient_as_bucket_view=True)
        for each, world in ((model, World()), (wrapped, Collective())):
            option = SGD(lr=0.1)
            parts = (Constant(), FP16().build(torch.device("cuda")), NoNoise(), NormClip(0.5))
            built = option.build(each.parameters())
            update = Update(each, CrossEntropy(), built, *parts, lr=option.lr, stops=False, world=world)
            for _ in range(3):
                stats = update(window)
            assert stats.skipped.item() == 0
    finally:
        torch.distributed.destroy_process_group()
    assert torch.allclose(weights(model), weights(other), atol=1e-6)


def test_two_ranks_may_share_a_device(gradlab: Commands, tmp_path: Path) -> None:
    typed = (*SMALL, ON, "clip=norm", "precision=bf16", "model.dropout=0", "trainer.epochs=2")
    alone = gradlab(*typed, "hydra.run.dir=alone", "data.batch_size=16", cwd=tmp_path, timeout=200)
    both = gradlab.torchrun(2, "-m", "gradlab", *typed, "hydra.run.dir=both", cwd=tmp_path)
    assert alone.code == both.code == 0, both.err
    assert losses(tmp_path / "both") == pytest.approx(losses(tmp_path / "alone"), rel=1e-2)
