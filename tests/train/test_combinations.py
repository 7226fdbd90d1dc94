"""Every pair of model, precision and clip, accumulating, on one rank and, with other triples, on two."""

import itertools
from pathlib import Path

import pytest
from forked import Commands

SMALL = {
    "transformer": "model.layers=2 model.width=16 data.length=16",
    "lstm": "model.width=16 data.length=16",
    "resnet": "data.samples=60",
    "sigmoid_mlp": "model.layers=4",
}
PRECISIONS = ("fp32", "bf16", "fp16")
CLIPS = ("none", "norm", "value", "per_layer", "agc", "autoclip", "zclip")

QUICKER = "data.batch_size=6 accumulation.steps=3 trainer.updates=2 trainer.evaluate_every=0 trainer.progress=none"

PROGRAM = """
import sys
from pathlib import Path
import torch
from gradlab.config.compose import compose
from gradlab.config.schema import to_config
from gradlab.base import distributed
from gradlab.train.trainer import Trainer

torch.set_num_threads(1)
world, folder = distributed.world(), Path(sys.argv[1])
for line in Path(sys.argv[2]).read_text().splitlines():
    run = Trainer(to_config(compose(line.split())), folder / line.replace(" ", "_"), world, say=lambda text: None)
    outcome = run.run()
    finite = all(torch.isfinite(p).all() for p in run.module.parameters())
    assert outcome.status == "completed" and outcome.applied == 2 and finite, (line, outcome)
    if world.main:
        print("ran", line, flush=True)
distributed.leave()
"""


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.distributed)])
def test_every_pair_runs(gradlab: Commands, tmp_path: Path, ranks: int) -> None:
    lines = [
        f"model={model} {SMALL[model]} precision={PRECISIONS[p]} clip={CLIPS[c]} {QUICKER}"
        for (m, model), p, c in itertools.product(enumerate(SMALL), range(len(PRECISIONS)), range(len(CLIPS)))
        if p == (m + c + ranks) % len(PRECISIONS)
    ]
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "lines").write_text("\n".join(lines))
    program = ("program.py", str(tmp_path / "runs"), "lines")
    if ranks == 1:
        done = gradlab.python(*program, cwd=tmp_path, timeout=1700).result()
    else:
        done = gradlab.torchrun(ranks, *program, cwd=tmp_path, timeout=1700)
    assert done.code == 0, done.err[-2000:]
    assert done.out.count("ran model=") == len(lines) == 28
