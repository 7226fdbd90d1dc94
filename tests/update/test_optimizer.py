"""Any optimizer by name, and parameter groups: equal to plain PyTorch loops, resumed exactly, refused in a line."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers import composed, differences, load, of_the_run, resumed, sampled, trainer, updates
from nets import Tiny

from gradlab.base.option import Invalid
from gradlab.config.schema import to_config
from gradlab.sweep.vectorized.grouping import alone
from gradlab.update.lion import Lion
from gradlab.update.stable_adamw import StableAdamW

TINY = ("model=custom", "model.target=nets:Tiny", "data=digits", "data.batch_size=64", "trainer.epochs=1")
GROUPS = 'optimizer.groups=[{match: bias, weight_decay: 0}, {match: "^4", lr_scale: 0.5}]'
TARGETS = ("NAdam", "Adafactor", "RMSprop", "Adagrad", "Adamax", "RAdam", "Rprop", "ASGD", "Adadelta")


def plain_loop(run: Any, optimizer: torch.optim.Optimizer, model: torch.nn.Module, lr: float, max_norm: float) -> None:
    """What gradlab's run of one epoch does, with a warm-up of 8 updates, in plain PyTorch."""
    cursor, scales = 0, [group["lr"] / lr for group in optimizer.param_groups]
    for update in range(run.planned):
        (batch,), cursor = run.batches(0, cursor, 1)
        optimizer.zero_grad()
        F.cross_entropy(model(batch.inputs), batch.targets).backward()
        norm = torch.stack([p.grad.double().norm() for p in model.parameters()]).norm()
        for p in model.parameters():
            p.grad.mul_(min(1.0, max_norm / norm.item()))
        for group, scale in zip(optimizer.param_groups, scales, strict=True):
            group["lr"] = lr * min(1.0, (update + 1) / 8) * scale
        optimizer.step()


def copy_of(run: Any) -> torch.nn.Module:
    model = Tiny()
    model.load_state_dict(run.module.state_dict())
    return model


def agrees(run: Any, model: torch.nn.Module) -> None:
    run.run()
    for ours, theirs in zip(run.module.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=2e-5, atol=2e-6)


WARM = ("schedule=warmup", "schedule.warmup=8", "clip=norm", "clip.max_norm=0.3", "trainer.evaluate_every=0")


@pytest.mark.parametrize("target", sampled(TARGETS, 4))
def test_an_optimizer_by_name_trains_as_in_a_plain_loop(tmp_path: Path, target: str) -> None:
    run = trainer(
        tmp_path, *TINY, *WARM, "optimizer=custom", f"optimizer.target=torch.optim:{target}", "optimizer.lr=0.003"
    )
    model = copy_of(run)
    reference = getattr(torch.optim, target)(
        model.parameters(), lr=0.003, **({} if target == "Rprop" else {"weight_decay": 0.0})
    )
    plain_loop(run, reference, model, 0.003, 0.3)
    agrees(run, model)


@pytest.mark.parametrize("name", ["adamw", "sgd"])
def test_groups_train_as_in_a_plain_loop_and_are_logged(tmp_path: Path, name: str) -> None:
    more = {"adamw": "beta1: 0.5", "sgd": "momentum: 0.3"}[name]
    groups = f'optimizer.groups=[{{match: bias, weight_decay: 0, {more}}}, {{match: "(\\d)", lr_decay: 0.5}}]'
    run = trainer(
        tmp_path, *TINY, *WARM, f"optimizer={name}", "optimizer.lr=0.02", "optimizer.weight_decay=0.1", groups
    )
    model = copy_of(run)
    held = dict(model.named_parameters())
    bias = {"weight_decay": 0.0} | {"adamw": {"betas": (0.5, 0.999)}, "sgd": {"momentum": 0.3}}[name]
    made = [
        {"params": [held["1.weight"]], "lr": 0.02 * 0.5**3},
        {"params": [held["1.bias"]], "lr": 0.02 * 0.5**3, **bias},
        {"params": [held["4.weight"]], "lr": 0.02},
        {"params": [held["4.bias"]], "lr": 0.02, **bias},
    ]
    cls: Any = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}[name]
    plain_loop(
        run, cls(made, lr=0.02, weight_decay=0.1, **({"momentum": 0.9} if name == "sgd" else {})), model, 0.02, 0.3
    )
    agrees(run, model)
    for line in updates(tmp_path):
        rates = {k: v for k, v in line.items() if k.startswith("lr/")}
        assert rates == {"lr/1": line["lr"] / 8, "lr/bias 1": line["lr"] / 8}


def test_adafactor_trains_as_in_a_plain_loop(tmp_path: Path) -> None:
    given = ("optimizer=adafactor", "optimizer.weight_decay=0.1", "optimizer.d=1.5", "optimizer.beta2_decay=-0.7")
    run = trainer(tmp_path, *TINY, *WARM, *given)
    model = copy_of(run)
    reference = torch.optim.Adafactor(model.parameters(), lr=0.01, weight_decay=0.1, d=1.5, beta2_decay=-0.7)
    plain_loop(run, reference, model, 0.01, 0.3)
    agrees(run, model)


def lion_by_hand(p: torch.Tensor, gradients: list[torch.Tensor]) -> None:
    """Chen et al. 2023, with betas 0.8 and 0.95, rate 0.01 and weight decay 0.1."""
    mean = torch.zeros_like(p)
    for g in gradients:
        p -= 0.01 * ((0.8 * mean + 0.2 * g).sign() + 0.1 * p)
        mean = 0.95 * mean + 0.05 * g


def stable_by_hand(p: torch.Tensor, gradients: list[torch.Tensor]) -> None:
    """AdamW with the corrections of its biases outside of its means; eps 1e-6."""
    mean, square = torch.zeros_like(p), torch.zeros_like(p)
    for t, g in enumerate(gradients, 1):
        mean, square = 0.8 * mean + 0.2 * g, 0.95 * square + 0.05 * g * g
        v, u = mean / (1 - 0.8**t), square / (1 - 0.95**t)
        lr = 0.01 / max(1.0, (g * g / u).mean().sqrt().item())
        p -= lr * (0.1 * p + v / (u.sqrt() + 1e-6))


@pytest.mark.parametrize("name", ["lion", "stable_adamw"])
def test_what_pytorch_does_not_have_is_as_its_paper_says(name: str) -> None:
    given: Any = {"lr": 0.01, "weight_decay": 0.1, "beta1": 0.8, "beta2": 0.95}
    option = Lion(**given) if name == "lion" else StableAdamW(**given, eps=1e-6)
    torch.manual_seed(0)
    ours, plain = torch.nn.Parameter(torch.randn(4, 3)), torch.zeros(4, 3)
    plain.copy_(ours.detach())
    gradients = [torch.randn(4, 3) * 10 ** (i == 5) for i in range(8)]  # one of them large
    optimizer = option.build([ours])
    for g in gradients:
        ours.grad = g.clone()
        optimizer.step()
    {"lion": lion_by_hand, "stable_adamw": stable_by_hand}[name](plain, gradients)
    assert torch.allclose(ours.detach(), plain, rtol=1e-5, atol=1e-6)


def test_no_group_changes_no_bit(tmp_path: Path) -> None:
    runs = [
        trainer(tmp_path / str(i), *TINY, *given)
        for i, given in enumerate([(), ("optimizer.groups=[{match: '', lr_scale: 1}]",)])
    ]
    for run in runs:
        run.run()
    assert torch.equal(*(torch.cat([p.flatten() for p in run.module.parameters()]) for run in runs))


CASES = {
    "groups": (GROUPS,),
    "optimizers": (
        'optimizer.groups=[{match: bias, optimizer: sgd, lr: 0.1}, {match: "^4", optimizer: muon}]',
        "precision=fp16",
        "precision.init_scale=1e12",
    ),
    "groups of SGD": ("optimizer=sgd", GROUPS, "schedule=warmup"),
    "Adafactor": ("optimizer=custom", "optimizer.target=torch.optim:Adafactor", GROUPS),
    "adafactor": ("optimizer=adafactor", GROUPS),
    "lion": ("optimizer=lion", GROUPS, "precision=fp16", "precision.init_scale=1e12"),
    "stable_adamw": ("optimizer=stable_adamw", GROUPS),
    "NAdam in fp16": (
        "optimizer=custom",
        "optimizer.target=torch.optim:NAdam",
        "precision=fp16",
        "precision.init_scale=1e12",
    ),
    "one cycle": ("schedule=one_cycle", "schedule.updates=12"),
    "state in groups": ("optimizer=custom", "optimizer.target=nets:Counting"),
}


@pytest.mark.parametrize("given", CASES.values(), ids=CASES)
def test_killed_and_resumed_it_ends_the_same(tmp_path: Path, given: tuple[str, ...]) -> None:
    overrides = (*TINY, *given, "clip=norm", "optimizer.lr=0.01", "trainer.evaluate_every=0")
    trainer(tmp_path / "whole", *overrides, "trainer.updates=12").run()
    trainer(tmp_path / "two", *overrides, "trainer.updates=7").run()
    resumed(tmp_path / "two", *overrides, "trainer.updates=12").run()
    assert not differences(of_the_run(load(tmp_path / "whole")), of_the_run(load(tmp_path / "two")))


def test_a_resumed_run_remembers_how_hopeless_it_was(tmp_path: Path) -> None:
    given = (*TINY, "optimizer=sgd", "optimizer.lr=100", "trainer.hopeless=1.1", "trainer.patience=12")
    whole = trainer(tmp_path / "whole", *given)
    trainer(tmp_path / "two", *given, "trainer.updates=10").run()
    again = resumed(tmp_path / "two", *given)
    assert whole.run().status == again.run().status == "given_up"
    assert whole.outcome.error == again.outcome.error and whole.outcome.attempts == again.outcome.attempts


def test_a_checkpoint_of_other_groups_is_refused(tmp_path: Path) -> None:
    trainer(tmp_path, *TINY, GROUPS).run()
    for other in ("optimizer.groups=[]", GROUPS.replace("^4", "1.w")):
        with pytest.raises(Invalid, match="does not fit the optimizer: its parameter groups"):
            resumed(tmp_path, *TINY, other).begin()
    changed = resumed(tmp_path, *TINY, GROUPS.replace("0.5", "0.25"))
    changed.begin()
    changed.close()
    assert [g["lr_scale"] for g in changed.update.optimizer.param_groups] == [1.0, 1.0, 0.25, 0.25]


CUSTOM = "optimizer=custom"
WRONG = {
    ("model.target=nets:HeldInHalf", "precision=fp16"): "precision=fp16: 1.weight is held in fp16",
    ("precision=fp16", "precision.init_scale=1e39"): "precision.init_scale=1e.39: must be > 0 and <= ",
    ("model.target=nets:Sparse",): "model=Sparse: must have no sparse gradients: 1 has sparse=True",
    (CUSTOM,): "optimizer.target=: must be of the form",
    (CUSTOM, "optimizer.target=torch.optim:Frobnicate"): "optimizer.target=torch.optim:Frobnicate: torch.optim has no",
    (CUSTOM, "optimizer.target=torch:pi"): "optimizer.target=torch:pi: must name a class",
    (CUSTOM, "optimizer.target=torch.nn:Linear"): "optimizer.kwargs={}: torch.nn:Linear refuses:",
    (CUSTOM, "optimizer.target=torch.optim:LBFGS"): "optimizer.target=torch.optim:LBFGS: cannot step: .*closure",
    (CUSTOM, "optimizer.target=torch.optim:SparseAdam"): "optimizer.target=torch.optim:SparseAdam: cannot .*dense",
    (CUSTOM, "optimizer.target=nets:Vectors"): "optimizer.target=nets:Vectors: cannot step: no matrices",
    (CUSTOM, "optimizer.target=torch.optim:Muon"): "optimizer.kwargs={}: torch.optim:Muon refuses: .*2D",
    (CUSTOM, "optimizer.target=torch.optim:Adam", "+optimizer.kwargs={lr: 1}"): "optimizer.kwargs.lr=1: is set by",
    (CUSTOM, "optimizer.target=torch.optim:Adam", "+optimizer.kwargs={beta: 1}"): "optimizer.kwargs={'beta': 1}: .*une",
    (CUSTOM, "optimizer.target=torch.optim:Rprop", "optimizer.weight_decay=1"): "optimizer.weight_decay=1.0: must be 0",
    ("optimizer.groups=[{match: norm, lr_scale: 2}]",): "optimizer.groups.0.match=norm: matches .* there are 1.weight,",
    ("optimizer.groups=[{match: '(', lr_scale: 2}]",): "optimizer.groups.0.match=.: must be a regular expression",
    ("optimizer.groups=[{match: bias}]",): "optimizer.groups.0={'match': 'bias'}: must be",
    ("optimizer.groups=[bias]",): "optimizer.groups.0=bias: must be",
    ("optimizer.groups=[{match: bias, lr_scale: -1}]",): "optimizer.groups.0.lr_scale=-1: must be >= 0",
    ("optimizer.groups=[{match: bias, lr_decay: 0.5}]",): "optimizer.groups.0.match=bias: must hold a number",
    ("optimizer.groups=[{match: bias, decay: 0}]",): "optimizer.groups.decay=0: no such setting .did you mean",
    ("optimizer.groups=[{match: bias, beta1: 2}]",): "optimizer.groups.beta1=2: must be in",
    ("optimizer.groups=[{match: bias, beta1: high}]",): "optimizer.groups.beta1=high: must be a number",
    (CUSTOM, "optimizer.target=torch.optim:NAdam", "optimizer.groups=[{match: bias, rho: 2}]"): "optimizer.groups=rho:",
}  # fmt: skip


@pytest.mark.parametrize("given", WRONG, ids=" ".join)
def test_what_is_wrong_is_told_in_a_line(tmp_path: Path, given: tuple[str, ...]) -> None:
    with pytest.raises(Invalid) as error:
        trainer(tmp_path, *TINY, *given)
    assert re.match(WRONG[given], str(error.value)) and "\n" not in str(error.value), error.value


@pytest.mark.parametrize("given", [(GROUPS,), (CUSTOM, "optimizer.target=torch.optim:NAdam")])
def test_the_vectorized_launcher_runs_them_one_by_one(given: tuple[str, ...]) -> None:
    assert "optimizer" in str(alone(to_config(composed(*TINY, *given))))
    assert alone(to_config(composed(*TINY))) is None
