"""Pages as files: what they hold, what they cost, what cannot break them, and the command that makes them."""

import itertools
import json
import math
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import made
import pytest
from forked import SHORT, Commands

from gradlab.loggers import thinning
from gradlab.report import figures
from gradlab.report.command import main
from gradlab.report.pages import comparison_page, page_template, run_page
from gradlab.report.pages.run_facts import facts
from gradlab.runs.record import RunRecord
from gradlab.show import main as show
from gradlab.train import environment

HOSTILE = "</script><img src=x onerror=alert(1)><!--{{data}}"


def held(page: Path, name: str) -> str:
    """The text of a page's script element, as a browser reads it."""
    found = re.search(rf'<script type="application/[a-z]+" id="{name}">(.*?)</script>', page.read_text(), re.DOTALL)
    assert found
    return found[1]


def lines_of(page: Path, name: str = "metrics") -> list[dict[str, Any]]:
    return [json.loads(line) for line in held(page, name).splitlines()]


# --- templates ----------------------------------------------------------------------------------------------------


def test_what_is_filled_in_is_not_filled_again() -> None:
    assert page_template.filled("<{{a}}|{{b}}>", a="{{b}}", b="2") == "<{{b}}|2>"


def test_embedded_reads_the_same_and_ends_no_element() -> None:
    content = {"name": HOSTILE, "amp": "a & b", "numbers": [1.5, math.nan, -math.inf], "line": "\u2028"}
    text = page_template.embedded(content)
    assert not set("<>&") & set(text)
    assert json.loads(text) == content | {"numbers": [1.5, "NaN", "-Infinity"]}


# --- thinning -----------------------------------------------------------------------------------------------------


def long_run(count: int) -> list[dict[str, Any]]:
    """One spike, three streaks of skipped updates, an evaluation every tenth."""
    lines = []
    for at in range(count):
        skipped = at % (count // 3) in range(count // 30, count // 30 + 5)
        loss = math.nan if skipped else 1000.0 if at == count // 2 + 1 else 2 + math.sin(at)
        lines.append(made.line(at, loss, **{"update/skipped": skipped}))
        if at % (count // 10) == 0:
            lines.append({"attempt": at, "eval/loss": 1.0})
    return lines


def test_thinned_keeps_what_a_curve_would_miss() -> None:
    lines = long_run(30_000)
    texts = [json.dumps(line).encode() + b"\n" for line in lines]
    shown = thinning.thinned(texts, 3000, lambda known: thinning.telling(known, 500))
    assert len(shown) <= 3000
    order = [texts.index(text) for text in shown[:50]]
    assert order == sorted(order)
    left = [json.loads(text) for text in shown]
    assert left[0] == lines[0] and left[-1] == lines[-1]
    assert sum("eval/loss" in line for line in left) == 10
    losses = [line["train/loss"] for line in left if "train/loss" in line]
    assert max(v for v in losses if v == v) == 1000.0
    updates = [line for line in lines if "train/loss" in line]
    edges = {b["attempt"] for a, b in itertools.pairwise(updates) if a["update/skipped"] != b["update/skipped"]}
    assert len(edges) == 6 and edges <= {line["attempt"] for line in left if "train/loss" in line}


def test_short_runs_are_not_thinned_and_even_spreads() -> None:
    assert thinning.thinned([b"1", b"2"], 2, lambda lines: set()) == [b"1", b"2"]
    assert thinning.even(101, 5) == [0, 25, 50, 75, 100]
    assert thinning.even(3, 10) == [0, 1, 2]


def test_page_of_a_long_run_is_small_and_says_what_it_left_out(tmp_path: Path) -> None:
    folder = made.run(tmp_path / "run", long_run(30_000), made.diagnosis())
    page = run_page.write(folder)
    size = (folder / "metrics.jsonl").stat().st_size
    assert size > 5e6 and page.stat().st_size < 2.5e6
    shown, of = json.loads(held(page, "data"))["thinned"]["metrics.jsonl"]
    assert of == 30_010 and shown == len(lines_of(page)) < of


# --- a run's page -------------------------------------------------------------------------------------------------


def test_page_holds_the_lines_as_they_are_and_nothing_from_elsewhere(tmp_path: Path) -> None:
    folder = made.collapse(tmp_path / "run")
    page = run_page.write(folder)
    assert page == folder / "report.html"
    for name in ("metrics", "layers"):
        assert held(page, name) == (folder / f"{name}.jsonl").read_text()
    text = page.read_text()
    assert not re.search(r"""(src|href)=["'](?!#)""", text.split('id="data"')[0])
    assert "default-src 'none'" in text


def test_remedies_can_be_pasted(tmp_path: Path) -> None:
    commands = facts(RunRecord(made.collapse(tmp_path / "run")))["commands"]
    assert commands["remedies"] == ["python -m gradlab clip=norm optimizer.lr=0.01 expect=healthy"]
    assert commands["again"] == "python -m gradlab clip=norm optimizer.lr=0.03"


def test_nothing_that_a_run_is_called_breaks_its_page(tmp_path: Path) -> None:
    told = made.diagnosis(HOSTILE, sentence=HOSTILE, overrides=[f"name={HOSTILE}"])
    folder = made.run(tmp_path / "<b>run", [made.line(1, 1.0, **{HOSTILE: 1.0})], told, config=f"note: '{HOSTILE}'\n")
    page = run_page.write(folder)
    text = page.read_text()
    assert text.count("</script>") == 4 and "<img" not in text and "<b>run" not in text
    assert json.loads(held(page, "data"))["diagnosis"]["sentence"] == HOSTILE
    assert lines_of(page)[0][HOSTILE] == 1.0


def test_a_line_that_a_kill_cut_short_is_left_out(tmp_path: Path) -> None:
    folder = made.run(tmp_path / "run", [made.line(1, 1.0), made.line(2, 2.0)])
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"update":3,"att')
    assert [line["attempt"] for line in lines_of(run_page.write(folder))] == [1, 2]


def test_options_are_read_from_hydras_file(tmp_path: Path) -> None:
    text = "      clip: norm\n      model: custom\n      hydra/launcher: basic\n      remedy: null\n"
    folder = made.run(tmp_path / "run", [], choices=text)
    assert RunRecord(folder).choices == {"clip": "norm", "model": "custom"}
    (folder / "diagnosis.json").write_text('{"remedy": {"changed": {"clip": ["norm", "value"]}}}')
    assert RunRecord(folder).choices["clip"] == "value"


def test_page_that_cannot_be_written_is_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = made.collapse(tmp_path / "run")
    (folder / "report.html").mkdir()
    run_page.finished(folder)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("gradlab: ") and "report.html was not written" in line
    assert [p.name for p in folder.iterdir() if "partial" in p.name] == []


# --- what a run runs on -------------------------------------------------------------------------------------------


def test_environment_tells_the_commit_and_what_differs_from_it(tmp_path: Path) -> None:
    def git(*arguments: str) -> str:
        name = ["-c", "user.name=a", "-c", "user.email=a@example.com"]
        return subprocess.run(
            ["git", "-C", str(tmp_path), *name, *arguments], check=True, capture_output=True, text=True
        ).stdout

    assert environment.git(str(tmp_path)) is None
    git("init", "-q", "-b", "trunk")
    (tmp_path / "a.py").write_text("1\n")
    git("add", "a.py")
    git("commit", "-q", "-m", "a")
    commit = git("rev-parse", "HEAD").strip()
    assert environment.git(str(tmp_path)) == {"commit": commit, "branch": "trunk", "changed_files": 0}
    (tmp_path / "a.py").write_text("2\n")
    assert environment.git(str(tmp_path)) == {"commit": commit, "branch": "trunk", "changed_files": 1}


def test_environment_of_a_resumed_run_keeps_the_first(tmp_path: Path) -> None:
    (tmp_path / "environment.json").write_text('{"python": "3.1"}')
    environment.record(tmp_path, "cpu", 2, resumed=True)
    told = json.loads((tmp_path / "environment.json").read_text())
    assert told["before"] == {"python": "3.1"} and told["world_size"] == 2
    assert told["packages"]["torch"] == __import__("torch").__version__.split("+")[0]


# --- runs as they are ---------------------------------------------------------------------------------------------


def test_run_leaves_its_page(gradlab: Commands, tmp_path: Path) -> None:
    assert gradlab(*SHORT, "expect=any", "clip=norm", cwd=tmp_path).code == 0
    (folder,) = (tmp_path / "outputs" / "run").iterdir()
    facts = json.loads(held(folder / "report.html", "data"))
    assert facts["diagnosis"] == json.loads((folder / "diagnosis.json").read_text())
    assert facts["environment"]["device"] == "cpu" and facts["choices"]["clip"] == "norm"
    assert facts["config"]["clip"] == {"max_norm": 1.0, "norm_type": 2.0}
    before = (folder / "report.html").read_text()
    run_page.write(folder)
    assert held(folder / "report.html", "metrics") in before


@pytest.mark.parametrize("launcher", [pytest.param("basic", marks=pytest.mark.slow), "vectorized"])
def test_pages_of_a_sweeps_jobs_share_what_is_alike(gradlab: Commands, tmp_path: Path, launcher: str) -> None:
    given = ("-m", *SHORT, "expect=any", "optimizer.lr=0.1,0.2", f"hydra/launcher={launcher}")
    result = gradlab(*given, cwd=tmp_path)
    assert result.code == 0, result
    (sweep,) = (tmp_path / "outputs" / "run").iterdir()
    shared = sum((sweep / "page" / name).stat().st_size for name in ("run.js", "run.css"))
    for job in ("0", "1"):
        page = sweep / job / "report.html"
        assert '<script src="../page/run.js"></script>' in page.read_text()
        data = sum((sweep / job / name).stat().st_size for name in ("metrics.jsonl", "layers.jsonl"))
        assert page.stat().st_size < data + 20_000 < data + shared
        assert held(page, "metrics") == (sweep / job / "metrics.jsonl").read_text()
        assert (sweep / job / "environment.json").is_file()
    written = page.read_text()
    page.unlink()  # as of a job that is killed once it has said what it saw
    assert gradlab(f"resume={sweep}", cwd=tmp_path).code == 0 and page.read_text() == written


# --- comparing ----------------------------------------------------------------------------------------------------


def test_fields_that_differ(tmp_path: Path) -> None:
    same = "story: "
    a = made.run(
        tmp_path / "a", [], config=f"clip: {{max_norm: 1.5}}\nseed: 0\n{same}a\n", choices="      clip: norm\n"
    )
    b = made.run(tmp_path / "b", [], config=f"clip: {{}}\nseed: 0\n{same}b\n", choices="      clip: none\n")
    assert comparison_page.differing([RunRecord(a), RunRecord(b)]) == [
        {"field": "clip", "values": ["norm", "none"]},
        {"field": "clip.max_norm", "values": ["1.5", None]},
    ]


# --- the command --------------------------------------------------------------------------------------------------


def said(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """What a command that was wrong said: one line."""
    assert main([str(a) for a in arguments]) == 2
    out, err = capsys.readouterr()
    (line,) = err.splitlines()
    assert out == "" and line.startswith("gradlab: ")
    return line


def test_wrong_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = made.collapse(tmp_path / "runs" / "one")
    (tmp_path / "empty").mkdir()
    assert "no such folder" in said(capsys, tmp_path / "nothing")
    assert "is a file" in said(capsys, job / "metrics.jsonl")
    assert "holds no metrics.jsonl" in said(capsys, tmp_path / "empty")
    assert "runs are in one" in said(capsys, tmp_path / "runs")
    assert "--port=70000: must be" in said(capsys, job, "--serve", "--port", 70000)
    assert "--port: is of --serve" in said(capsys, job, "--port", 7000)
    assert "follows one run" in said(capsys, job, job, "--serve")
    assert "unrecognized" in said(capsys, job, "--figure-s")
    (job / "diagnosis.json").write_text('{"verdict": ')
    assert "cannot be read" in said(capsys, job)


def test_several_runs_make_one_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, two = made.collapse(tmp_path / "one"), made.run(tmp_path / "two", [made.line(1, 1.0)], made.diagnosis())
    file = tmp_path / "pages" / "both.html"
    assert main([str(one), str(two), "-o", str(file)]) == 0
    assert capsys.readouterr().out == f"{file}\n"
    runs = json.loads(held(file, "data"))["runs"]
    assert [r["name"].split("/")[-1] for r in runs] == ["one", "two"]
    assert runs[0]["metrics"] == (one / "metrics.jsonl").read_text()


# --- figures ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_figures_are_whole_and_the_same_each_time(tmp_path: Path) -> None:
    import matplotlib.image

    folder = made.collapse(tmp_path / "run")
    done = figures.of_run(folder)
    names = ["curves.png", "curves.svg", "gradient_flow.png", "gradient_flow.svg"]
    assert [p.name for p in done] == names and all(p.parent == folder / "figures" for p in done)
    for file in done:
        if file.suffix == ".png":
            image = matplotlib.image.imread(file)
            assert image.shape[1] >= 1500 and image.std() > 0.05
        else:
            assert file.read_text().lstrip().startswith("<?xml")
    before = (folder / "figures" / "curves.svg").read_bytes()
    figures.of_run(folder)
    assert (folder / "figures" / "curves.svg").read_bytes() == before


def test_a_layer_is_the_same_in_figures_and_in_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    records = [
        {"names": ["b.weight", "a.weight", "a.bias", "scale"], "order": ["a", "b"], "modules": [], "recurrent": []},
        {"attempt": 1, "grad/layer": [7.0, 3.0, 4.0, 2.0]},
        {"attempt": 6, "grad/layer": [None, math.inf, 1.0, 2.0]},
    ]
    names, norms = figures.table(RunRecord(made.run(tmp_path / "run", [made.line(1, 1.0)], None, records)))
    assert names == ["a", "b", "(the model)"] and norms[2].tolist() == [2.0, 2.0]
    assert norms[0].tolist() == [5.0, math.inf] and norms[1][0] == 7.0 and math.isnan(norms[1][1])
    assert show([str(tmp_path / "run"), "--layers", "--at", "1"]) == 0
    told = [line.split() for line in capsys.readouterr().out.splitlines()]
    rows = [line for line in told if "█" in "".join(line)]
    assert [row[0] for row in rows] == ["a", "b", "(the"] and rows[0][1] == "5"


def test_a_run_without_updates_has_no_figure(tmp_path: Path) -> None:
    from gradlab.base.option import Invalid

    with pytest.raises(Invalid, match="no update to draw"):
        figures.of_run(made.run(tmp_path / "run", [], made.diagnosis()))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_read_only_folder_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = made.collapse(tmp_path / "run")
    folder.chmod(0o500)
    assert main([str(folder)]) == 1
    assert "Permission denied" in capsys.readouterr().err
