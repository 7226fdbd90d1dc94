"""What an audit gives up, it says: imports that are not read, calls that are not entered, flags tried alone."""

from __future__ import annotations

import pytest
from audited_snippets import HEAD

from gradlab.audit.file_audit import audit
from gradlab.audit.interpreter import function_calls
from gradlab.audit.result import FileResult
from gradlab.audit.rules.registry import load_rules
from gradlab.audit.source import project
from gradlab.audit.source.files import read
from gradlab.audit.trace import training_loop
from gradlab.audit.trace.conditions import Atom
from gradlab.audit.trace.replay import ALONE, cases
from gradlab.audit.trace.training_loop import MOST

TRAIN = """
from helper import prepare
def train():
    for x, y in loader:
        optimizer.zero_grad()
        loss = prepare(F.cross_entropy(model(x), y))
        loss.backward()
        optimizer.step()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
"""


def result(folder, text) -> FileResult:
    (folder / "a.py").write_text(HEAD + text)
    (folder / "helper.py").write_text("def prepare(x):\n    return x\n")
    return audit(read(folder / "a.py"), project.Project(), load_rules())


def test_a_file_that_is_not_read_is_mentioned(tmp_path, monkeypatch):
    monkeypatch.setattr(project, "READ", -1)
    assert any("not read" in text for _, text in result(tmp_path, TRAIN).undecided)


def test_calls_that_are_not_entered_are_mentioned_and_the_function_itself_is_followed(tmp_path, monkeypatch):
    monkeypatch.setattr(function_calls, "EVALUATED", 10)
    found = result(tmp_path, TRAIN)
    assert any("too many calls" in text for _, text in found.undecided)
    assert "GL101" in {f.code for f in found.findings}


def test_within_the_bounds_nothing_is_mentioned(tmp_path):
    assert not any("too m" in text for _, text in result(tmp_path, TRAIN).undecided)


@pytest.mark.parametrize("body", ["optimizer.step()", "loss = loss / 2", "continue"])
def test_replays_grow_no_faster_than_the_square_of_the_conditions(body, tmp_path, monkeypatch):
    counts = []
    iteration = training_loop.TrainingLoop.iteration

    def counted(self, k, truth):
        counts[-1] += 1
        return iteration(self, k, truth)

    monkeypatch.setattr(training_loop.TrainingLoop, "iteration", counted)
    for n in (10, 20):
        counts.append(0)
        flags = "".join(f"        if args.d{i} and step % args.k{i} == 0:\n            {body}\n" for i in range(n))
        result(
            tmp_path,
            f"""
def train(args):
    for step, (x, y) in enumerate(loader):
        loss = F.cross_entropy(model(x), y)
{flags}        loss.backward()
        optimizer.step()
""",
        )
    assert counts[1] <= 5 * counts[0]


def test_flags_beyond_the_limit_are_said_not_to_be_tried_alone(tmp_path):
    flags = "".join(f"        if args.d{i}:\n            optimizer.zero_grad()\n" for i in range(ALONE + 1))
    text = f"def train(args):\n    for x, y in loader:\n{flags}        F.cross_entropy(model(x), y).backward()\n"
    assert any(f"first {ALONE}" in said for _, said in result(tmp_path, text + "        optimizer.step()\n").undecided)


@pytest.mark.parametrize(("count", "most"), [(4, 2**4), (5, 2 * (1 + 5)), (10 * ALONE, 2 * (1 + ALONE))])
def test_cases_of_many_flags_are_few(count, most):
    assert len(list(cases([Atom(str(i)) for i in range(count)], 4))) == most


@pytest.mark.parametrize(("count", "judged"), [(20, True), (MOST // 2 + 1, False)])
def test_a_loop_of_too_many_conditions_is_said_not_to_be_judged(count, judged, tmp_path):
    steps = "".join(
        f"        if args.d{i} and step % args.k{i} == 0:\n            loss.backward()\n" for i in range(count)
    )
    text = "def train(args):\n    for step, (x, y) in enumerate(loader):\n        loss = F.cross_entropy(model(x), y)\n"
    found = result(tmp_path, text + steps + "        loss.backward()\n        optimizer.step()\n")
    assert any("not judged" in said for _, said in found.undecided) is not judged
    assert ("GL305" in {f.code for f in found.findings}) is judged
    assert not found.lost


def test_a_web_of_star_imports_is_searched_once(tmp_path):
    """12 files that take everything from each other: the files of a name are known before it is asked for."""
    for i in range(12):
        stars = "".join(f"from m{(i + k) % 12} import *\n" for k in range(1, 6))
        (tmp_path / f"m{i}.py").write_text(stars + f"def f{i}(x):\n    return x\n")
    known = project.Project()
    module = known.add(read(tmp_path / "m0.py"))
    files = []
    search = known.file
    known.file = lambda *given: files.append(given) or search(*given)  # type: ignore[method-assign]
    assert known.starred("f7", module) is not None
    assert all(known.starred(f"g{i}", module) is None for i in range(50))
    assert len(files) <= 12 * 5
