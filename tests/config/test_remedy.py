"""Remedies: what they make of a configuration wherever they stand, what does not apply, and what a run suggests."""

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from forked import SHORT, Commands
from omegaconf import DictConfig, OmegaConf

from gradlab.base.command import pasted, text, untreated
from gradlab.base.conf import conf_dir
from gradlab.config import schema
from gradlab.config.compose import compose
from gradlab.config.remedy import (
    DoesNotApply,
    Treated,
    described,
    difference,
    has,
    label,
    overrides,
    shipped,
    treat_,
    treated,
)
from gradlab.config.remedy_option import Remedy
from gradlab.diagnosis.options import VERDICTS
from gradlab.remedies.candidates import candidates_for
from gradlab.remedies.evidence import Evidence
from gradlab.remedies.proposals import LIKELY, proposals
from gradlab.runs.replay import recomposed

CONF = conf_dir()
NAMES = sorted(p.stem for p in (CONF / "remedy").glob("*.yaml"))
EXPERIMENTS = sorted(p.stem for p in (CONF / "experiment").glob("*.yaml"))
MODELS = ("transformer", "lstm", "resnet", "sigmoid_mlp")
FEW = ("policy_gradient", "vanishing")
"""The others are slow."""


pytestmark = pytest.mark.usefixtures("hydra_session")


@cache
def composed(*given: str) -> DictConfig:
    return compose(list(given))


def treat(*given: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """What remedies make of a command line: every field that decides, and the record."""
    made = treated(composed(*given), list(given))
    assert made.remedy is not None and made.config == schema.to_config(made.composed)
    return described(made.composed), made.remedy


def test_a_remedy_wins_over_experiment_and_command_line_wherever_it_stands() -> None:
    given = ["clip=value", "optimizer.lr=0.06", "clip.max_value=0.1"]
    made = []
    for i, j in ((0, 0), (0, 4), (3, 0), (2, 1), (3, 4)):
        order = [*given[:i], "+experiment=exploding", *given[i:]]
        made.append(treat(*order[:j], "+remedy=[clip_norm,lower_lr]", *order[j:]))
    flat, record = made[0]
    assert (flat["clip"], flat["clip.max_norm"], flat["optimizer.lr"]) == ("norm", 1.0, 0.02)
    assert "clip.max_value" not in flat
    assert all(other == made[0] for other in made)
    assert record["names"] == ["clip_norm", "lower_lr"] and record["applies"]
    assert record["changed"] == {
        "clip": ["value", "norm"],
        "clip.max_norm": [None, 1.0],
        "clip.norm_type": [None, 2.0],
        "clip.max_value": [0.1, None],
        "optimizer.lr": [0.06, 0.02],
    }


def test_fields_that_an_experiment_sets_go_with_the_option_that_a_remedy_replaces(tmp_path: Path) -> None:
    """`+experiment=mine precision=bf16` would not even compose."""
    (tmp_path / "experiment").mkdir()
    mine = "# @package _global_\ndefaults:\n  - override /precision: fp16\nprecision:\n  init_scale: 4.0\n"
    (tmp_path / "experiment" / "mine.yaml").write_text(mine)
    given = ["+experiment=mine", f"hydra.searchpath=[{tmp_path}]"]
    flat, _ = treat(*given, "+remedy=bf16")
    assert flat["precision"] == "bf16" and "precision.init_scale" not in flat
    e = Evidence("scale_collapse", ratios=[0.05], planned=100)
    first, second = candidates_for(e, schema.to_config(composed(*given)), given)
    assert first.overrides == ["+remedy=bf16"] and second.overrides == ["optimizer.lr=0.0002"]


def test_the_difference_is_read_from_the_configurations_and_sees_the_option_itself() -> None:
    """clip=norm and clip=per_layer have the bound in common."""
    before, after = described(composed("clip=norm")), described(composed("clip=per_layer"))
    assert difference(before, after) == {"clip": ["norm", "per_layer"], "clip.norm_type": [2.0, None]}
    assert difference(before, before) == {}
    assert difference({"a": None}, {}) == {"a": [None, None]}


def test_later_remedies_see_what_earlier_ones_changed() -> None:
    assert treat("+remedy=[lower_lr,lower_lr_10]")[0]["optimizer.lr"] == pytest.approx(1e-3 / 30, rel=1e-2)
    adam_first, _ = treat("+experiment=exploding", "+remedy=[adam,lower_lr]")
    adam_last, _ = treat("+experiment=exploding", "+remedy=[lower_lr,adam]")
    assert adam_first["optimizer.lr"] == 0.000333 and adam_last["optimizer.lr"] == 0.001


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (["model=lstm", "+remedy=layer_norm"], "the configuration has no model.norm"),
        (["+remedy=fp32"], "precision=fp32 changes nothing here"),
        (["model=lstm", "+remedy=relu"], "model.nonlinearity=relu: must be tanh with cell=lstm"),
        (["model=transformer", "+remedy=he_init"], "model.init=he: must be one of default, gpt2"),
        (["model.norm=layer", "+remedy=[residual,layer_norm]"], "layer_norm: model.norm=layer changes nothing here"),
        (["+remedy=longer_warmup"], "the configuration has no schedule.warmup"),
    ],
)
def test_what_does_not_apply_says_why(given: list[str], why: str) -> None:
    with pytest.raises(DoesNotApply) as raised:
        treat(*given)
    assert raised.value.why == why
    assert raised.value.record() == {"names": raised.value.names, "changed": {}, "applies": False, "why_not": why}


def test_none_changes_nothing_and_applies_everywhere() -> None:
    flat, record = treat("+experiment=vanishing", "+remedy=none")
    assert flat == described(composed("+experiment=vanishing")) and record["applies"] and record["changed"] == {}
    cfg, config = composed("+experiment=vanishing"), schema.to_config(composed("+experiment=vanishing"))
    assert treated(cfg, []) == Treated(cfg, config, config)


def test_a_remedy_expects_anything_unless_told_otherwise() -> None:
    def expects(*given: str) -> str | None:
        return treated(composed(*given), list(given)).config.expect

    assert expects("+experiment=exploding", "+remedy=none") == "any"
    assert expects("+experiment=exploding", "+remedy=clip_norm", "expect=healthy") == "healthy"
    assert expects("+experiment=exploding") == "exploding"


def test_factors_keep_whole_numbers_whole_and_others_short() -> None:
    plain = {"data": {"batch_size": 5, "samples": None, "drop": True}, "optimizer": {"lr": 0.07}}
    assert overrides(Remedy(multiply={"data.batch_size": 0.5}), plain) == ["data.batch_size=3"]
    assert overrides(Remedy(multiply={"data.batch_size": 0.01}), plain) == ["data.batch_size=1"]
    assert overrides(Remedy(multiply={"optimizer.lr": 0.3333}), plain) == ["optimizer.lr=0.0233"]
    assert overrides(Remedy(set={"data.samples": 7, "data.drop": False}), plain) == [
        "data.samples=7",
        "data.drop=false",
    ]
    for key in ("data.samples", "data.drop", "data.nope", "nope.lr", "optimizer"):
        with pytest.raises(ValueError, match=f"has no {key}"):
            overrides(Remedy(multiply={key: 2}), plain)


@pytest.mark.parametrize(
    "experiment", [pytest.param(e, marks=() if e in FEW else pytest.mark.slow) for e in EXPERIMENTS]
)
def test_every_remedy_applies_to_every_experiment_or_says_why_not(experiment: str) -> None:
    base = composed(f"+experiment={experiment}")
    applied = []
    for name in NAMES:
        cfg = base.copy()
        OmegaConf.update(cfg, f"remedy.{name}", OmegaConf.structured(shipped(name)), force_add=True)
        try:
            made = treated(cfg, [])
        except DoesNotApply as error:
            assert error.why
            continue
        assert made.remedy is not None and (made.remedy["changed"] or name == "none"), name
        applied.append(name)
    assert {"none", "lower_lr", "higher_lr", "clip_tiny", "noise", "accumulate"} <= set(applied)


def test_every_file_is_a_remedy_under_its_own_name_in_the_order_given() -> None:
    made = schema.to_config(composed(f"+remedy=[{','.join(reversed(NAMES))}]")).remedy
    assert list(made) == NAMES[::-1] and made == {name: shipped(name) for name in NAMES}
    for name, remedy in made.items():
        assert remedy.why and (name == "none" or remedy.set or remedy.multiply), name


@pytest.mark.parametrize(
    "given", [["model=lstm", "model.cell=rnn"], *(pytest.param([f"model={m}"], marks=pytest.mark.slow) for m in MODELS)]
)
def test_suggestions_compose_to_what_they_make(given: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Pasted after the run's own overrides, each gives the run's configuration with that one change."""
    monkeypatch.setattr("gradlab.config.remedy.compose", lambda overrides: composed(*overrides))
    given = [*given, "precision=fp16", "precision.init_scale=4", "clip=value", "clip.max_value=0.1"]
    base = composed(*given)
    failed = schema.to_config(base)
    measured = Evidence("", ratios=[0.3, 0.2, 0.1], weights=9.0, norms=[1.0, 2.0], coefficient=0.01, planned=500)
    found = {  # many verdicts have the same
        tuple(t.overrides): (p, t)
        for verdict in LIKELY
        for t in candidates_for(replace(measured, verdict=verdict), failed, given, search=True)
        for p in proposals(replace(measured, verdict=verdict), failed, search=True)
        if p.remedy is not None and label(p.name.split("+")) == t.name and p.why == t.why and t.overrides
    }
    assert len(found) >= 8
    for proposal, t in found.values():
        typed = pasted(given, t.overrides)
        assert typed[0] == given[0] and not any(o.startswith("+remedy") for o in typed)
        after = composed(*typed)
        assert described(after) != described(base), t
        for name, value in proposal.remedy.set.items() if proposal.remedy else ():
            if "." in name and has(OmegaConf.to_container(after), name):
                assert text(OmegaConf.select(after, name)) == text(value), t


def test_every_verdict_that_a_configuration_can_fix_has_makers() -> None:
    well = {"healthy", "interrupted", "small_but_healthy", "too_short"}
    assert set(VERDICTS) - well <= set(LIKELY)


def test_a_treated_run_that_fails_is_told_its_remedy_in_plain_overrides() -> None:
    given = ["+experiment=exploding", "+remedy=lower_lr"]
    made = treated(composed(*given), given)
    assert untreated(given, made.remedy) == ["+experiment=exploding", "optimizer.lr=0.01"]
    e = Evidence("exploding", ratios=[50.0], weights=13.0, planned=100)
    tries = candidates_for(e, made.config, untreated(given, made.remedy))
    assert tries[0].overrides[0] == "clip=norm"
    assert pasted(untreated(given, made.remedy), tries[0].overrides)[:2] == untreated(given, made.remedy)


def test_a_remedy_changes_nothing_but_what_it_names() -> None:
    for name in ("relu", "clip_norm", "lower_lr"):
        cfg = composed("+experiment=vanishing").copy()
        made = treat_(cfg, name, shipped(name))
        changed = difference(described(composed("+experiment=vanishing")), described(cfg))
        assert {key.split(".")[0] for key in changed} == {o.split("=")[0].split(".")[0] for o in made}


@pytest.mark.slow
def test_a_run_records_what_its_remedy_changed_and_resumes_with_it(gradlab: Commands, tmp_path: Path) -> None:
    given = [*SHORT[:-1], "+remedy=[lower_lr,relu]", "optimizer.lr=0.3", "hydra.run.dir=run"]
    result = gradlab(*given, cwd=tmp_path)
    assert result.code == 0, result
    assert "remedy [lower_lr,relu]: model.activation sigmoid -> relu, optimizer.lr 0.3 -> 0.1" in result.out
    told = json.loads((tmp_path / "run" / "diagnosis.json").read_text())
    changed = {"model.activation": ["sigmoid", "relu"], "optimizer.lr": [0.3, 0.1]}
    assert told["remedy"] == {"names": ["lower_lr", "relu"], "changed": changed, "applies": True, "why_not": None}
    ran = OmegaConf.load(tmp_path / "run" / ".hydra" / "config.yaml")
    assert (ran.optimizer.lr, ran.model.activation, ran.expect) == (0.1, "relu", "any")
    assert gradlab("resume=run", "trainer.epochs=2", cwd=tmp_path).code == 0
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert {line["lr"] for line in lines if "lr" in line} == {0.1} and lines[-1]["epoch"] == 2


@pytest.mark.slow
def test_what_only_the_weights_that_a_run_begins_with_refuse_does_not_apply(gradlab: Commands, tmp_path: Path) -> None:
    assert gradlab(*SHORT, "expect=any", "hydra.run.dir=first", cwd=tmp_path).code == 0
    result = gradlab(*SHORT, "init_from=first", "+remedy=smaller_model", cwd=tmp_path)
    assert result.code == 2 and "remedy=smaller_model: does not apply: init_from=first: does not fit" in result.err
    wrong = gradlab(*SHORT, "init_from=nope", "+remedy=smaller_model", cwd=tmp_path)
    assert wrong.code == 2 and wrong.err.startswith("gradlab: init_from=nope"), wrong


def test_a_remedy_of_ones_own(gradlab: Commands, tmp_path: Path) -> None:
    folder = tmp_path / "mine" / "remedy"
    folder.mkdir(parents=True)
    (folder / "calm.yaml").write_text(
        "# @package remedy.calm\nwhy: it is mine\nset: {clip: gentle, optimizer.lr: 0.5}\n"
    )
    (folder.parent / "clip").mkdir()
    (folder.parent / "clip" / "gentle.yaml").write_text("defaults: [norm, _self_]\nmax_norm: 0.1\n")
    given = ["--config-dir", "mine", *SHORT, "+remedy=calm", "hydra.run.dir=run"]
    assert gradlab(*given, cwd=tmp_path).code == 0
    changed = json.loads((tmp_path / "run" / "diagnosis.json").read_text())["remedy"]["changed"]
    assert changed == {
        "clip": ["none", "norm"],
        "clip.max_norm": [None, 0.1],
        "clip.norm_type": [None, 2.0],
        "optimizer.lr": [0.001, 0.5],
    }


def test_a_run_is_composed_again_with_its_remedies(tmp_path: Path) -> None:
    (tmp_path / ".hydra").mkdir()
    (tmp_path / ".hydra" / "overrides.yaml").write_text("['+experiment=exploding', '+remedy=lower_lr']")
    (tmp_path / ".hydra" / "hydra.yaml").write_text("hydra: {runtime: {config_sources: []}}")
    untreated = compose(["+experiment=exploding"]).optimizer.lr
    assert recomposed(tmp_path).optimizer.lr == pytest.approx(untreated / 3, rel=0.01)
