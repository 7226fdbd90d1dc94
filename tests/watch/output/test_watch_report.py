"""What a report contains: the verdict, what was measured, and why nothing was."""

import json
import threading

import pytest
import torch
from torch import nn
from torch.optim import SGD, AdamW
from watched_loops import batches, codes, lines, loss_of, net, train

import gradlab


class Another(SGD):
    """An optimizer of the same parameters."""


def nothing(model, optimizer):
    pass


def backward_alone(model, optimizer):
    for batch in batches(1):
        loss_of(model, batch).backward()


def another_steps(model, optimizer):
    train(model, Another(model.parameters(), lr=0.1), 3)


def backward_of_others(model, optimizer):
    other = net()
    for batch in batches(2):
        loss_of(other, batch).backward()


def moved_without_hooks(model, optimizer):
    """As a compiled step without state does."""
    for batch in batches(2):
        loss_of(model, batch).backward()
        with torch.no_grad():
            for p in model.parameters():
                p -= 0.1 * p.grad


def in_another_thread(model, optimizer):
    thread = threading.Thread(target=lambda: loss_of(model, next(batches(1))).backward(), name="trainer")
    thread.start()
    thread.join()


NOT_MEASURED = {
    nothing: "no backward pass and no step were called",
    backward_alone: "1 backward pass, and this optimizer was not stepped: its weights are what they were",
    another_steps: "3 backward passes, and no step of this optimizer: another one stepped in its place",
    backward_of_others: "2 backward passes, none of which reached its parameters, and this optimizer was not stepped",
    moved_without_hooks: "2 backward passes, and no step that calls hooks: its weights were moved by",
    in_another_thread: "the calls of thread 'trainer' are not observed",
}


@pytest.mark.parametrize("loop", NOT_MEASURED)
def test_what_was_not_measured_is_not_called_healthy(loop, tmp_path):
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    with gradlab.watch(model, optimizer, folder=tmp_path, quiet=True) as watch:
        loop(model, optimizer)
    assert codes(watch) == []
    assert f"verdict: not_measured (0 updates): {NOT_MEASURED[loop]}" in watch.report()
    assert json.loads((tmp_path / "diagnosis.json").read_text())["verdict"] == "not_measured"


@pytest.mark.parametrize("group", [True, False])
def test_parameters_that_are_trained_later(group, tmp_path):
    """Added as a new group, or unfrozen."""
    model = net()
    model[0].requires_grad_(False)
    optimizer = SGD((model[2] if group else model).parameters(), lr=0.1)
    with gradlab.watch(model, optimizer, folder=tmp_path, quiet=True) as watch:
        train(model, optimizer, 7)
        model.requires_grad_(True)
        if group:
            optimizer.add_param_group({"params": list(model[0].parameters())})
        train(model, optimizer, 6)
        optimizer.zero_grad()
        loss_of(model, next(batches(1))).backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), torch.inf).item()
        optimizer.step()
    assert codes(watch) == []
    written = lines(tmp_path)
    assert len(written) == 14
    assert written[-1]["grad/norm"] == pytest.approx(norm, rel=1e-5)


def test_many_optimizers_of_few_updates_are_counted(tmp_path):
    model = net()
    with gradlab.watch(model, folder=tmp_path, quiet=True) as watch:
        for _ in range(6):
            train(model, SGD(model.parameters(), lr=0.1), 1)
    verdicts = [each for each in watch.report().splitlines() if "verdict: too_short" in each]
    assert len(verdicts) == 3
    assert "3 other optimizers made fewer than 40 updates each" in watch.report()


def test_a_model_without_parameters(tmp_path):
    """Its input is trained."""
    x = torch.randn(4, 8, requires_grad=True)
    model, optimizer = nn.Sequential(nn.Tanh()), AdamW([x], lr=0.1)
    with gradlab.watch(model, optimizer, folder=tmp_path, quiet=True) as watch:
        for _ in range(6):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
    assert codes(watch) == []
    assert watch.loop.trackers[0].names == ["parameter0"]


def test_a_mistake_is_the_first_cause_of_what_comes_of_it(tmp_path):
    model = net()
    optimizer = SGD(model.parameters(), lr=1.0)
    with gradlab.watch(model, optimizer, folder=tmp_path, quiet=True) as watch:
        for batch in batches(60):
            loss_of(model, batch).backward()
            optimizer.step()
    final = watch.loop.outputs[0].final
    (found,) = [each for each in final.findings if each.code == "diverged"]
    assert found.causes[0].startswith("GL305 at ") and found.causes[0].endswith(f":{watch.faults[0].site[1]}")


def test_the_report_names_line_mistake_and_fix(tmp_path, capsys):
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    with gradlab.watch(model, optimizer, folder=tmp_path) as watch:
        for batch in batches(4):
            loss_of(model, batch).backward()
            optimizer.step()
    printed, (first, line, when, *_) = capsys.readouterr().err, watch.report().split("\n")
    assert first == "verdict: zero-grad-missing (4 updates)"
    assert f"test_watch_report.py:{watch.faults[0].site[1]}: GL305 error: gradients are not zeroed" in line
    assert when == "    first seen at update 2, 3 times; call optimizer.zero_grad() once per update, after the step"
    assert printed.count("\n") == 1
    assert line in printed


def test_a_loss_that_was_finite_once_has_one_finding(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gradlab.watch(model, optimizer) as watch:
        for i in range(60):
            optimizer.zero_grad()
            loss = model(torch.ones(4, 2)).square().mean() * (1.0 if i == 0 else float("nan"))
            loss.backward()
            optimizer.step()
    report = str(watch.report())
    assert "nan_loss" in report and "did not improve" not in report
