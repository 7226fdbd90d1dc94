"""What `--help clip=norm` and the page of options say: every field of every option, with what it means."""

from dataclasses import fields

import pytest

from gradlab.base.option import OPTIONS
from gradlab.cli.help import FIELDS, help_on
from gradlab.config.reference import described, reference
from gradlab.config.schema import Config


def test_every_field_of_every_option_has_a_meaning() -> None:
    page = reference()
    for (group, option), cls in OPTIONS.items():
        if group == "rule" or not cls.__module__.startswith("gradlab."):
            continue
        assert f"### `{group}={option}`" in page
        assert [name for name, _, meaning in described(cls) if not meaning] == [], (group, option)


def test_help_lists_the_fields_at_the_root() -> None:
    groups = {group for group, _ in OPTIONS} | {"remedy", "story"}
    assert FIELDS.split() == [f.name for f in fields(Config) if f.name not in groups]


@pytest.mark.parametrize(
    ("arguments", "present", "absent"),
    [
        (["--help", "clip=norm"], "clip.max_norm=1", "clip=agc"),
        (["clip", "-h"], "clip=agc", "no such option"),
        (
            ["--help", "clip=nrm"],
            "clip=nrm: no such option (did you mean norm?); all of clip:\n\nclip=agc",
            "optimizer=",
        ),
        (["--help", "logger=wandb"], "logger.wandb.project=gradlab", "logger.tensorboard"),
        (["--help", "seed=1"], "Groups (choose", "clip.max_norm=1"),
        (["--help", "trainer"], "trainer.epochs=5", "Groups (choose"),
    ],
)
def test_help_on_what_is_asked(arguments: list[str], present: str, absent: str) -> None:
    text = help_on(arguments)
    assert present in text and absent not in text
