"""--fix: a fixed loop runs as the loop that was correct from the start, and nothing else of the file changes."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from gradlab.audit.command import main
from gradlab.audit.file_audit import audit
from gradlab.audit.fixes.file_fix import fix_file
from gradlab.audit.rules.registry import load_rules
from gradlab.audit.source.files import read
from gradlab.audit.source.project import Project

HERE = Path(__file__).parents[1]
HEAD = """\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
criterion = nn.MSELoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
batches = [(torch.randn(2, 4), 9 * torch.randn(2, 1)) for _ in range(5)]
norms, total = [], 0.0
"""
PLAIN = (
    HEAD
    + """
for x, y in batches:
    optimizer.zero_grad()
    loss = criterion(model(x), y)  # the mean
    loss.backward()
    # kept short
    norm = torch.nn.utils.clip_grad_norm_(
        model.parameters(),
        0.1,  # tight
    )
    optimizer.step()
    norms.append(norm)
    scheduler.step()  # each batch
    total += loss.detach()
"""
)
SCALED = (
    HEAD
    + """
scaler = torch.amp.GradScaler("cpu")
for x, y in batches:
    optimizer.zero_grad()
    loss = criterion(model(x), y)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    scaler.step(optimizer)
    scaler.update()
"""
)
CLIP = "    norm = torch.nn.utils.clip_grad_norm_(\n        model.parameters(),\n        0.1,  # tight\n    )\n"
STEP, SHORT = "    optimizer.step()\n", "    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)\n"
UNSCALE, SCALER = "    scaler.unscale_(optimizer)\n", "    scaler.step(optimizer)\n"
UPDATE, SCHEDULE = "    scaler.update()\n", "    scheduler.step()  # each batch\n"
BROKEN = [
    (PLAIN, CLIP + STEP, STEP + CLIP),
    (PLAIN, STEP + "    norms.append(norm)\n" + SCHEDULE, SCHEDULE + STEP + "    norms.append(norm)\n"),
    (PLAIN, "total += loss.detach()", "total += loss"),
    (PLAIN.replace("total += loss.detach()", "total += (2 * loss).detach()"), "(2 * loss).detach()", "2 * loss"),
    (PLAIN.replace("total += loss.detach()", "norms.append(loss.detach())"), "loss.detach()", "loss"),
    (SCALED, UNSCALE, ""),
    (SCALED, UNSCALE + SHORT, SHORT + UNSCALE),
    (SCALED, UNSCALE + SHORT + SCALER, SCALER + SHORT),
    (SCALED, UPDATE, ""),
    (SCALED, UNSCALE + SHORT + SCALER + UPDATE, SCALER + UPDATE + SHORT),
]


def run(text: str) -> dict:
    names: dict = {}
    exec(compile(text, "script", "exec"), names)
    return names


def fixed_bytes(path: Path) -> bytes:
    result = fix_file(path, load_rules())
    return "".join(result.new).encode(result.encoding)


@pytest.mark.parametrize(("right", "old", "new"), BROKEN, ids=range(len(BROKEN)))
def test_a_fixed_loop_computes_what_the_correct_one_does(right, old, new, tmp_path):
    import torch

    assert old in right
    (tmp_path / "a.py").write_text(right.replace(old, new))
    main(["--fix", str(tmp_path / "a.py")])
    found, wanted = run((tmp_path / "a.py").read_text()), run(right)
    for one, two in zip(found["model"].parameters(), wanted["model"].parameters()):
        assert torch.equal(one, two)
    assert found["norms"] == wanted["norms"] and not any(n.requires_grad for n in found["norms"])
    assert found["total"] == wanted["total"] and type(found["total"]) is type(wanted["total"])
    assert "# kept short" not in right or "# kept short" in (tmp_path / "a.py").read_text()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("from torch.cuda.amp import autocast as a, GradScaler\ns = GradScaler()\nwith a(enabled=s):\n    pass\n",
         'from torch.amp import autocast as a, GradScaler\ns = GradScaler("cuda")\nwith a("cuda", enabled=s):\n    pass\n'),
        ("import torch\ns = torch.cuda.amp.GradScaler(\n    init_scale=2.0,\n)  # é\n",
         'import torch\ns = torch.amp.GradScaler("cuda",\n    init_scale=2.0,\n)  # é\n'),
        ("é = 1; import torch\né = torch.cuda.amp.autocast()\n", 'é = 1; import torch\né = torch.amp.autocast("cuda")\n'),
        ("from torch.cuda.amp import custom_fwd\n@custom_fwd\ndef f(): pass\n@custom_fwd(cast_inputs=1)\ndef g(): pass\n",
         'from torch.amp import custom_fwd\n@custom_fwd(device_type="cuda")\ndef f(): pass\n'
         '@custom_fwd(device_type="cuda", cast_inputs=1)\ndef g(): pass\n'),
    ],
)  # fmt: skip
def test_deprecated_names_receive_the_device(old, new, tmp_path):
    (tmp_path / "a.py").write_text(old)
    assert fixed_bytes(tmp_path / "a.py").decode() == new


@pytest.mark.parametrize(
    "text",
    [
        "from torch.cuda.amp import autocast\nwith autocast(True):\n    pass\n",  # another order of arguments
        "try:\n    from torch.cuda.amp import autocast\nexcept ImportError:\n    autocast = None\nautocast()\n",
        "from torch.cuda.amp import autocast\nhanded(autocast)\n",
        "from torch.cuda.amp import GradScaler\nclass S(GradScaler):\n    pass\n",
        PLAIN.replace(CLIP + STEP, STEP + "    norm = None\n    if norms:\n        norm = 1\n" + CLIP),
        PLAIN.replace(CLIP + STEP, STEP + "    max_norm = model(x).norm().item()\n" + CLIP.replace("0.1", "max_norm")),
        PLAIN.replace(STEP, "").replace("    loss.backward()\n", "    loss.backward(); optimizer.step()\n"),
        PLAIN.replace("    scheduler.step()  # each batch\n", "").replace(
            STEP, "    scheduler.step()\n    rate = optimizer.param_groups[0]\n" + STEP),
        PLAIN.replace("    scheduler.step()  # each batch\n", "").replace(
            STEP, "    scheduler.step()\n    lr = scheduler.get_last_lr()\n" + STEP),
        PLAIN.replace("    scheduler.step()  # each batch\n", "").replace(
            STEP, "    scheduler.step()\n    rates.append(get_lr(optimizer))\n" + STEP),
        PLAIN.replace(CLIP + STEP, STEP + "    count = 1; \\\n" + CLIP),
    ],
)  # fmt: skip
def test_what_is_not_simple_is_left_alone(text, tmp_path):
    (tmp_path / "a.py").write_text(text)
    assert main([str(tmp_path / "a.py")]) == 1
    assert fixed_bytes(tmp_path / "a.py").decode() == text


@pytest.mark.parametrize("path", sorted((HERE / "right").glob("*.py")), ids=lambda path: path.stem)
def test_correct_loops_are_left_alone(path):
    assert fixed_bytes(path) == path.read_bytes()


def wild(text: str) -> list[bytes]:
    crlf, tabs = text.replace("\n", "\r\n"), text.replace("    ", "\t")
    return [crlf.encode(), b"\xef\xbb\xbf" + text.encode(), tabs.encode(), text[:-1].encode(), crlf[:-2].encode(),
            f"# coding: latin-1\n# \xe9\n{text}".encode("latin-1"), f"x = '\u2028\x0c\x1c'\n{text}".encode()]  # fmt: skip


@pytest.mark.parametrize("index", range(7))
def test_line_endings_encoding_and_indentation_stay(index, tmp_path):
    right = PLAIN.replace("    norms.append(norm)\n", "")
    broken = right.replace(CLIP + STEP, STEP + CLIP).replace("loss.detach()", "loss")
    (tmp_path / "a.py").write_bytes(wild(broken)[index])
    (tmp_path / "a.py").chmod(0o755)
    main(["--fix", str(tmp_path / "a.py")])
    assert (tmp_path / "a.py").read_bytes() == wild(right)[index]
    assert stat.S_IMODE((tmp_path / "a.py").stat().st_mode) == 0o755
    assert os.listdir(tmp_path) == ["a.py"]


def test_an_added_line_is_indented_as_its_neighbour(tmp_path):
    right = SCALED.replace("    ", "\t")
    (tmp_path / "a.py").write_text(right.replace(UNSCALE.replace("    ", "\t"), ""))
    assert fixed_bytes(tmp_path / "a.py").decode() == right


def test_a_fix_that_makes_another_mistake_is_not_written(tmp_path):
    """Unscaling before the clip of each micro-batch would be a mistake of its own."""
    text = (
        HEAD
        + """
scaler = torch.amp.GradScaler("cpu")
for window in [batches[:3], batches[3:]]:
    optimizer.zero_grad()
    for x, y in window:
        scaler.scale(criterion(model(x), y) / len(window)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    scaler.step(optimizer)
    scaler.update()
"""
    )
    (tmp_path / "a.py").write_text(text)
    assert "GL201" in {f.code for f in audit(read(tmp_path / "a.py"), Project(), load_rules()).findings}
    assert fixed_bytes(tmp_path / "a.py").decode() == text


def test_the_last_line_may_be_the_one_that_moves(tmp_path):
    text = PLAIN.split("    norms.append")[0]
    (tmp_path / "a.py").write_text(text.replace(CLIP + STEP, STEP + CLIP).rstrip("\n"))
    assert fixed_bytes(tmp_path / "a.py").decode() == text.rstrip("\n")


def test_the_diff_is_shown_and_only_fix_writes(tmp_path, capsys):
    path = tmp_path / "a.py"
    path.write_text(PLAIN.replace("loss.detach()", "loss"))
    before = path.read_bytes()
    assert main(["--diff", str(path)]) == 1
    shown = capsys.readouterr().out
    assert "-    total += loss\n+    total += loss.detach()\n" in shown and path.read_bytes() == before
    assert main(["--fix", "--ignore", "GL605", str(path)]) == 0 and path.read_bytes() == before
    capsys.readouterr()
    assert main(["--fix", "--format", "json", str(path)]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out) == [] and "+    total += loss.detach()" in captured.err
    assert main(["--diff", str(path)]) == 0


def test_read_only_files_and_notebooks_are_reported_and_left_alone(tmp_path, capsys):
    path = tmp_path / "a.py"
    path.write_text(PLAIN.replace("loss.detach()", "loss"))
    path.chmod(0o444)
    assert main(["--fix", str(path)]) == 1
    assert f"{path}: not fixed: is read-only\n" in capsys.readouterr().err
    book = tmp_path / "a.ipynb"
    book.write_text(json.dumps({"cells": [{"cell_type": "code", "source": path.read_text()}]}))
    assert main(["--fix", str(book)]) == 1
    assert f"{book}: not fixed: notebooks are not fixed\n" in capsys.readouterr().err
