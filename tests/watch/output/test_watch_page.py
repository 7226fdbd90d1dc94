"""The page of a watched loop in a browser, and its summary in a terminal."""

import pytest
import torch
from browser import opened
from torch import nn
from torch.nn import functional as F
from watched_loops import batches, marked, net

import gradlab
from gradlab.runs.record import RunRecord
from gradlab.runs.summary import summarise


def adversaries(judge, maker, first, second):
    for x, y in batches(12):
        F.cross_entropy(judge(x), y).backward()
        first.step()  # here
        maker.zero_grad()
        F.cross_entropy(judge(maker(torch.randn(16, 4))), y).backward()
        second.step()


@pytest.fixture
def watch(tmp_path):
    """Two optimizers; the gradients of the second are never zeroed."""
    torch.manual_seed(0)
    maker, judge = nn.Linear(4, 8), net()
    first, second = (torch.optim.Adam(m.parameters(), lr=1e-2) for m in (judge, maker))
    with gradlab.watch([maker, judge], [second, first], folder=tmp_path / "run", quiet=True) as watch:
        adversaries(judge, maker, first, second)
    return watch


@pytest.mark.parametrize(("dark", "width"), [(False, 1280), pytest.param(True, 400, marks=pytest.mark.slow)])
def test_page_of_a_watched_loop(chromium, watch, dark, width):
    with opened(chromium, watch.folder / "report.html", width=width, dark=dark) as shown:
        assert "epochs" not in shown.text("header")
        assert "optimizer 0 (Adam)" in shown.text("#loop")
        assert "python -m gradlab" not in shown.text("#ran")
        shown.page.click("#loop a")
        assert "zero-grad-missing" in shown.text("h1")
        loop = shown.text("#loop")
        assert f"test_watch_page.py:{marked(adversaries)} GL305" in loop
        assert "first.step()  # here" in loop
        assert "first seen at update 2, 11 times" in loop
        assert "Instead: call optimizer.zero_grad() once per update" in loop
        assert shown.page.locator("#loop pre.right").inner_text().rstrip().endswith("optimizer.zero_grad()")
        assert "fix " not in shown.text("#verdict")
        overflow = shown.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert overflow <= 0
        shown.page.click("#loop a")
        assert "optimizer 1 (Adam): zero-grad-missing" in shown.text("#loop")
        assert not shown.wrong


def test_the_summary_is_the_report(watch):
    shown = summarise(RunRecord(watch.folder / "optimizer1")).lines
    assert shown[0] == "optimizer 1 (Adam): verdict: zero-grad-missing (12 updates)"
    assert set(shown[:-2]) <= set(watch.report().split("\n"))
