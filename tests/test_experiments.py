"""Every experiment shows what it expects; every model, as it comes, is healthy."""

import json
from pathlib import Path
from typing import Any

import pytest
from browser import executable, opened
from forked import Commands

from gradlab.base.conf import conf_dir

EXPERIMENTS = sorted(p.stem for p in (conf_dir() / "experiment").glob("*.yaml"))
PARTS = ("fp16_collapse_pretrain",)
"""Run by others, with no expectation of their own."""


@pytest.mark.slow
@pytest.mark.parametrize("name", [e for e in EXPERIMENTS if e not in PARTS])
def test_experiment_shows_what_it_expects(
    name: str, gradlab: Commands, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    result = gradlab(f"+experiment={name}", "seed=1", "trainer.progress=none", cwd=tmp_path, timeout=500)
    assert result.code == 0 and "\nexpected " in result.out, result.out + result.err
    if executable():
        opens(request.getfixturevalue("chromium"), next((tmp_path / "outputs" / name).iterdir()) / "report.html")


def opens(browser: Any, page: Path) -> None:
    """A run's page shows its verdict, its curves and its layers, and nothing goes wrong in it."""
    told = json.loads((page.parent / "diagnosis.json").read_text())
    with opened(browser, page) as seen:
        assert told["sentence"] in seen.text("header") and told["verdict"].replace("_", " ") in seen.text("h1")
        assert seen.page.locator(".remedies li").count() == len(told["remedies"])
        assert seen.page.locator(".chart").count() >= 3
        assert seen.page.locator("#flow .profile svg").count() == 1
        assert seen.wrong == []


@pytest.mark.slow
@pytest.mark.parametrize("model", ["sigmoid_mlp", "transformer", "lstm", "resnet"])
def test_every_model_as_it_comes_is_healthy_without_a_warning(model: str, gradlab: Commands, tmp_path: Path) -> None:
    result = gradlab(f"model={model}", "trainer.updates=150", "trainer.progress=none", cwd=tmp_path, timeout=500)
    assert result.code == 0 and "verdict: healthy" in result.out, result.out + result.err
    assert "warning" not in result.out and "critical" not in result.out, result.out


@pytest.mark.slow
def test_the_cost_of_monitoring_has_every_kind_of_turn_on_the_slowest_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("lightning"), pytest.importorskip("wandb")
    monkeypatch.syspath_prepend(str(conf_dir().parent / "experiments" / "cost"))
    import monitor
    from turns import Turn

    for case, contenders in monitor.CASES.values():
        teams = [{name: [Turn(1.0, 1.0, 0.0)] * case.least for name in contenders} for _ in range(case.teams)]
        for name, contender in contenders.items():
            assert monitor.over_a_period(case, teams, name, contender.reference, "cpu") == [1, 1, 1]
