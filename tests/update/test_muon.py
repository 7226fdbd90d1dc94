"""`optimizer=muon`: torch.optim.Muon and AdamW as one optimizer, equal to both stepped by hand, and resumed exactly."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from forked import Commands
from helpers import differences, load, of_the_run, resumed, trainer, updates, weights

from gradlab.base.option import Invalid
from gradlab.config.schema import to_config
from gradlab.sweep.vectorized.grouping import alone
from gradlab.update.joined_optimizers import Joined
from gradlab.update.muon import ends

TEXT = (
    "model=transformer",
    "model.layers=2",
    "model.width=16",
    "data.length=16",
    "data.samples=200",
    "data.batch_size=16",
)
MUON = ("optimizer=muon", "optimizer.lr=0.02", "trainer.evaluate_every=0", "trainer.updates=10")
CLIP = ("clip=norm", "clip.max_norm=0.3", "schedule=warmup", "schedule.warmup=4")
OUTER = ("embedding.weight", "positions.weight", "head.weight")


class Both:
    """Two optimizers, each with its own parameters, stepped one after the other."""

    def __init__(self, *optimizers: torch.optim.Optimizer) -> None:
        self.optimizers = optimizers
        self.param_groups = [group for each in optimizers for group in each.param_groups]

    def zero_grad(self) -> None:
        for each in self.optimizers:
            each.zero_grad()

    def step(self) -> None:
        for each in self.optimizers:
            each.step()


def by_hand(
    run: Any, model: torch.nn.Module, outer: tuple[str, ...], groups: bool = False, adjust: str = "match_rms_adamw"
) -> None:
    """Ten updates of the run in plain PyTorch."""
    named = dict(model.named_parameters())
    inner = [name for name, p in named.items() if p.dim() == 2 and name not in outer]
    rest = [name for name in named if name not in inner]

    def of(names: list[str]) -> list[dict[str, Any]]:
        scaled = [n for n in names if groups and "blocks.1" in n]
        made = [{"params": [named[n] for n in names if n not in scaled], "weight_decay": 0.2, "scale": 1.0}]
        return made + [{"params": [named[n] for n in scaled], "weight_decay": 0.0, "scale": 0.5}] * bool(scaled)

    muon = torch.optim.Muon(of(inner), adjust_lr_fn=adjust, momentum=0.9, nesterov=False, ns_steps=4)
    both = Both(muon, torch.optim.AdamW(of(rest), betas=(0.8, 0.95), eps=1e-7))
    cursor = 0
    for update in range(10):
        (batch,), cursor = run.batches(0, cursor, 1)
        both.zero_grad()
        F.cross_entropy(model(batch.inputs).flatten(0, 1), batch.targets.flatten()).backward()
        norm = torch.stack([p.grad.double().norm() for p in model.parameters()]).norm()
        for p in model.parameters():
            p.grad.mul_(min(1.0, 0.3 / norm.item()))
        for group in both.param_groups:
            group["lr"] = 0.02 * min(1.0, (update + 1) / 4) * group["scale"]
        both.step()


GROUPS = 'optimizer.groups=[{match: "blocks.1", weight_decay: 0, lr_scale: 0.5}]'
CASES = {
    "plain": (),
    "tied": ("model.tie_embeddings=true",),
    "groups": (GROUPS,),
    "original": ("optimizer.adjust=original",),
    "named": ("optimizer.adamw=embedding|project",),
}


@pytest.mark.parametrize("case", CASES)
def test_it_trains_as_two_optimizers_stepped_by_hand(tmp_path: Path, case: str) -> None:
    own = ("optimizer.weight_decay=0.2", "optimizer.momentum=0.9", "optimizer.nesterov=false", "optimizer.ns_steps=4")
    own += ("optimizer.beta1=0.8", "optimizer.eps=1e-7")
    run = trainer(tmp_path, *TEXT, *MUON, *CLIP, *own, *CASES[case])
    model: Any = run.config.model.build(run.data.spec)
    model.load_state_dict(run.module.state_dict())
    outer = OUTER
    if case == "named":
        outer = tuple(name for name, _ in model.named_parameters() if "embedding" in name or "project" in name)
    by_hand(run, model, outer, groups=case == "groups", adjust="original" if case == "original" else "match_rms_adamw")
    begun = weights(run.module)
    run.run()
    assert run.outcome.applied == 10
    close, far = (weights(run.module) - weights(model)).norm(), (weights(run.module) - begun).norm()
    assert close < 2e-2 * far, (close, far)  # Newton-Schulz works in bf16, which makes more of a rounded bit
    optimizer = run.update.optimizer
    assert isinstance(optimizer, Joined)
    steps = {n: g["muon"] for g in optimizer.param_groups for n in g["names"]}
    assert steps == {n: p.dim() == 2 and n not in outer for n, p in model.named_parameters()}
    for name, p in run.module.named_parameters():
        assert optimizer.state[p].keys() == ({"momentum_buffer"} if steps[name] else {"step", "exp_avg", "exp_avg_sq"})
    assert sum("Muon steps" in note for note in run.notes) == 1
    if case == "groups":
        assert all(line["lr/blocks.1"] == line["lr"] / 2 for line in updates(tmp_path))


MORE = {
    "groups": (GROUPS,),
    "fp16": ("precision=fp16", "precision.init_scale=1e12"),
    "ema": ("trainer.ema=0.9", "schedule=warmup_cosine"),
}


@pytest.mark.parametrize("case", MORE)
def test_killed_and_resumed_it_ends_the_same(tmp_path: Path, case: str) -> None:
    given = (*TEXT, *MUON, "clip=norm", *MORE[case])
    for folder, number in (("whole", 10), ("two", 6)):
        trainer(tmp_path / folder, *given, f"trainer.updates={number}").run()
    resumed(tmp_path / "two", *given).run()
    assert not differences(of_the_run(load(tmp_path / "whole")), of_the_run(load(tmp_path / "two")))
    if case == "fp16":
        assert any(line["update/skipped"] for line in updates(tmp_path / "whole"))


def test_a_checkpoint_divided_otherwise_is_refused(tmp_path: Path) -> None:
    trainer(tmp_path, *TEXT, *MUON).run()
    run = resumed(tmp_path, *TEXT, *MUON, "optimizer.adamw=embedding|positions|qkv")
    with pytest.raises(Invalid, match="does not fit the optimizer"):
        run.begin()


def test_a_model_of_embeddings_and_one_of_no_matrix_but_the_head(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.EmbeddingBag(5, 3), torch.nn.LayerNorm(3), torch.nn.Linear(3, 2))
    assert [tuple(p.shape) for p in ends(model, ["", "0", "1", "2"])] == [(5, 3), (2, 3)]
    run = trainer(tmp_path, "model=custom", "model.target=nets:Tiny", "data=digits", *MUON, "optimizer.adamw=weight")
    run.run()
    assert run.outcome.applied == 10 and not any(g["muon"] for g in run.update.optimizer.param_groups)


WRONG = {
    "optimizer.adamw='('": r"optimizer.adamw=\(: must be a regular",
    "optimizer.adjust=none": "optimizer.adjust=none: must be one of",
    "optimizer.ns_steps=100": "optimizer.ns_steps=100: must be in",
    "optimizer.groups=[{match: bias, adjust: 1}]": "optimizer.groups.adjust=1: no such setting",
}


@pytest.mark.parametrize("given", WRONG)
def test_what_is_wrong_is_told_in_a_line(tmp_path: Path, given: str) -> None:
    with pytest.raises(Invalid, match=WRONG[given]):
        trainer(tmp_path, *TEXT, *MUON, given)


def test_the_vectorized_launcher_runs_it_alone(tmp_path: Path) -> None:
    from helpers import composed

    assert "optimizer" in str(alone(to_config(composed(*TEXT, *MUON))))
    assert "optimizer" in str(alone(to_config(composed(*TEXT, "optimizer=adafactor"))))


@pytest.mark.distributed
def test_two_ranks_end_with_the_same_weights_near_those_of_one(gradlab: Commands, tmp_path: Path) -> None:
    given = (*TEXT, *MUON, "clip=norm", "trainer.device=cpu", "expect=any", "hydra.run.dir=run")
    ended = gradlab.torchrun(2, "-m", "gradlab", *given, "data.batch_size=8", cwd=tmp_path, timeout=150)
    assert ended.code == 0, ended.err
    run = trainer(tmp_path / "one", *given[:-2])
    begun = weights(run.module)
    run.run()
    two: Any = load(tmp_path / "run")["model"]
    found = torch.cat([two[name].flatten() for name, _ in run.module.named_parameters()])
    assert (found - weights(run.module)).norm() < 2e-2 * (weights(run.module) - begun).norm()
