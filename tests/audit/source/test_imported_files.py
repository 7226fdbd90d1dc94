"""Loops spread over files: a mistake in a helper's file is reported there, whichever file is audited."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gradlab.audit.command import main

SCALING = """import torch
class Scaling:
    def __init__(self):
        self.inner = torch.amp.GradScaler("cuda")
    def __call__(self, loss, optimizer, params, update=True):
        self.inner.scale(loss).backward()
        if update:
            self.inner.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(params, 1.0)
            self.inner.step(optimizer)
            self.inner.update()
"""
LOOP = """from scaling import Scaling
import torch
def main(model, loader):
    optimizer = torch.optim.AdamW(model.parameters())
    scaling = Scaling()
    for i, (x, y) in enumerate(loader):
        with torch.autocast("cuda"):
            loss = torch.nn.functional.cross_entropy(model(x), y) / 4
        scaling(loss, optimizer, model.parameters(), update=(i + 1) % 4 == 0)
        if (i + 1) % 4 == 0:
            optimizer.zero_grad()
"""


def errors(capsys, *paths):
    main([*map(str, paths), "--severity", "warning"])
    return [line.split(" [")[0].rsplit("/", 1)[-1].split(": ")[:2] for line in capsys.readouterr().out.splitlines()]


def written(folder, files):
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.mark.parametrize("whole", [True, False])
def test_a_mistake_that_only_the_caller_shows_is_reported_once_in_the_helper(tmp_path, capsys, whole):
    written(tmp_path, {"scaling.py": SCALING, "loop.py": LOOP.replace(" / 4", "")})
    found = errors(capsys, tmp_path if whole else tmp_path / "loop.py")
    assert found[0] == ["scaling.py:6:9", "GL301 error"] and len(found) == 2


def test_it_is_silenced_in_the_file_of_the_helper(tmp_path, capsys):
    text = SCALING.replace("backward()", "backward()  # gradlab: ignore[GL301]")
    written(tmp_path, {"scaling.py": text, "loop.py": LOOP.replace(" / 4", "")})
    assert errors(capsys, tmp_path / "loop.py") == [["Nothing found."]]


def test_an_excluded_file_is_not_reported(tmp_path, capsys):
    written(tmp_path, {"scaling.py": SCALING, "loop.py": LOOP.replace(" / 4", "")})
    (tmp_path / "pyproject.toml").write_text('[tool.gradlab.audit]\nexclude = ["scaling.py"]\n')
    assert errors(capsys, tmp_path) == [["Nothing found."]]


def test_an_object_that_is_called_is_followed(tmp_path, capsys):
    late = LOOP.replace("        if (i + 1) % 4 == 0:\n            optimizer", "        optimizer")
    written(tmp_path, {"scaling.py": SCALING, "loop.py": LOOP, "late.py": late})
    assert errors(capsys, tmp_path / "loop.py") == [["Nothing found."]]
    assert errors(capsys, tmp_path / "late.py")[0] == ["late.py:10:9", "GL306 error"]


def test_a_package_beside_the_scripts_folder_is_followed(tmp_path, capsys):
    late = LOOP.replace("        if (i + 1) % 4 == 0:\n            optimizer", "        optimizer")
    late = late.replace("from scaling", "from package.scaling")
    written(tmp_path, {"package/__init__.py": "", "package/scaling.py": SCALING, "scripts/train.py": late})
    assert errors(capsys, tmp_path / "scripts/train.py")[0] == ["train.py:10:9", "GL306 error"]


def test_a_package_without_an_init_file_is_followed(tmp_path, capsys):
    wrong = SCALING.replace("            self.inner.unscale_(optimizer)\n", "")
    loop = LOOP.replace("from scaling", "from package.tools.scaling")
    written(tmp_path, {"package/tools/scaling.py": SCALING, "package/training/loop.py": loop})
    assert errors(capsys, tmp_path / "package/training/loop.py") == [["Nothing found."]]
    written(tmp_path, {"package/tools/scaling.py": wrong})
    assert errors(capsys, tmp_path / "package/training/loop.py")[0] == ["scaling.py:8:13", "GL201 error"]


def test_a_mistake_in_a_helper_of_another_file_is_reported_there_and_once(tmp_path, capsys):
    (tmp_path / "steps.py").write_text(
        "import torch\ndef act(loss, net, opt, due):\n    loss.backward()\n"
        "    torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)\n    if due:\n        opt.step()\n"
        "        opt.zero_grad()\n"
    )
    loop = "def run(net, opt, loader, n):\n    opt.zero_grad()\n    for i, (x, y) in enumerate(loader):\n"
    loop += "        due = (i + 1) % n == 0\n"
    loop += "        loss = F.mse_loss(net(x), y) / n\n        act(loss, net, opt, due)\n"
    for name in ("one.py", "two.py"):
        (tmp_path / name).write_text("from torch.nn import functional as F\nfrom steps import act\n" + loop)
    for paths in ([tmp_path], [tmp_path / "one.py"]):
        assert main(["--severity", "error", "--format", "json", *map(str, paths)]) == 1
        found = json.loads(capsys.readouterr().out)
        assert [(Path(f["path"]).name, f["line"], f["code"]) for f in found] == [("steps.py", 4, "GL304")]
    text = (tmp_path / "steps.py").read_text().replace("1.0)", "1.0)  # gradlab: ignore[GL304]")
    (tmp_path / "steps.py").write_text(text)
    assert main(["--severity", "error", str(tmp_path)]) == 0


STARS = {
    "base.py": "import torch\nfrom torch import nn\nfrom torch.nn.utils import clip_grad_norm_ as clip\n",
    "again.py": "from base import *\n",
    "train.py": """
from again import *
for x, y in loader:
    optimizer.zero_grad()
    loss = criterion(model(x), y)
    loss.backward()
    optimizer.step()
    CLIP(model.parameters(), 1.0)  # expect: GL101
""",
}


@pytest.mark.parametrize("call", ["nn.utils.clip_grad_norm_", "clip", "torch.nn.utils.clip_grad_norm_"])
@pytest.mark.parametrize("start", ["again", "base", "fastai.vision.all"])
def test_names_imported_by_star(call, start, tmp_path, capsys):
    for name, text in STARS.items():
        (tmp_path / name).write_text(text.replace("CLIP", call).replace("from again", f"from {start}"))
    result = main([str(tmp_path / "train.py")]), capsys.readouterr().out
    known = call != "clip" or "." not in start  # of a package that is not read, only what means the same everywhere
    assert (result[0], "train.py:8:5: GL101" in result[1]) == (int(known), known)


TRAINER = """import torch
class Trainer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(8, 3)
        self.optim = torch.optim.Adam(self.parameters())
    def fit(self, loader):
        for x, y in loader:
            loss = torch.nn.functional.cross_entropy(self.net(x), y)
            loss.{}()
            self.optim.step()
"""


@pytest.mark.parametrize("imported", ["from trainer import Trainer", "from trainer import *"])
def test_a_script_that_only_starts_the_training_of_another_file_is_followed_into_it(tmp_path, capsys, imported):
    script = f"{imported}\nfor epoch in range(3):\n    Trainer().fit(batches)\n"
    written(tmp_path, {"trainer.py": TRAINER.format("backward"), "train.py": script})
    assert errors(capsys, tmp_path / "train.py")[0] == ["trainer.py:11:13", "GL305 error"]


NETWORK = """import torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = torch.nn.Linear(8, 8), torch.nn.Linear(8, 3)
    def forward(self, x):
        return {}
"""
CUT = "self.last(self.first(x)).detach()", "self.last(self.first(x))"


@pytest.mark.parametrize("made", CUT)
def test_a_network_of_another_file_that_cuts_its_graph_is_found_there(made, tmp_path, capsys):
    fit = "import net, trainer\n" + TRAINER.format("backward").replace("torch.nn.Linear(8, 3)", "net.Net()")
    fit = fit.replace("            loss.", "            self.optim.zero_grad()\n            loss.")
    written(tmp_path, {"net.py": NETWORK.format(made), "train.py": fit})
    main([str(tmp_path / "train.py"), "--severity", "warning"])
    assert ("net.py:7:16: GL712" in capsys.readouterr().out) == ("detach" in made)


def test_the_text_of_a_file_that_makes_the_scaler_is_read(tmp_path, capsys):
    written(tmp_path, {"scaling.py": SCALING.replace('torch.amp.GradScaler("cuda")', "torch.cuda.amp.GradScaler()")})
    written(tmp_path, {"loop.py": LOOP, "unused.py": "from torch.cuda.amp import GradScaler\n"})
    main([str(tmp_path / "loop.py"), "--select", "GL212"])
    assert "scaling.py:4:22: GL212" in (shown := capsys.readouterr().out) and "unused" not in shown
