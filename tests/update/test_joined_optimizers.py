"""Several optimizers of one model, `optimizer.groups=[{match: bias, optimizer: sgd}]`: bitwise those by hand."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from forked import Commands
from helpers import composed, differences, load, trainer, updates, weights
from nets import Tiny
from test_muon import Both

from gradlab.base.option import Invalid
from gradlab.config.schema import to_config
from gradlab.train import fsdp
from gradlab.update.joined_optimizers import Joined
from gradlab.update.stepping import step_unless_

RUN = (
    *("model=custom", "model.target=nets:Tiny", "data=digits", "data.batch_size=32", "trainer.evaluate_every=0"),
    *("accumulation.steps=2", "clip=norm", "clip.max_norm=0.3", "schedule=warmup", "schedule.warmup=4"),
    *("trainer.updates=8", "optimizer=adamw", "optimizer.lr=0.0078125"),
)
SGD = '{match: "^4", optimizer: sgd, lr: 0.25, momentum: 0.5, nesterov: true, weight_decay: 0.1}'
LION = "{match: 1.weight, optimizer: lion, lr: 0.03125, beta1: 0.8}"
CUSTOM = '{match: bias, optimizer: custom, target: "torch.optim:RMSprop", kwargs: {alpha: 0.9}, lr: 0.125}'
MUON = "{match: 1.weight, optimizer: muon, lr: 0.0625}"
DECAY = "{match: bias, weight_decay: 0, lr_scale: 2}"


def sgd(params: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(params, lr=0.25, momentum=0.5, nesterov=True, weight_decay=0.1, fused=True)


def adamw(params: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(params, lr=2**-7, fused=True)


def muon(params: Any) -> torch.optim.Optimizer:
    return torch.optim.Muon(params, lr=2**-4, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")


CASES: dict[str, tuple[str, Any]] = {
    "sgd": (SGD, lambda p: [sgd(p[2:]), adamw(p[:2])]),
    "custom": (CUSTOM, lambda p: [torch.optim.RMSprop(p[1::2], lr=2**-3, alpha=0.9), adamw(p[::2])]),
    "muon": (MUON, lambda p: [muon(p[:1]), adamw(p[1:])]),
    "later ones begin anew": (f"{DECAY}, {CUSTOM}, {SGD}, {MUON}", lambda p: [
        *(muon(p[:1]), torch.optim.RMSprop(p[1:2], lr=2**-3, alpha=0.9), sgd(p[2:])),
    ]),
    "later settings": (f"{SGD}, {DECAY}", lambda p: [
        sgd([{"params": p[2:3]}, {"params": p[3:], "lr": 0.5, "weight_decay": 0.0}]),
        adamw([{"params": p[:1]}, {"params": p[1:2], "lr": 2**-6, "weight_decay": 0.0}]),
    ]),
}  # fmt: skip


SCALED = {"fp32": (), "fp16": ("precision.init_scale=1e12",)}
"""Of which the first updates are skipped."""


def groups(entries: str) -> str:
    return f"optimizer.groups=[{entries}]"


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("case", CASES)
def test_it_is_bitwise_several_optimizers_stepped_one_after_the_other(
    tmp_path: Path, case: str, precision: str
) -> None:
    entries, make = CASES[case]
    run = trainer(tmp_path, *RUN, groups(entries), f"precision={precision}", *SCALED[precision])
    model = Tiny()
    model.load_state_dict(run.module.state_dict())
    plain = Both(*make(list(model.parameters())))
    rates, begun = [group["lr"] for group in plain.param_groups], weights(model)

    def follow(*given: Any) -> None:
        for own, p in zip(model.parameters(), run.module.parameters(), strict=True):
            own.grad = p.grad.clone()
        for group, rate in zip(plain.param_groups, rates, strict=True):
            group["lr"] = rate * min(1.0, (int(run.update.applied) + 1) / 4)
        plain.step()

    run.update.optimizer.register_step_pre_hook(follow)
    run.run()
    assert isinstance(run.update.optimizer, Joined) and run.outcome.applied == 8
    assert (run.skipped > 0) == (precision == "fp16")
    assert torch.equal(weights(run.module), weights(model)) and not torch.equal(weights(model), begun)


def test_all_parts_skip_in_their_kernels() -> None:
    """As on CUDA, where the host does not wait to know."""
    params = [torch.nn.Parameter(torch.ones(3)), torch.nn.Parameter(torch.ones(2))]
    optimizer = Joined({"a": sgd(params[:1]), None: adamw(params[1:])}, "optimizer", "")
    for found_inf, moves in ((1.0, False), (0.0, True)):
        for p in params:
            p.grad = torch.ones_like(p)
        step_unless_(optimizer, torch.tensor(found_inf), in_kernel=True)
        assert [not torch.equal(p, torch.ones_like(p)) for p in params] == [moves, moves]
    assert not any(hasattr(part, "found_inf") for part in optimizer.parts.values())


def test_rates_are_logged_and_what_each_steps_is_said(tmp_path: Path) -> None:
    run = trainer(tmp_path, *RUN, groups(f"{SGD}, {LION}"), "optimizer.lr=0.01")
    run.run()
    for i, line in enumerate(updates(tmp_path), 1):
        assert line["lr/^4"] == pytest.approx(0.25 * min(1, i / 4)) and line["lr"] == pytest.approx(
            0.01 * min(1, i / 4)
        )
        assert line["lr/1.weight"] == pytest.approx(0.03125 * min(1, i / 4))
    said = "parameters of Lion: 1 (1.weight), of SGD: 2 (^4), of AdamW: 1 (the rest)"
    assert f"optimizer.groups: {said}" in run.notes


WRONG = {
    "{match: bias, optimizer: sdg}": r"0\.optimizer=sdg: did you mean sgd\? It must be one of adafactor, ",
    "{match: bias, optimizer: [sgd]}": r"0\.optimizer=\['sgd'\]: did you mean sgd",
    "{match: bias, optimiser: sgd}": r"optimiser=sgd: no such setting \(did you mean optimizer\?\)",
    "{match: bias, lr: 0.1}": r"lr=0.1: needs an optimizer of its own; lr_scale multiplies",
    "{match: bias, optimizer: sgd, lr: -1}": r"lr=-1: must be > 0",
    "{match: bias, optimizer: sgd, lr: high}": r"lr=high: must be a number",
    "{match: bias, optimizer: sgd, momentun: 0.5}": r"momentun=0.5: no such setting \(did you mean momentum\?\); there",
    "{match: bias, optimizer: sgd, momentum: 2}": r"momentum=2: must be in",
    "{match: bias, optimizer: sgd, nesterov: 1}": r"nesterov=1: must be true or false",
    "{match: bias, optimizer: sgd, fused: perhaps}": r"fused=perhaps: must be true or false or null",
    "{match: bias, optimizer: muon, ns_steps: 1.5}": r"ns_steps=1.5: must be a whole number",
    "{match: bias, optimizer: muon, adjust: none}": r"adjust=none: must be one of",
    "{match: bias, optimizer: custom}": r"target=: must be of the form",
    '{match: bias, optimizer: custom, target: "torch.optim:Frob"}': r"target=torch.optim:Frob: torch.optim has no",
    '{match: bias, optimizer: custom, target: "torch.optim:Adam", kwargs: 1}': r"kwargs=1: must be {NAME: VALUE}",
    '{match: bias, optimizer: custom, target: "torch.optim:Adam", kwargs: {beta: 1}}': r"kwargs={'beta': 1}: .*unexp",
    "{match: bias, optimizer: sgd, groups: []}": r"groups=\[\]: no such setting",
}


@pytest.mark.parametrize("entry", WRONG)
def test_what_is_wrong_is_told_in_a_line(tmp_path: Path, entry: str) -> None:
    with pytest.raises(Invalid) as error:
        trainer(tmp_path, *RUN, groups(entry))
    said = str(error.value)
    assert re.match(rf"optimizer\.groups\.{WRONG[entry]}", said) and "\n" not in said, said


def test_an_optimizer_of_whole_parameters_is_refused_under_fsdp() -> None:
    config = to_config(composed(*RUN, groups(f"{SGD}, {LION}, {MUON}")))
    with pytest.raises(Invalid, match=r"optimizer\.groups\.2\.optimizer=muon: not with trainer\.parallel=fsdp"):
        fsdp.check(config, torch.device("cpu"))


def test_a_checkpoint_of_other_optimizers_is_refused(tmp_path: Path) -> None:
    trainer(tmp_path, *RUN, groups(SGD)).run()
    for other in (SGD.replace("sgd", "adam").replace(", momentum: 0.5, nesterov: true", ""), MUON):
        run = trainer(tmp_path, *RUN, groups(other), f"+resume={tmp_path}".replace("+", ""))
        with pytest.raises(Invalid, match="does not fit the optimizer: its parameter groups"):
            run.begin()
        run.close()


def test_schedule_free_parts_are_evaluated_with_their_own_weights(tmp_path: Path) -> None:
    entry = '{match: "^4", optimizer: custom, target: "nets:ScheduleFree", lr: 0.1}'
    run = trainer(tmp_path, *RUN, groups(entry))
    run.run()
    held, trained = load(tmp_path)["update"]["average"], run.module.state_dict()
    for name in ("4.weight", "4.bias"):
        torch.testing.assert_close(held[name] * 3, trained[name])
    assert torch.equal(held["1.weight"], trained["1.weight"])


@pytest.mark.slow
@pytest.mark.distributed
def test_two_ranks_are_one_process(gradlab: Commands, tmp_path: Path) -> None:
    given = (*RUN, groups(f"{SGD}, {LION}"), "trainer.device=cpu", "expect=any")
    ended = gradlab.torchrun(
        *(2, "-m", "gradlab", *given, "data.batch_size=16", "hydra.run.dir=two"), cwd=tmp_path, timeout=150
    )
    assert ended.code == 0, ended.err
    one = trainer(tmp_path / "one", *given)
    one.run()
    two: Any = load(tmp_path / "two")["model"]
    for name, p in one.module.named_parameters():
        torch.testing.assert_close(two[name], p.detach(), rtol=1e-4, atol=1e-5)
    assert (
        differences(*(sorted(load(tmp_path / name)["update"]["optimizer"]["state"]) for name in ("one", "two"))) == []
    )
