"""A parameter that is unfrozen during training is trained from then on, as a plain PyTorch loop does it."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from forked import Commands
from helpers import differences, load, of_the_run, resumed, trainer, updates
from nets import Unfreezing
from test_muon import Both

from gradlab.base.json_lines import read_lines
from gradlab.base.option import Invalid

RUN = ("model=custom", "model.target=nets:Unfreezing", "data=digits", "data.batch_size=64", "trainer.epochs=1")
RUN += ("trainer.evaluate_every=0", "trainer.updates=12", "clip=norm", "clip.max_norm=0.3")
RATE = "optimizer.lr=0.02"
LABELS = 'optimizer.groups=[{match: bias, weight_decay: 0}, {match: "(\\d)", lr_decay: 0.5}]'
CASES: dict[str, tuple[tuple[str, ...], Any]] = {
    "adamw": (("optimizer=adamw",), lambda p: torch.optim.AdamW(p, lr=0.02)),
    "sgd": (("optimizer=sgd",), lambda p: torch.optim.SGD(p, lr=0.02, momentum=0.9)),
    "muon": (
        ("optimizer=muon",),
        lambda p: Both(
            torch.optim.Muon([p[0]], lr=0.02, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"),
            torch.optim.AdamW(p[1:], lr=0.02, weight_decay=0.1, betas=(0.9, 0.95)),
        ),
    ),
    "adagrad": (
        ("optimizer=custom", "optimizer.target=torch.optim:Adagrad"),
        lambda p: torch.optim.Adagrad(p, lr=0.02),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_it_trains_as_in_a_plain_loop_that_holds_all_parameters(tmp_path: Path, case: str) -> None:
    given, make = CASES[case]
    run = trainer(tmp_path, *RUN, RATE, *given, "monitor=full", "trainer.ema=0.9")
    said: list[str] = []
    run.say = said.append
    model = Unfreezing()
    model.load_state_dict(run.module.state_dict())
    average = [p.detach().double() for p in model.parameters()]
    optimizer, cursor, norms = make(list(model.parameters())), 0, []
    for update in range(12):
        (batch,), cursor = run.batches(0, cursor, 1)
        optimizer.zero_grad()
        F.cross_entropy(model(batch.inputs), batch.targets).backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.3).item())
        optimizer.step()
        decay = min(0.9, (2 + update) / (11 + update))
        average = [decay * a + (1 - decay) * p.double() for a, p in zip(average, model.parameters(), strict=True)]
    begun = run.module[1].weight.detach().clone()
    run.run()
    assert not torch.equal(run.module[1].weight, begun)
    for ours, theirs in zip(run.module.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=2e-5, atol=2e-6)
    assert [line["grad/norm"] for line in updates(tmp_path)] == pytest.approx(norms, rel=1e-4)
    told = [line for line in said if "unfrozen" in line]
    assert len(told) == 1 and told[0].startswith("update 5: 2 parameters were unfrozen") and "1.weight" in told[0]
    held = run.update.averages()
    for (name, _), expected in zip(model.named_parameters(), average, strict=True):
        torch.testing.assert_close(held[name].double(), expected, rtol=1e-4, atol=1e-5)
    layers = list(read_lines(tmp_path / "layers.jsonl"))
    assert layers[0]["names"] == ["4.weight", "4.bias"] and all(len(x["grad/layer"]) == 2 for x in layers[1:])


def test_with_groups_it_has_the_settings_of_its_own(tmp_path: Path) -> None:
    run = trainer(tmp_path, *RUN, RATE, "optimizer=adamw", LABELS)
    run.run()
    found = {name: (g["lr_scale"], g["weight_decay"]) for g in run.update.optimizer.param_groups for name in g["names"]}
    assert found == {"4.weight": (1, 0.01), "4.bias": (1, 0), "1.weight": (0.125, 0.01), "1.bias": (0.125, 0)}
    held = dict(run.module.named_parameters())
    for group in run.update.optimizer.param_groups:
        assert [id(p) for p in group["params"]] == [id(held[name]) for name in group["names"]]
        assert float(group["lr"]) == pytest.approx(0.02 * group["lr_scale"])


MORE = {
    "muon": ("optimizer=muon",),
    "ema": ("trainer.ema=0.9",),
    "groups": (LABELS,),
    "optimizers": ('optimizer.groups=[{match: bias, optimizer: muon}, {match: "4.bias|1", optimizer: sgd}]',),
    "sgd": ("optimizer=sgd",),
    "frozen again": ("+model.kwargs.until=8",),
}


@pytest.mark.parametrize("case", MORE)
def test_stopped_and_resumed_it_ends_the_same(tmp_path: Path, case: str) -> None:
    given = (*RUN, RATE, *MORE[case])
    trainer(tmp_path / "whole", *given).run()
    for stop in (3, 5, 8, 10):
        folder = tmp_path / str(stop)
        trainer(folder, *given, f"trainer.updates={stop}").run()
        run = resumed(folder, *given)
        said: list[str] = []
        run.say = said.append
        run.run()
        assert not differences(of_the_run(load(tmp_path / "whole")), of_the_run(load(folder))), stop
        assert any("unfrozen" in line for line in said) == (stop < 5)


def test_a_parameter_in_fp16_is_refused_as_at_the_start(tmp_path: Path) -> None:
    run = trainer(tmp_path, *RUN, RATE, "precision=fp16")
    run.update.thaw("1.bias")
    run.update.frozen["1.weight"].data = run.update.frozen["1.weight"].half()
    with pytest.raises(Invalid, match=r"1\.weight is held in fp16"):
        run.update.thaw("1.weight")


@pytest.mark.distributed
@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_several_ranks_refuse_it_in_a_line(gradlab: Commands, tmp_path: Path, parallel: str) -> None:
    ended = gradlab.torchrun(
        2, "-m", "gradlab", *RUN, RATE, f"trainer.parallel={parallel}", "trainer.device=cpu", cwd=tmp_path, timeout=120
    )
    assert ended.code != 0 and "Unfreezing: unfreezes 1.weight, which was frozen at the start" in ended.err
    assert "Traceback" not in ended.err
