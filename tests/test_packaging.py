"""The command works from a checkout, an editable install and a wheel, in any working directory."""

import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parent.parent
SHORT = ("trainer.epochs=1", "data.samples=64", "model.layers=2", "model.width=8", "expect=any", "clip=norm")


def run(command: list[str], cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=cwd, env=os.environ | env, capture_output=True, text=True, timeout=300)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the source distribution, the wheel that is made of it, and what that installs."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip"]
    # With what is installed here when that has the build backend; else pip fetches it, as for any user.
    offline = ["--no-isolation"] if _has("hatchling") else []
    made = run([sys.executable, "-m", "build", *offline, "-o", str(folder), str(REPOSITORY)], folder)
    assert made.returncode == 0, made.stderr
    (wheel,) = folder.glob("*.whl")
    done = run([*pip, "install", "-q", "--no-deps", "--target", str(folder / "site"), str(wheel)], folder)
    assert done.returncode == 0, done.stderr
    return folder


def _has(module: str) -> bool:
    return run([sys.executable, "-c", f"import {module}"], REPOSITORY).returncode == 0


def answers(command: list[str], cwd: Path, origin: Path, **env: str) -> None:
    """--help and --cfg find the configurations, with gradlab from `origin`."""
    helped = run([*command, "--help"], cwd, **env)
    assert helped.returncode == 0 and "transformer" in helped.stdout and "zclip" in helped.stdout, helped.stderr
    where = run([sys.executable, "-c", "import gradlab; print(gradlab.__file__)"], cwd, **env)
    assert Path(where.stdout.strip()).is_relative_to(origin)
    shown = run([*command, "--cfg", "job", "clip=norm"], cwd, **env)
    assert shown.returncode == 0 and "max_norm: 1.0" in shown.stdout, shown.stderr


@pytest.mark.slow
def test_wheel_holds_the_configurations_and_nothing_that_is_not_the_package(installed: Path) -> None:
    names = zipfile.ZipFile(next(installed.glob("*.whl"))).namelist()
    shipped = {name.removeprefix("gradlab/") for name in names if name.startswith("gradlab/conf/")}
    assert shipped == {str(p.relative_to(REPOSITORY)) for p in (REPOSITORY / "conf").rglob("*.yaml")}
    parts = (REPOSITORY / "gradlab" / "report" / "pages" / "assets").iterdir()
    assert {f"gradlab/report/pages/assets/{part.name}" for part in parts} <= set(names)
    assert {name.split("/")[0] for name in names} <= {"gradlab", "hydra_plugins", "gradlab-0.1.0.dist-info"}
    modules = {str(p.relative_to(REPOSITORY)) for p in (REPOSITORY / "gradlab").rglob("*.py")}
    assert modules <= set(names)  # one that .gitignore names would be left out


@pytest.mark.slow
def test_a_package_registry_would_take_both(installed: Path) -> None:
    pytest.importorskip("twine")
    both = [str(path) for path in sorted(installed.glob("gradlab-*")) if path.is_file()]
    checked = run([sys.executable, "-m", "twine", "check", "--strict", *both], installed)
    assert len(both) == 2 and checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.slow
def test_wheel_runs_in_another_folder(installed: Path, tmp_path: Path) -> None:
    module = [sys.executable, "-m", "gradlab"]
    answers(module, tmp_path, installed, PYTHONPATH=str(installed / "site"))
    done = run([*module, *SHORT], tmp_path, PYTHONPATH=str(installed / "site"))
    assert done.returncode == 0, done.stderr
    (folder,) = (tmp_path / "outputs" / "run").iterdir()
    assert (folder / "diagnosis.json").is_file() and (folder / ".hydra" / "config.yaml").is_file()


@pytest.mark.slow
def test_console_script_of_the_wheel_finds_a_users_module(installed: Path, tmp_path: Path) -> None:
    made = "nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.Linear(width, 10))"
    (tmp_path / "nets_of_mine.py").write_text(f"from torch import nn\ndef make(width):\n    return {made}\n")
    mine = ["model=custom", "model.target=nets_of_mine:make", "+model.kwargs.width=8", "trainer.epochs=1", "expect=any"]
    script = str(installed / "site" / "bin" / "gradlab")
    done = run([sys.executable, script, *mine], tmp_path, PYTHONPATH=str(installed / "site"))
    assert done.returncode == 0, done.stderr


def test_checkout_runs_from_another_folder(tmp_path: Path) -> None:
    answers([sys.executable, "-m", "gradlab"], tmp_path, REPOSITORY, PYTHONPATH=str(REPOSITORY))


def test_installed_console_script(tmp_path: Path) -> None:
    script = Path(sysconfig.get_path("scripts"), "gradlab")
    if not script.exists():
        pytest.skip("gradlab is not installed")
    result = run([str(script), "--cfg", "job", "clip=norm"], tmp_path)
    assert result.returncode == 0 and "max_norm: 1.0" in result.stdout, result.stderr
