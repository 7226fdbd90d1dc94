"""What answers without importing PyTorch, and what stands in for it until it is used."""

import subprocess
import sys
from pathlib import Path

import made
import pytest

PROBE = """
import atexit, sys
sys.argv = ["gradlab", *{arguments!r}]
from gradlab.cli.main import main
atexit.register(lambda: print("torch loaded:", "torch.nn" in sys.modules, "wandb" in sys.modules))
main()
"""


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--help"], 0),
        (["clip=norm", "clip.max_norm=-1"], 2),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in ((["clip.maxnorm=1"], 2), (["--cfg", "job"], 0), (["expect=foo"], 2))
        ),
    ],
)
def test_help_and_wrong_commands_do_not_import_torch(tmp_path: Path, arguments: list[str], code: int) -> None:
    probe = [sys.executable, "-c", PROBE.format(arguments=arguments)]
    result = subprocess.run(probe, cwd=tmp_path, capture_output=True, text=True)
    assert "torch loaded: False False" in result.stdout and result.returncode == code, result


READERS = """
import sys
from gradlab import advise
run = sys.argv[1]
assert advise.main([run]) == 0 and "torch" not in sys.modules
from gradlab import list, show
from gradlab.report.command import main as report
assert [command([run]) for command in (list.main, show.main, report)] == [0] * 3
assert "Tensor" not in vars(sys.modules["torch"])
"""


def test_commands_that_read_folders_do_not_import_torch(tmp_path: Path) -> None:
    run = made.collapse(tmp_path / "run")
    result = subprocess.run([sys.executable, "-c", READERS, str(run)], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[-1] == str(run / "report.html") and (run / "report.html").is_file()


@pytest.mark.parametrize(
    "first",
    [
        "from torch import nn",
        *(pytest.param(f, marks=pytest.mark.slow) for f in ("import torch", "import torch.nn.functional as F")),
    ],
)
def test_lazy_torch_serves_every_way_to_import_it(first: str) -> None:
    code = f"""
import sys
from gradlab.base.lazy import lazy_import
lazy_import("torch")
{first}
import torch
assert ("torch.nn" in sys.modules) == ({first!r} != "import torch")
assert torch.tensor([1.0]).sum() == 1
import torch.nn.functional as F
from torch import nn
import torch.utils.data
assert F.relu(torch.tensor(-1.0)) == 0 and nn.Linear(2, 3).weight.shape == (3, 2)
assert sys.modules["torch"].Tensor is torch.Tensor and torch.nn is nn and torch.utils.data.Dataset
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
