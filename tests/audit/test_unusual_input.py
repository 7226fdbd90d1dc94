"""Whatever the file, the folder, the terminal or the command: an answer in a line or two, and the right exit code."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gradlab.audit.command import main
from gradlab.audit.file_audit import audit
from gradlab.audit.fixes.registry import FIXES
from gradlab.audit.fixes.source_lines import SourceLines, split
from gradlab.audit.rules.registry import load_rules
from gradlab.audit.source.files import Source, parse
from gradlab.audit.source.project import Project

HERE = Path(__file__).parent
LOOP = (HERE / "wrong" / "clip_after_step.py").read_text()
SCRIPTS = [p.read_text() for p in sorted([*HERE.glob("wrong/*.py"), *HERE.glob("right/*.py")])]
UNREADABLE = {
    "nul": LOOP.encode() + b"\0",
    "binary": bytes(range(256)) * 50,
    "utf16": LOOP.encode("utf-16"),
    "mixed_tabs": b"if x:\n\ty = 1\n        z = 2\n",
    "parentheses": b"x = " + b"(" * 5000 + b")" * 5000,
    "python2": b"import torch\nprint 'loss'\n",
    "cython": b"cdef int f(int x):\n    return x\n",
    "number": b"import torch\nx = " + b"9" * 10000,
}
READ = {
    "bom": b"\xef\xbb\xbf" + LOOP.encode(),
    "latin1": ("# é\n" + LOOP).encode("latin-1"),
    "declared": ("# coding: latin-1\n# é\n" + LOOP).encode("latin-1"),
    "wrongly_declared": b"# coding: rot13\n" + LOOP.encode(),
    "returns": LOOP.replace("\n", "\r").encode(),
    "form_feed": b"\x0c" + LOOP.encode(),
    "surrogate": LOOP.encode() + b"\nx = '\xed\xa0\x80'\n",
    "thirty_thousand_lines": LOOP.encode() + b"\nx = 1" * 30_000,
    "nested": LOOP.encode() + b"\nx = " + b"(" * 90 + b"1" + b")" * 90,
    "three_hundred_terms": LOOP.encode() + b"\nx = " + b" + ".join([b"loss"] * 300),
    "calls_itself": LOOP.encode() + b"\ndef f(): return f(loss.backward(), f())\nclass A(B): x = f\nclass B(A): pass\n",
    "period_of_zero": LOOP.encode() + b"\n    if i % 0 == 0: optimizer.zero_grad()\n",
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_what_is_not_python_is_one_finding(name, tmp_path, capsys):
    (tmp_path / "a.py").write_bytes(UNREADABLE[name])
    assert main([str(tmp_path)]) == 1
    out = capsys.readouterr().out
    assert out.count("\n") == 2 and ": GL000 error: " in out


@pytest.mark.parametrize("name", READ)
def test_what_python_reads_is_audited(name, tmp_path, capsys):
    (tmp_path / "a.py").write_bytes(READ[name])
    assert main([str(tmp_path)]) == 1
    assert "GL101 error" in capsys.readouterr().out


def test_a_statement_that_nests_too_deeply_hides_no_other(tmp_path, capsys):
    (tmp_path / "a.py").write_text("import torch\nx = " + " + ".join(["loss"] * 2500) + "\n" + LOOP)
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(4000)
    try:
        assert main([str(tmp_path), "--verbose"]) == 1
    finally:
        sys.setrecursionlimit(limit)
    captured = capsys.readouterr()
    assert "GL101" in captured.out and "a.py:2: nested too deeply" in captured.err


def book(*cells: str) -> str:
    return json.dumps({"cells": [{"cell_type": "code", "source": text} for text in cells]})


def test_a_cell_in_another_language_is_not_read(tmp_path, capsys):
    (tmp_path / "a.ipynb").write_text(book("%%script perl\n" + LOOP, "x = 1"))
    assert main([str(tmp_path), "--verbose"]) == 0
    assert "not Python" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "cell"),
    [
        (book("%matplotlib inline\n!pip install x\n", "%%bash\nfor x in y; do echo; done", LOOP), 3),
        (book("%%time\n" + LOOP), 1),
        (book("files = !ls *.py\nt = %timeit -o f()\nmodel?\n??loss", LOOP), 2),
        (book("!wget http://host/x \\\n    -O y\nif files:\n    %cd y\n", LOOP), 2),
        (book("x = (7\n% 3)", "not python at all", LOOP), 3),
        (book("await f()", LOOP, "def f(:"), 2),
        (book(LOOP + "\nloss?\n"), 1),
        (json.dumps({"worksheets": [{"cells": [{"cell_type": "code", "input": LOOP}]}]}), 1),
    ],
)
def test_a_notebook_is_python_with_commands_of_ipython(text, cell, tmp_path, capsys):
    (tmp_path / "a.ipynb").write_text(text)
    assert main([str(tmp_path / "a.ipynb"), "--select", "ALL"]) == 1
    out = capsys.readouterr().out
    assert f"a.ipynb:cell {cell}:" in out and "GL101" in out and "GL000" not in out


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "3", '{"cells": 3}', '{"cells": [{"cell_type": "code", "source": [1]}]}', "[" * 99999]
)
def test_a_broken_notebook_is_reported_as_one(text, tmp_path, capsys):
    (tmp_path / "a.ipynb").write_text(text)
    assert main([str(tmp_path)]) == 1
    assert "GL000 error: not a notebook" in capsys.readouterr().out


def test_links_pipes_and_empty_folders(tmp_path, capsys, monkeypatch):
    (tmp_path / "a.py").write_text("x = 1\n")
    os.symlink(".", tmp_path / "again")
    os.symlink("nowhere", tmp_path / "b.py")
    os.symlink("c.py", tmp_path / "c.py")
    os.mkfifo(tmp_path / "d.py")
    (tmp_path / "e.py").mkdir()
    assert main([str(tmp_path)]) == 0
    assert main([str(tmp_path / "again")]) == 0
    for name, text in (("b.py", "no such file"), ("c.py", "no such file"), ("d.py", "neither a file nor a folder")):
        capsys.readouterr()
        assert main([str(tmp_path / name)]) == 2
        assert text in capsys.readouterr().err
    assert main([str(tmp_path / "e.py")]) == 0
    assert capsys.readouterr().err == f"gradlab.audit: no Python file in {tmp_path}/e.py\n"

    def refused(path, *rest):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_bytes", refused)
    assert main([str(tmp_path / "a.py")]) == 1
    assert "GL000 error: cannot be read: Permission denied" in capsys.readouterr().out
    monkeypatch.setattr(os, "scandir", refused)
    assert main([str(tmp_path)]) == 0
    assert "Permission denied" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--select", "GL20x"], "no rule 'GL20x' (did you mean GL"),
        (["--ignore", "clip-after-stepp"], "did you mean clip-after-step?"),
        (["--explain", "GL999"], "no rule 'GL999'"),
        (["--severity", "fatal"], "--severity: invalid choice: 'fatal'"),
        (["--diff", "--format", "json"], "--diff shows a diff"),
        (["--nonsense"], "unrecognized arguments: --nonsense"),
    ],
)
def test_a_wrong_command_is_one_line(arguments, text, tmp_path, capsys):
    assert main([*arguments, str(tmp_path)]) == 2
    printed = capsys.readouterr().err
    assert text in printed and printed.count("\n") == 1


def test_rules_are_selected_by_code_prefix_and_name(tmp_path):
    (tmp_path / "a.py").write_text(LOOP)
    for select, code in (("GL101", 1), ("gl1", 1), ("clip-after-step", 1), ("ALL", 1), ("GL2", 0), ("GL2,GL101", 1)):
        assert main([str(tmp_path), "--select", select]) == code
        assert main([str(tmp_path), "--select", "GL1,GL2", "--ignore", select]) == 1 - code
    for name in ("GL101", "gl101", "clip-after-step", "GL102, GL101"):
        (tmp_path / "a.py").write_text(LOOP.replace("# expect: GL101", f"# gradlab: ignore[{name}]"))
        assert main([str(tmp_path)]) == 0


@pytest.mark.parametrize(
    "text",
    [
        "ignore = ['GL20x']",
        "severity = 'fatal'",
        "ignored = []",
        "select = 'GL1'",
        "exclude = [1]",
        "x",
        "[tool]\ngradlab = 3",
    ],
)
def test_a_wrong_setting_is_one_line_with_its_file(text, tmp_path, capsys):
    (tmp_path / "a.py").write_text(LOOP)
    (tmp_path / "pyproject.toml").write_text(text if "[tool]" in text else f"[tool.gradlab.audit]\n{text}\n")
    assert main([str(tmp_path)]) == 2
    printed = capsys.readouterr().err
    assert printed.startswith(f"gradlab.audit: {tmp_path}/pyproject.toml: ") and printed.count("\n") == 1


def test_sarif_has_what_the_standard_requires(tmp_path, capsys, monkeypatch):
    folder = tmp_path / "a folder"
    folder.mkdir()
    (folder / "a.py").write_text(LOOP.replace("clip_grad_norm_(model", "'é'; clip_grad_norm_(model"))
    (folder / "b.py").write_text("def f(:\n")
    monkeypatch.chdir(tmp_path)
    assert main(["--format", "sarif", "a folder", str(HERE / "wrong" / "clip_after_step.py")]) == 1
    log = json.loads(capsys.readouterr().out)
    assert log["version"] == "2.1.0"
    (run,) = log["runs"]
    assert run["tool"]["driver"]["name"] and run["columnKind"] == "unicodeCodePoints"
    described = {rule["id"] for rule in run["tool"]["driver"]["rules"]}
    uris = []
    for result in run["results"]:
        assert result["message"]["text"] and result["level"] in ("error", "warning", "note")
        assert result["ruleId"] in described | {"GL000"}
        place = result["locations"][0]["physicalLocation"]
        assert place["region"]["startLine"] >= 1 and place["region"]["startColumn"] >= 1
        uris.append(place["artifactLocation"]["uri"])
    assert uris[:2] == ["a%20folder/a.py", "a%20folder/b.py"] and uris[2].startswith("file:///")
    assert run["results"][0]["locations"][0]["physicalLocation"]["region"]["startColumn"] == 10  # é is one character


SARIF: dict[str, tuple[str, str]] = {
    "log": ("version runs", "$schema"),
    "runs": ("tool", "results columnKind"),
    "tool": ("driver", ""),
    "driver": ("name", "semanticVersion rules"),
    "rules": ("id", "name shortDescription fullDescription help"),
    "shortDescription": ("text", ""),
    "fullDescription": ("text", ""),
    "help": ("text", ""),
    "results": ("message", "ruleId level locations"),
    "message": ("text", ""),
    "locations": ("physicalLocation", ""),
    "physicalLocation": ("artifactLocation region", ""),
    "artifactLocation": ("uri", "uriBaseId"),
    "region": ("startLine", "startColumn endLine endColumn"),
}
"""Of SARIF 2.1.0, each object that is written: what it must have, and what it may."""


def test_sarif_has_the_structure_of_the_standard(capsys):
    def look(name, found):
        must, may = (set(words.split()) for words in SARIF[name])
        assert must <= found.keys() <= must | may, name
        for key, value in found.items():
            for inner in value if isinstance(value, list) else [value]:
                if isinstance(inner, dict):
                    look(key, inner)

    assert main(["--format", "sarif", "--select", "ALL", str(HERE / "wrong"), str(HERE / "right")]) == 1
    log = json.loads(capsys.readouterr().out)
    look("log", log)
    ids = [rule["id"] for rule in log["runs"][0]["tool"]["driver"]["rules"]]
    assert len(set(ids)) == len(ids) and {r["ruleId"] for r in log["runs"][0]["results"]} <= {*ids, "GL000"}


def command(*arguments: str, **more) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-m", "gradlab.audit", *arguments], capture_output=True, text=True, **more)


def test_a_chain_of_thousands_of_attributes_hides_no_other_statement(tmp_path):
    (tmp_path / "a.py").write_text(f"{LOOP}x = {'a.' * 5000}b\n")
    done = command(str(tmp_path))
    assert done.returncode == 1 and "GL101" in done.stdout and done.stderr == ""


def test_output_that_is_closed_full_or_of_another_encoding(tmp_path):
    (tmp_path / "é.py").write_text(LOOP)
    done = command(str(tmp_path), env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert done.returncode == 1 and "\\xe9.py" in done.stdout and done.stderr == ""
    line = f"{sys.executable} -m gradlab.audit '{tmp_path}'"
    closed = subprocess.run(f"{line} >&-", shell=True, capture_output=True, text=True)
    assert closed.returncode == 1 and "Traceback" not in closed.stderr
    if os.path.exists("/dev/full"):
        full = subprocess.run(f"{line} > /dev/full", shell=True, capture_output=True, text=True)
        assert full.returncode == 2 and full.stderr == "gradlab.audit: [Errno 28] No space left on device\n"
    gone = tmp_path / "gone"
    gone.mkdir()
    deleted = subprocess.run(f"rmdir '{gone}'; {line}", shell=True, capture_output=True, text=True, cwd=gone)
    assert deleted.returncode in (1, 2) and "Traceback" not in deleted.stderr


PARTS = re.compile(r"\w+|\s+|\W")


@st.composite
def mutants(draw) -> str:
    """A script with some lines and words deleted, doubled, swapped, or taken from elsewhere in it or in another."""
    lines = draw(st.sampled_from(SCRIPTS)).split("\n")
    numbers = draw(st.randoms(use_true_random=False))
    for _ in range(draw(st.integers(1, 4))):
        i, j = numbers.randrange(len(lines)), numbers.randrange(len(lines))
        parts, others = PARTS.findall(lines[i]), PARTS.findall(lines[j]) or [""]
        way = draw(st.integers(0, 6))
        if way == 0 and len(lines) > 1:
            del lines[i]
        elif way == 1:
            lines.insert(j, lines[i])
        elif way == 2:
            lines[i], lines[j] = lines[j], lines[i]
        elif way == 3:
            lines.insert(i, numbers.choice(numbers.choice(SCRIPTS).split("\n")))
        elif way == 4:
            lines[i] = "    " + lines[i]
        elif parts:
            at = numbers.randrange(len(parts))
            parts[at : at + 1] = [numbers.choice(others)] if way == 5 else []
            lines[i] = "".join(parts)
    return "\n".join(lines)


@given(mutants())
@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
def test_no_text_is_too_strange(text):
    """Neither following, nor judging, nor fixing raises; and a fix adds or removes no comment."""
    every = load_rules()
    source = Source(Path("a.py"), text)
    parse(source)
    result = audit(source, Project(), every)
    assert all(1 <= f.line <= text.count("\n") + 1 for f in result.findings)
    for one in result.findings if source.tree is not None else ():
        page = SourceLines(split(text), source.tree)
        for new in FIXES[one.code](page, one) if one.code in FIXES else ():
            assert "".join(new).count("#") == text.count("#")
