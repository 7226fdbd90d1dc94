"""A user's own components live in the user's own folder: one class each, named by GRADLAB_PLUGINS or an entry point."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

CLIP = """
    from dataclasses import dataclass

    from gradlab.base.option import option, require
    from gradlab.update.clip import Clip, Clipped, State, scaled
    from gradlab.update.gradients import Gradients


    @option("clip", "halve")
    @dataclass
    class Halve(Clip):
        '''Scale every gradient by one factor.'''

        factor: float = 0.5

        def __post_init__(self) -> None:
            require(0 < self.factor <= 1, "factor", self.factor, "in (0, 1]")

        def clip_(self, gradients: Gradients, state: State) -> Clipped:
            return scaled(gradients, gradients.total * 0 + self.factor, state)
"""
RULE = """
    from dataclasses import dataclass

    from gradlab.diagnosis.finding import Finding
    from gradlab.diagnosis.finished_run import FinishedRun
    from gradlab.diagnosis.rules.rule import Rule, rule


    @rule("loss_above", position=5)
    @dataclass
    class LossAbove(Rule):
        '''The last loss is above a bound.'''

        bound: float = 1000.0

        def find(self, run: FinishedRun) -> Finding | None:
            if run.history.losses.final < self.bound:
                return None
            return self.found("critical", f"the loss ends above {self.bound:g}")
"""
RUN = ("data.samples=64", "model.layers=1", "model.width=8", "trainer.epochs=1", "trainer.evaluate_every=0")


@pytest.fixture(scope="module")
def outside(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a package, which has no __init__.py, and a package that is installed."""
    folder = tmp_path_factory.mktemp("outside")
    (folder / "mine" / "rules").mkdir(parents=True)
    (folder / "mine" / "clips.py").write_text(textwrap.dedent(CLIP))
    (folder / "mine" / "rules" / "loss.py").write_text(textwrap.dedent(RULE))
    (folder / "mine" / "unrelated.py").write_text("raise RuntimeError('nobody named this')\n")
    installed = folder / "site"
    (installed / "theirs-1.0.dist-info").mkdir(parents=True)
    (installed / "theirs-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    entry = "[gradlab.plugins]\nclips = their_clips\n"
    (installed / "theirs-1.0.dist-info" / "entry_points.txt").write_text(entry)
    (installed / "their_clips.py").write_text(textwrap.dedent(CLIP).replace("halve", "theirs"))
    return folder


def gradlab(folder: Path, *arguments: str, plugins: str = "", path: str = "") -> subprocess.CompletedProcess[str]:
    search = os.pathsep.join([path, str(Path(__file__).parents[2])])
    environment = os.environ | {"GRADLAB_PLUGINS": plugins, "PYTHONPATH": search}
    command = [sys.executable, "-m", "gradlab", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)


@pytest.mark.slow
def test_a_clip_and_a_rule_of_a_folder_of_ones_own_take_part_in_a_run(outside: Path) -> None:
    own = ["clip=halve", "clip.factor=0.25", "diagnosis.loss_above.bound=1e-3", "expect=loss_above"]
    ended = gradlab(outside, *RUN, *own, "hydra.run.dir=run", plugins="mine")
    assert ended.returncode == 0, ended.stderr
    diagnosis = json.loads((outside / "run" / "diagnosis.json").read_text())
    assert diagnosis["verdict"] == "loss_above" and diagnosis["checked"][0] == "loss_above"
    lines = [json.loads(line) for line in (outside / "run" / "metrics.jsonl").read_text().splitlines()]
    assert lines and {line["clip/coefficient"] for line in lines if "train/loss" in line} == {0.25}


def test_help_lists_options_of_plugins_and_imports_none_of_them(outside: Path) -> None:
    (outside / "broken.py").write_text('@option("clip", "broken")\nclass Broken: ...\n')
    said = gradlab(outside, "--help", plugins="mine,broken", path=str(outside / "site")).stdout
    listed = next(line.split() for line in said.splitlines() if line.split()[:1] == ["clip"])
    assert {"norm", "broken", "halve", "theirs"} <= set(listed)


def test_nothing_is_imported_that_its_user_did_not_name(outside: Path) -> None:
    ended = gradlab(outside, *RUN, "clip=halve")
    assert ended.returncode == 2
    assert ended.stderr.startswith("gradlab: clip=halve: ")
    allowed = ended.stderr.rpartition("must be one of ")[2]
    assert "norm" in allowed and "halve" not in allowed


@pytest.mark.slow
def test_an_installed_package_names_its_plugins_itself(outside: Path) -> None:
    shown = gradlab(outside, "clip=theirs", "--cfg", "job", "--package", "clip", path=str(outside / "site"))
    assert shown.returncode == 0 and shown.stdout.endswith("factor: 0.5\n"), shown


@pytest.mark.parametrize(
    ("plugins", "arguments", "message"),
    [
        ("nosuch", (), "GRADLAB_PLUGINS=nosuch: there is no such module here or on the Python path"),
        pytest.param(
            "broken",
            (),
            "GRADLAB_PLUGINS=broken: fails to import: NameError: name 'option' is not defined",
            marks=pytest.mark.slow,
        ),
        ("mine,again", (), "clip=halve: is defined twice: in mine.clips and in again"),
        ("mine.clips", ("clip=halve", "clip.factor=2"), "clip.factor=2.0: must be in (0, 1]"),
        pytest.param(
            "bare",
            ("model=bare",),
            "data=???: must be chosen, since this model has no usual_data: adding,",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_plugin_that_cannot_be_used_is_a_wrong_command(
    outside: Path, plugins: str, arguments: tuple[str, ...], message: str
) -> None:
    (outside / "broken.py").write_text('@option("clip", "broken")\nclass Broken: ...\n')
    bare = '@option("model", "bare")\n@dataclass\nclass Bare(ModelOption): ...\n'
    header = "from dataclasses import dataclass\nfrom gradlab.base.option import option\n"
    (outside / "bare.py").write_text(f"{header}from gradlab.models.base import ModelOption\n{bare}")
    (outside / "again.py").write_text(textwrap.dedent(CLIP))
    ended = gradlab(outside, *arguments, plugins=plugins)
    assert ended.returncode == 2 and len(ended.stderr.splitlines()) == 1, ended.stderr
    assert ended.stderr.startswith(f"gradlab: {message}")
