"""Composing: what is remembered within a command, and no longer."""

import shutil
import sys
from pathlib import Path

import hydra
import pytest

from gradlab.base.conf import conf_dir
from gradlab.config.compose import compose, register


def test_a_new_command_reads_files_that_were_edited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = sys.modules[compose.__module__]
    shutil.copytree(conf_dir(), tmp_path / "conf")
    monkeypatch.setattr(module, "conf_dir", lambda: tmp_path / "conf")
    for seed in (3, 4):
        (tmp_path / "conf" / "experiment" / "mine.yaml").write_text(f"# @package _global_\nseed: {seed}\n")
        module.forget()
        assert compose(["+experiment=mine"]).seed == seed
    module.forget()


@pytest.mark.filterwarnings("ignore:(?s).*is validated against ConfigStore schema")
def test_an_option_of_gradlabs_is_what_a_file_of_its_name_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(conf_dir(), tmp_path / "conf")
    monkeypatch.setattr(sys.modules[compose.__module__], "conf_dir", lambda: tmp_path / "conf")
    (tmp_path / "conf" / "clip").mkdir()
    (tmp_path / "conf" / "clip" / "norm.yaml").write_text("max_norm: 7\n")
    assert compose(["clip=norm", "optimizer=sgd"]).clip.max_norm == 7
    assert compose(["clip=value", "optimizer=sgd"]).clip.max_value != 7


def test_a_root_file_of_ones_own_says_what_options_are(tmp_path: Path) -> None:
    shutil.copytree(conf_dir(), tmp_path / "conf")
    root = tmp_path / "conf" / "config.yaml"
    root.write_text(root.read_text().replace("clip: none", "clip: norm") + "clip:\n  max_norm: 7\n")
    register()
    with hydra.initialize_config_dir(str(tmp_path / "conf"), version_base="1.3"):
        assert compose(["clip=norm", "optimizer=sgd"]).clip.max_norm == 7
