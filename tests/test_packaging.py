"""The command works from a checkout and an editable install, in any working directory; what the wheel holds."""

import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parent.parent


def run(command: list[str], cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=cwd, env=os.environ | env, capture_output=True, text=True, timeout=300)


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    """The wheel; `.ci/wheel` checks, installs and runs it."""
    # With what is installed here when that has the build backend; else pip fetches it, as for any user.
    offline = ["--no-isolation"] if _has("hatchling") else []
    made = run([sys.executable, "-m", "build", "--wheel", *offline, "-o", str(tmp_path), str(REPOSITORY)], tmp_path)
    assert made.returncode == 0, made.stderr
    return next(tmp_path.glob("*.whl"))


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
def test_wheel_holds_the_configurations_and_nothing_that_is_not_the_package(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    shipped = {name.removeprefix("gradlab/") for name in names if name.startswith("gradlab/conf/")}
    assert shipped == {str(p.relative_to(REPOSITORY)) for p in (REPOSITORY / "conf").rglob("*.yaml")}
    parts = (REPOSITORY / "gradlab" / "report" / "pages" / "assets").iterdir()
    assert {f"gradlab/report/pages/assets/{part.name}" for part in parts} <= set(names)
    assert {name.split("/")[0] for name in names} <= {"gradlab", "hydra_plugins", "gradlab-0.1.0.dist-info"}
    modules = {str(p.relative_to(REPOSITORY)) for p in (REPOSITORY / "gradlab").rglob("*.py")}
    assert {*modules, "gradlab/py.typed"} <= set(names)  # one that .gitignore names would be left out


@pytest.mark.slow
def test_a_type_checker_sees_what_the_package_offers(tmp_path: Path) -> None:
    uses = {
        "gradlab.run('seed=1', model=net, data=[(net, net)], loss=print).healthy": "",
        "gradlab.run('seed=1', nodel=net)": "nodel",
        "gradlab.watch(net, every=10).faults": "",
        "gradlab.watch(net, evry=10)": "evry",
        "gradlab.watch.Fault": "",
        "gradlab.integrations.LightningWatch(folder='here')": "",
        "gradlab.integrations.LightningWatch(foldr='here')": "foldr",
        "gradlab.wach": "wach",
    }
    script = tmp_path / "uses.py"
    script.write_text("\n".join(["import gradlab", "from torch.nn import Linear", "net = Linear(1, 1)", *uses]))
    found = run([sys.executable, "-m", "mypy", str(script)], REPOSITORY).stdout  # with what `make lint` has cached
    for number, wrong in enumerate(uses.values(), start=4):
        assert (f"{script.name}:{number}: error" in found) == bool(wrong) and wrong in found, found


def test_checkout_runs_from_another_folder(tmp_path: Path) -> None:
    answers([sys.executable, "-m", "gradlab"], tmp_path, REPOSITORY, PYTHONPATH=str(REPOSITORY))


def test_installed_console_script(tmp_path: Path) -> None:
    script = Path(sysconfig.get_path("scripts"), "gradlab")
    if not script.exists():
        pytest.skip("gradlab is not installed")
    result = run([str(script), "--cfg", "job", "clip=norm"], tmp_path)
    assert result.returncode == 0 and "max_norm: 1.0" in result.stdout, result.stderr
