"""The command: formats, selection, settings, broken text, exit codes; and nothing heavy is imported."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from gradlab.audit.command import main

WRONG = Path(__file__).parent / "wrong"
CLIP = str(WRONG / "clip_after_step.py")


def test_exit_codes_and_text(capsys, tmp_path):
    assert main([CLIP]) == 1
    assert "clip_after_step.py:15:5: GL101 error:" in capsys.readouterr().out
    assert main([CLIP, "--ignore", "GL101"]) == 0
    assert main([str(tmp_path / "none.py")]) == 2
    assert main(["--explain", "GL20"]) == 2
    assert "did you mean" in capsys.readouterr().err
    assert main(["--explain", "clip-before-unscale"]) == 0
    assert "1/65536" in capsys.readouterr().out


@pytest.mark.parametrize("form", ["json", "sarif", "github"])
def test_formats_name_code_and_line(form, capsys):
    assert main([CLIP, "--format", form]) == 1
    text = capsys.readouterr().out
    if form == "github":
        assert text.startswith("::error title=gradlab (GL101),file=") and "line=15,col=5" in text
    else:
        read = json.loads(text)
        one = read[0] if form == "json" else read["runs"][0]["results"][0]
        assert (one["code"], one["line"]) == ("GL101", 15) if form == "json" else one["ruleId"] == "GL101"


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\x00\xff\xfe",
        b"def f(:\n",
        b"# coding: nonsense\nx = 1\n",
        b"(" * 5000,
        b"if x:\n\ty\n        z\n",
        "é".encode("latin1"),
    ],
)
@pytest.mark.parametrize("name", ["a.py", "a.ipynb"])
def test_any_text_gets_an_answer(raw, name, tmp_path, capsys):
    (tmp_path / name).write_bytes(raw)
    assert main([str(tmp_path)]) in (0, 1)
    assert "Traceback" not in capsys.readouterr().out


def test_a_notebook_is_read_cell_by_cell(tmp_path, capsys):
    head, loop = Path(CLIP).read_text().split("\n\n", 1)
    cells = [{"cell_type": "markdown", "source": "text"}] + [
        {"cell_type": "code", "source": text.splitlines(keepends=True)}
        for text in ("%matplotlib inline\n" + head, loop)
    ]
    (tmp_path / "a.ipynb").write_text(json.dumps({"cells": cells}))
    assert main([str(tmp_path / "a.ipynb")]) == 1
    line = 1 + next(i for i, text in enumerate(loop.split("\n")) if "expect" in text)
    printed = capsys.readouterr()
    assert f"a.ipynb:cell 3:{line}:5: GL101" in printed.out and "--fix" not in printed.out  # which leaves notebooks
    main([str(tmp_path / "a.ipynb"), "--format", "json"])
    one = json.loads(capsys.readouterr().out)[0]
    assert (one["cell"], one["line"], one["end_line"]) == (3, line, line)
    main([str(tmp_path / "a.ipynb"), "--format", "github"])
    assert f",line=1::cell 3:{line}:5: gradients are clipped" in capsys.readouterr().out
    main([str(tmp_path / "a.ipynb"), "--format", "sarif"])
    one = json.loads(capsys.readouterr().out)["runs"][0]["results"][0]
    assert one["locations"][0]["physicalLocation"]["region"] == {"startLine": 1}
    assert one["message"]["text"].startswith(f"cell 3:{line}:5: gradients")


def test_verbose_names_the_cells_of_a_notebook(tmp_path, capsys):
    head, loop = Path(CLIP).read_text().split("\n\n", 1)
    cells = [{"cell_type": "code", "source": text} for text in ("to be written...", head, "print 1", loop)]
    (tmp_path / "a.ipynb").write_text(json.dumps({"cells": cells}))
    main([str(tmp_path / "a.ipynb"), "--verbose"])
    heard = capsys.readouterr().err
    start = 1 + next(i for i, text in enumerate(loop.split("\n")) if text.startswith("for "))
    assert f"a.ipynb: 1 loop followed (cell 4:{start})" in heard
    assert [line for line in heard.splitlines() if "is not Python" in line] == [
        f"{tmp_path}/a.ipynb:cell {n}:1: this cell is not Python and was passed over" for n in (1, 3)
    ]


@pytest.mark.parametrize("line", ["first", "last", "between"])
def test_a_comment_stands_on_the_first_or_last_line_of_a_call(line, tmp_path):
    text = Path(CLIP).read_text()
    call = next(row.strip() for row in text.split("\n") if "expect" in row).partition("  #")[0]
    first, last = call.index("(", 20) + 1, len(call) - 1
    rows = [call[:first], call[first:last], call[last:]]
    rows[("first", "between", "last").index(line)] += "  # gradlab: ignore[clip-after-step]"
    (tmp_path / "a.py").write_text(text.replace(call, "\n        ".join(rows)))
    assert main([str(tmp_path / "a.py")]) == (line == "between")


def test_github_gets_an_escaped_path(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("a,b:50%.py").write_text(Path(CLIP).read_text())
    main(["a,b:50%.py", "--format", "github"])
    assert ",file=a%2Cb%3A50%25.py,line=15,col=5::gradients are clipped after" in capsys.readouterr().out


def test_the_severity_of_the_command_comes_before_that_of_the_settings(tmp_path):
    (tmp_path / "a.py").write_text("from torch.cuda.amp import autocast\n")
    least = {None: 1, "advice": 1, "warning": 0, "error": 0}
    for word, code in least.items():
        assert main([str(tmp_path), *(["--severity", word] if word else [])]) == code
    (tmp_path / "pyproject.toml").write_text('[tool.gradlab.audit]\nseverity = "warning"\n')
    assert main([str(tmp_path)]) == 0
    assert main([str(tmp_path), "--severity", "advice"]) == 1


def test_settings_come_from_the_nearest_project_that_has_them(tmp_path):
    inner = tmp_path / "inner"
    inner.mkdir()
    (inner / "a.py").write_text(Path(CLIP).read_text())
    (tmp_path / "pyproject.toml").write_text('[tool.gradlab.audit]\nignore = ["GL101"]\n')
    (inner / "pyproject.toml").write_text('[project]\nname = "inner"\n')
    assert main([str(inner)]) == 0
    (inner / "pyproject.toml").write_text("[tool.gradlab.audit]\n")
    assert main([str(inner)]) == 1


def test_settings_that_begin_with_a_byte_order_mark_are_read(tmp_path):
    (tmp_path / "a.py").write_text(Path(CLIP).read_text())
    (tmp_path / "pyproject.toml").write_bytes(b'\xef\xbb\xbf[tool.gradlab.audit]\nignore = ["GL101"]\n')
    assert main([str(tmp_path)]) == 0


def test_an_environment_below_a_folder_is_passed_over(tmp_path, capsys):
    for name in ("mine", "tools"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.py").write_text(Path(CLIP).read_text())
    (tmp_path / "tools" / "pyvenv.cfg").write_text("")
    assert main([str(tmp_path)]) == 1
    assert "mine" in (printed := capsys.readouterr().out) and "tools" not in printed
    assert main([str(tmp_path / "tools")]) == 1, "unless it is given itself"


def test_a_syntax_error_names_the_python_that_reads(tmp_path, capsys):
    (tmp_path / "a.py").write_text("x = = 1\n")
    assert main([str(tmp_path)]) == 1
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert f"a.py:1:5: GL000 error: syntax error to Python {version}: invalid syntax" in capsys.readouterr().out


def test_a_file_named_twice_is_reported_once(tmp_path, capsys, monkeypatch):
    (tmp_path / "a.py").write_text(Path(CLIP).read_text())
    monkeypatch.chdir(tmp_path)
    assert main(["a.py", ".", "./a.py", str(tmp_path)]) == 1
    assert capsys.readouterr().out.count("GL101") == 1


def test_a_comment_and_settings_silence(tmp_path):
    text = Path(CLIP).read_text()
    (tmp_path / "a.py").write_text(text.replace("# expect: GL101", "# gradlab: ignore[GL101]"))
    assert main([str(tmp_path / "a.py")]) == 0
    (tmp_path / "a.py").write_text(text.replace("# expect: GL101", "# gradlab: ignore[GL102]"))
    assert main([str(tmp_path / "a.py")]) == 1
    (tmp_path / "pyproject.toml").write_text('[tool.gradlab.audit]\nignore = ["GL101"]\n')
    assert main([str(tmp_path / "a.py")]) == 0
    (tmp_path / "pyproject.toml").write_text("[tool.gradlab.audit]\nignored = []\n")
    assert main([str(tmp_path / "a.py")]) == 2


def test_neither_torch_nor_the_script_is_imported():
    heavy = "print([m for m in sys.modules if m.split('.')[0] in {'torch', 'hydra', 'numpy'}])"
    code = f"import sys; from gradlab.audit.command import main; main([{CLIP!r}]); {heavy}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("[]\n")


DOUBTFUL = """\
import torch
from helpers_elsewhere import adjust

def train(model, optimizer, loader, args):
    for x, y in loader:
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        adjust(model, optimizer)
        if args.clip > 0:
            torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip)
        optimizer.step()
"""


def test_verbose_lists_what_was_followed_and_what_is_undecided(tmp_path, capsys):
    (tmp_path / "a.py").write_text(DOUBTFUL.replace("        optimizer.zero_grad()\n", ""))
    assert main(["--verbose", str(tmp_path)]) == 0
    printed = capsys.readouterr().err
    assert f"{tmp_path}/a.py: 1 loop followed (line 5)\n" in printed
    assert "a.py:8: adjust() could not be followed (it receives model, optimizer); rules silenced: " in printed
    assert "GL305" in printed.split("rules silenced: ")[1].split("\n")[0]
    assert "a.py:9: whether `args.clip > 0` holds is not known: followed both ways\n" in printed
    assert main([str(tmp_path)]) == 0 and capsys.readouterr().err == ""
    (tmp_path / "a.py").write_text(
        DOUBTFUL.replace("        adjust(model, optimizer)\n", "").replace("        optimizer.zero_grad()\n", "")
    )
    assert main([str(tmp_path)]) == 1  # and the rule was silent for that call


def test_a_backward_pass_in_no_followed_loop_is_reported(tmp_path, capsys):
    (tmp_path / "a.py").write_text("def f(loss):\n    loss.backward()\n")
    assert main([str(tmp_path)]) == 0
    assert capsys.readouterr().err.startswith(f"{tmp_path}/a.py has a backward(), but no training loop")
    assert main([str(tmp_path), "--verbose"]) == 0
    assert "a.py:2: backward() with no step" in capsys.readouterr().err


def test_several_processes_have_the_same_findings(capsys, monkeypatch):
    folder = str(WRONG)
    assert main([folder, "--verbose"]) == 1
    alone = capsys.readouterr()
    monkeypatch.setattr("gradlab.audit.process_pool.MANY", 1)
    monkeypatch.setattr("gradlab.audit.process_pool.PART", 7)
    monkeypatch.setattr("gradlab.audit.process_pool.os.sched_getaffinity", lambda _: {0, 1}, raising=False)
    assert main([folder, "--verbose"]) == 1
    assert capsys.readouterr() == alone


HELPER = """
import torch
def fit(model, opt, loader):
    for x, y in loader:
        opt.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        opt.step()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
"""
CALLER = """
from .b import fit
import torch
class Trainer:
    def run(self, model, loader):
        opt = torch.optim.SGD(model.parameters(), lr=0.1)
        fit(model, opt, loader)
        opt.step()
"""


def test_an_imported_file_is_reported_under_its_own_name(tmp_path, capsys, monkeypatch):
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / "b.py").write_text(HELPER)
    (tmp_path / "p" / "a.py").write_text(CALLER)
    monkeypatch.chdir(tmp_path)
    assert main(["p"]) == 1
    assert capsys.readouterr().out.startswith("p/b.py:8:")


def test_an_unreadable_file_is_explained_listed_and_ignored_as_others_are(tmp_path, capsys):
    (tmp_path / "a.py").write_text('print "old"\n')
    assert main([str(tmp_path)]) == main([str(tmp_path), "--select", "GL1"]) == 1
    assert main([str(tmp_path), "--ignore", "GL000"]) == main([str(tmp_path), "--ignore", "unreadable"]) == 0
    (tmp_path / "pyproject.toml").write_text('[tool.gradlab.audit]\nignore = ["GL000"]\n')
    assert main([str(tmp_path)]) == 0
    (tmp_path / "pyproject.toml").unlink()
    (tmp_path / "a.py").write_text('print "old"  # gradlab: ignore[GL000]\n')
    assert main([str(tmp_path)]) == 0
    capsys.readouterr()
    assert main(["--explain", "GL000"]) == main(["--explain", "unreadable"]) == 0
    assert capsys.readouterr().out.startswith("GL000 unreadable (error)")
    assert main([CLIP, "--format", "sarif"]) == 1
    (tmp_path / "a.py").write_text('print "old"\n')
    capsys.readouterr()
    main([str(tmp_path), "--format", "sarif"])
    run = json.loads(capsys.readouterr().out)["runs"][0]
    assert [rule["name"] for rule in run["tool"]["driver"]["rules"]] == ["unreadable"]


def test_the_list_marks_rules_that_are_off_by_default(capsys):
    assert main(["--list"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if "unless selected" in line]
    assert [line.split()[0] for line in lines] == ["GL807"]
    assert main(["--explain", "GL807"]) == 0
    assert "Off unless selected: --select GL807." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tool = 3", "tool is 3, expected a table"),
        ("[tool]\ngradlab = 3", "tool.gradlab is 3, expected a table"),
        ("[tool.gradlab]\naudit = []", "tool.gradlab.audit is [], expected a table"),
        ('[tool.gradlab.audit]\nselect = "GL1"', "tool.gradlab.audit.select is 'GL1', expected a list of words"),
        ('[tool.gradlab.audit]\nselect = ["GL77"]', "tool.gradlab.audit: no rule 'GL77'; --list shows them"),
    ],
)
def test_settings_of_a_wrong_kind(text, message, tmp_path, capsys):
    (tmp_path / "pyproject.toml").write_text(text)
    (tmp_path / "a.py").write_text("x = 1\n")
    assert main([str(tmp_path)]) == 2
    assert capsys.readouterr().err == f"gradlab.audit: {tmp_path}/pyproject.toml: {message}\n"


def test_cells_are_reported_separately_and_in_order(tmp_path, capsys):
    head, loop = Path(CLIP).read_text().split("\n\n", 1)
    cells = [{"cell_type": "code", "source": text} for text in (head, "\n" * 20 + loop, loop, loop)]
    (tmp_path / "a.ipynb").write_text(json.dumps({"cells": cells}))
    assert main([str(tmp_path / "a.ipynb")]) == 1
    lines = [line.partition(".ipynb:")[2].split(":")[0] for line in capsys.readouterr().out.splitlines()[:-1]]
    assert lines == ["cell 2", "cell 3", "cell 4"]


@pytest.mark.parametrize(
    ("where", "name"), [({"kernelspec": {"language": "julia"}}, "julia"), ({"language_info": {"name": "R"}}, "r")]
)
def test_a_notebook_in_another_language_is_passed_over(where, name, tmp_path, capsys):
    cells = [{"cell_type": "code", "source": "x <- function(y) y |> end"}]
    (tmp_path / "a.ipynb").write_text(json.dumps({"cells": cells, "metadata": where}))
    assert main([str(tmp_path), "--verbose"]) == 0
    assert f"{tmp_path}/a.ipynb:1: a notebook in {name}, passed over" in capsys.readouterr().err


def test_a_framework_does_not_receive_itself(tmp_path, capsys):
    text = "import deepspeed\nengine, _, _, _ = deepspeed.initialize(model=net)\nfor x in loader:\n"
    (tmp_path / "a.py").write_text(text + "    loss = engine(x)\n    engine.backward(loss)\n    engine.step()\n")
    main([str(tmp_path), "--verbose"])
    assert (
        "a.py:5: backward() could not be followed (it belongs to a framework); rules silenced:"
        in capsys.readouterr().err
    )


def test_no_module_of_the_audited_project_is_imported(tmp_path):
    """`-m` puts the working directory first on the path: a file named as a module of Python's own would run."""
    for name in ("zlib", "__future__", "typing", "dataclasses", "json", "tokenize", "concurrent", "signal", "argparse"):
        (tmp_path / f"{name}.py").write_text("print('it ran', flush=True)\n")
    for i in range(40):
        (tmp_path / f"train{i}.py").write_text("x = 1\n")
    ended = subprocess.run([sys.executable, "-m", "gradlab.audit", "."], cwd=tmp_path, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "Nothing found.\n", "")
