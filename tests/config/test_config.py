"""Every option composes to its dataclass, every file to a variant of one."""

from dataclasses import MISSING, asdict, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from omegaconf import DictConfig, OmegaConf

from gradlab.base import components
from gradlab.base.conf import conf_dir
from gradlab.base.errors import APPENDED
from gradlab.base.option import OPTIONS, Invalid
from gradlab.config import schema
from gradlab.config.compose import check, compose
from gradlab.diagnosis.options import VERDICTS
from gradlab.models.base import ModelOption

CONF = conf_dir()
GROUPS = sorted({group for group, _ in OPTIONS} - {"rule"})
OF_GROUPS = [(group, name) for group, name in OPTIONS if group in GROUPS]
MODELS = schema.options("model")
TARGET = {
    "optimizer": "torch.optim:NAdam",
    "model": "nets:Net",
    "data": "sets:make",
    "loss": "losses:focal",
    "schedule": "math:fmod",
}


pytestmark = pytest.mark.usefixtures("hydra_session")


@cache
def composed(*overrides: str) -> DictConfig:
    return compose(list(overrides))


def chosen(group: str, name: str) -> list[str]:
    """The overrides that choose an option, with what it requires."""
    required = [f"{group}.target={TARGET[group]}"] if name == "custom" else []
    plus = "+" if group in APPENDED else ""
    return [f"{plus}{group}={name}", *required]


def defaults(cls: Any) -> dict[str, Any]:
    """Values of the fields; rules of a diagnosis are dataclasses too."""
    values = {f.name: f.default if f.default is not MISSING else f.default_factory() for f in fields(cls)}  # type: ignore
    return {name: asdict(value) if is_dataclass(value) else value for name, value in values.items()}


@pytest.mark.parametrize(
    ("experiment", "change"),
    [
        ("vanishing_init", "model.init=he"),
        ("nan_loss_exp", "loss.stable=true"),
        ("dead_relu", "model.activation=gelu"),
        ("vanishing_rnn", "model.cell=gru"),
        ("exploding_transformer", "model.norm=pre"),
        ("loss_spike", "optimizer.lr=0.0005"),
    ],
)
def test_what_a_run_says_of_its_experiment_holds_with_what_cures_it(experiment: str, change: str) -> None:
    cured = composed(f"+experiment={experiment}", change).story
    assert change.partition("=")[2] in cured.lower() and cured != composed(f"+experiment={experiment}").story


def test_files_of_a_group_are_variants_of_its_options() -> None:
    """They begin with an option, and compose to its dataclass."""
    files = {(p.parent.name, p.stem) for group in GROUPS for p in (CONF / group).glob("*.yaml")}
    assert not files & set(OPTIONS)
    for group, name in files - {("logger", "none")}:
        (of,) = OmegaConf.load(CONF / group / f"{name}.yaml").defaults
        assert type(getattr(schema.to_config(composed(f"{group}={name}")), group)) is OPTIONS[group, of]


def test_what_the_text_of_modules_says_is_what_importing_them_registers() -> None:
    found = components.components()
    assert len(found) == len(set(found))
    assert {(c.group, c.name): c.module for c in found} == {key: cls.__module__ for key, cls in OPTIONS.items()}


ALONE = ("model", "data", "loss")
"""Groups whose options ask for something of the others."""


def composed_together(group: str, name: str) -> schema.Config:
    """A configuration with this option; one for as many groups as go together, since composing is slow."""
    if group in ALONE:
        return schema.to_config(composed(*chosen(group, name)))
    place = schema.options(group).index(name)
    others = [(other, schema.options(other)) for other in GROUPS if other not in ALONE]
    return schema.to_config(composed(*(o for g, names in others for o in chosen(g, names[place % len(names)]))))


@pytest.mark.parametrize(("group", "name"), OF_GROUPS)
def test_option_composes_to_its_dataclass_with_its_defaults(group: str, name: str) -> None:
    node = getattr(composed_together(group, name), group)
    node = node[name] if group == "logger" else node
    assert type(node) is OPTIONS[group, name]
    expected = defaults(type(node)) | ({"target": TARGET[group]} if name == "custom" else {})
    assert asdict(node) == expected


def test_root_file_has_every_field_of_the_root() -> None:
    root = yaml.safe_load((CONF / "config.yaml").read_text())
    groups = {next(iter(entry)).split()[-1] for entry in root["defaults"] if isinstance(entry, dict)}
    assert groups == set(GROUPS) - set(APPENDED)
    values = {name: value for name, value in root.items() if name not in ("defaults", "hydra")}
    expected = {name: value for name, value in defaults(schema.Config).items() if name in values}
    assert values == expected
    assert groups | set(values) | {"story", "remedy"} == {f.name for f in fields(schema.Config)}


@pytest.mark.parametrize("model", MODELS)
def test_every_model_has_data_that_fits_it(model: str) -> None:
    cls = OPTIONS["model", model]
    assert issubclass(cls, ModelOption)
    node = composed(*chosen("model", model)).data
    assert OmegaConf.get_type(node) is OPTIONS["data", cls.usual_data]


@pytest.mark.parametrize(
    "overrides",
    [
        ["optimizer.lr=${seed}", "seed=4", "model=lstm"],
        ["+experiment=fp16_collapse", "model.layers=3", "precision.init_scale=4", "model.layers=5"],
        ["pitfall.max_norm=1", "clip=norm", "+pitfall=clip_too_tight", "trainer={epochs: 2}"],
        ["expect=[diverged,nan_loss]", "hydra.job.num=3", "~schedule", "++story=mine"],
        [
            "clip=agc",
            "optimizer=lion",
            "precision=bf16",
            "+pitfall=no_clip",
            "model=lstm",
            "clip.eps=0.1",
            "data=digits",
        ],
        ["clip=norm", "precision=fp16_speech", "logger=[wandb,tensorboard]", "model=custom", "model.target=nets:Net"],
        ["+experiment=exploding", "clip=value", "noise=gaussian"],
    ],
)
def test_values_put_into_composed_options_are_what_hydra_composes(overrides: list[str]) -> None:
    import hydra

    expected = hydra.compose("config", overrides)
    types = {key: OmegaConf.get_type(expected, key) for key in expected}
    for _ in range(2):
        made = compose(overrides)
        assert OmegaConf.to_yaml(made) == OmegaConf.to_yaml(expected)
        assert made == expected
        assert {key: OmegaConf.get_type(made, key) for key in expected} == types
    compose(overrides).seed = 7
    assert compose(overrides).seed == expected.seed, "each composition is a copy"


@pytest.mark.parametrize(
    "wrong",
    [
        "optimizer.lr=high",
        "modle.layers=2",
        "model.layer=2",
        "seed=1,2",
        "clip=nrom",
        "pitfall.max_norm=1",
        "pitfall=no_clip",
        "+clip=norm",
    ],
)
def test_what_does_not_compose_raises_hydras_own_error(wrong: str) -> None:
    import hydra

    messages = []
    for way in (compose, lambda given: hydra.compose("config", given)):
        with pytest.raises(Exception) as caught:
            way(["model=lstm", wrong])
        messages.append((type(caught.value), str(caught.value)))
    assert messages[0] == messages[1]


def composes(kind: str) -> list[str]:
    return sorted(p.stem for p in (CONF / kind).glob("*.yaml"))


@pytest.mark.parametrize("name", composes("experiment")[::4])
def test_experiments_compose_and_say_what_they_show(name: str) -> None:
    """The others are run by tests/test_experiments.py."""
    made = schema.to_config(composed(f"+experiment={name}"))
    check(made)
    assert (
        made.expect is None
        or made.expect == "any"
        or {*([made.expect] if isinstance(made.expect, str) else made.expect)} <= {*VERDICTS}
    )


@pytest.mark.parametrize("override", ["+foo=1", "+clip.foo=1", "+optimizer.lrr=0.1"])
def test_a_field_that_nothing_reads_is_refused(override: str) -> None:
    with pytest.raises(Invalid, match=rf"^{override[1:]}".replace(".", r"\.")):
        schema.to_config(composed("clip=norm", override))


def test_kwargs_of_a_custom_model_are_free() -> None:
    made = schema.to_config(composed(*chosen("model", "custom"), "+model.kwargs.width=64"))
    assert made.model.kwargs == {"width": 64}  # type: ignore[attr-defined]


def test_a_user_option_that_extends_a_shipped_one_and_an_experiment_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "clip").mkdir()
    (tmp_path / "experiment").mkdir()
    (tmp_path / "clip" / "gentle.yaml").write_text("defaults: [norm, _self_]\nmax_norm: 0.1\n")
    mine = "# @package _global_\ndefaults:\n  - override /clip: gentle\n  - override /model: lstm\nseed: 7\n"
    (tmp_path / "experiment" / "mine.yaml").write_text(mine)
    made = schema.to_config(composed("+experiment=mine", f"hydra.searchpath=[{tmp_path}]"))
    assert made.clip == OPTIONS["clip", "norm"](max_norm=0.1)  # type: ignore[call-arg]
    assert type(made.model) is OPTIONS["model", "lstm"] and made.seed == 7
