"""However a watch is used: compiled, late, again, broken off, with the wrong arguments."""

import json
import time
from pathlib import Path

import pytest
import torch
from helpers import weights
from torch import nn
from torch.optim import SGD, AdamW
from watched_loops import batches, loss_of, net

import gradlab
from gradlab.base.json_lines import read_lines
from gradlab.watch.call_site import format_site
from gradlab.watch.patches import PATCHES


def train(model, optimizer, count=6, seed=1):
    for batch in batches(count, seed):
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()


def codes(watch):
    assert not watch.broken
    return [seen.code for seen in watch.faults]


COMPILED = {
    "wrapped": lambda model, how: (torch.compile(model, **how),) * 2,
    "inside": lambda model, how: (model, torch.compile(model, **how)),
    "in place": lambda model, how: (model, model.compile(**how) or model),
}


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize("form", COMPILED)
def test_compiled(backend, form, tmp_path):
    """Bitwise the same, in one graph; accumulation is seen where hooks or graphs show it."""
    ends = []
    for watched in (False, True):
        torch._dynamo.reset()
        model = net()
        given, called = COMPILED[form](model, {"backend": backend, "fullgraph": True})
        optimizer = AdamW(model.parameters(), lr=1e-2)
        if watched:
            with gradlab.watch(given, optimizer, folder=tmp_path, quiet=True) as watch:
                train(called, optimizer)
            assert codes(watch) == []
            assert watch.loop.outputs[0].num_updates == 6
        else:
            train(called, optimizer)
        ends.append(weights(model))
    assert torch.equal(*ends)
    with gradlab.watch(given, optimizer, folder=tmp_path, quiet=True) as watch:
        for i, batch in enumerate(batches(8)):
            loss_of(called, batch).backward()
            if i % 4 == 3:
                optimizer.step()
                optimizer.zero_grad()
    assert codes(watch) == ([] if backend == "eager" and form != "wrapped" else ["GL301"])


def test_an_optimizer_that_is_made_later(tmp_path):
    model = net()
    with gradlab.watch(model, folder=tmp_path, quiet=True) as watch:
        optimizer = SGD(model.parameters(), lr=0.1)
        for batch in batches(4):
            loss_of(model, batch).backward()
            optimizer.step()
    assert [(seen.code, seen.update) for seen in watch.faults] == [("GL305", 2)]
    assert len(list(read_lines(tmp_path / "metrics.jsonl"))) == 4


def test_optimizers_that_are_there_already(tmp_path):
    model, other = net(), net()
    optimizer, foreign = SGD(model.parameters(), lr=0.1), SGD(other.parameters(), lr=0.1)
    with gradlab.watch(model, folder=tmp_path, quiet=True) as watch:
        train(model, optimizer)
        train(other, foreign)
    assert [f.optimizer for f in watch.loop.trackers] == [optimizer]
    assert watch.loop.outputs[0].num_updates == 6


def test_nothing_is_met(tmp_path):
    with gradlab.watch(net(), folder=tmp_path, quiet=True) as watch:
        pass
    assert "no optimizer" in watch.report()


def nothing(model, optimizer):
    pass


def backward_alone(model, optimizer):
    for batch in batches(1):
        loss_of(model, batch).backward()


class Another(SGD):
    """An optimizer of the same parameters."""


def another_steps(model, optimizer):
    train(model, Another(model.parameters(), lr=0.1), 3)


def two_losses(model, optimizer):
    for batch in batches(3):
        optimizer.zero_grad()
        torch.autograd.backward([loss_of(model, batch), loss_of(model, batch)])
        optimizer.step()


def two_optimizers(model, optimizer):
    """The one that was named is replaced."""
    train(model, optimizer, 3)
    train(model, Another(model.parameters(), lr=0.1), 3)


def test_an_optimizer_that_was_not_named_is_told(tmp_path):
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    with gradlab.watch(model, optimizer, folder=tmp_path, quiet=True) as watch:
        two_optimizers(model, optimizer)
    line = train.__code__.co_firstlineno + 5
    assert f"its parameters were also moved by Another at {format_site((train.__code__, line))}" in watch.report()
    assert watch.report().count("Another") == 1


class Sharpness(torch.optim.Optimizer):
    """Moves the weights uphill by hand, and has another optimizer step from there."""

    def __init__(self, params):
        super().__init__(params, {})
        self.base = torch.optim.Adam(self.param_groups, lr=0.01)
        self.param_groups = self.base.param_groups

    @torch.no_grad()
    def climb(self):
        for p in (p for group in self.param_groups for p in group["params"]):
            self.state[p]["was"] = p.clone()
            p.add_(p.grad, alpha=0.05)

    @torch.no_grad()
    def step(self):
        for p in (p for group in self.param_groups for p in group["params"]):
            p.copy_(self.state[p]["was"])
        self.base.step()


@pytest.mark.parametrize("named", ["outer", "inner", "none"])
def test_an_optimizer_of_optimizers(named, tmp_path):
    model = net()
    outer = Sharpness(model.parameters())
    given = {"outer": [outer], "inner": [outer.base], "none": []}[named]
    with gradlab.watch(model, *given, folder=tmp_path, quiet=True) as watch:
        for batch in batches(6):
            loss_of(model, batch).backward()
            outer.climb()
            outer.zero_grad()
            loss_of(model, batch).backward()
            outer.step()
            outer.zero_grad()
    assert codes(watch) == []
    assert [o.num_updates for o in watch.loop.outputs] == [6]
    assert "also moved" not in watch.report()


NOT_MEASURED = {
    nothing: "no backward pass reached",
    backward_alone: "1 backward pass, and no step",
    another_steps: "3 backward passes, and no step",
    two_losses: "no loss could be read",
}


@pytest.mark.parametrize("loop", NOT_MEASURED)
def test_what_was_not_measured_is_not_called_healthy(loop, tmp_path):
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    with gradlab.watch(model, optimizer, folder=tmp_path, quiet=True) as watch:
        loop(model, optimizer)
    assert codes(watch) == []
    assert f"verdict: not_measured ({3 * (loop is two_losses)} updates): {NOT_MEASURED[loop]}" in watch.report()
    assert json.loads((tmp_path / "diagnosis.json").read_text())["verdict"] == "not_measured"


def test_watches_of_one_second_have_folders_of_their_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(time, "strftime", lambda form: "now")
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    for count in (3, 4):
        with gradlab.watch(model, optimizer, quiet=True) as watch:
            train(model, optimizer, count)
    assert watch.folder == Path("outputs/watch/now_2")
    kept = [len(list(read_lines(Path("outputs/watch", name, "metrics.jsonl")))) for name in ("now", "now_2")]
    assert kept == [3, 4]
    with pytest.raises(TypeError):
        gradlab.watch(optimizer, quiet=True)
    assert len(list(Path("outputs/watch").iterdir())) == 2  # wrong arguments leave nothing


@pytest.mark.parametrize("group", [True, False])
def test_parameters_that_are_trained_later(group, tmp_path):
    """As a group of their own, or because they are no longer frozen."""
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
    lines = list(read_lines(tmp_path / "metrics.jsonl"))
    assert len(lines) == 14
    assert lines[-1]["grad/norm"] == pytest.approx(norm, rel=1e-5)


def test_a_model_without_parameters(tmp_path):
    """What is trained is its input."""
    x = torch.randn(4, 8, requires_grad=True)
    model, optimizer = nn.Sequential(nn.Tanh()), AdamW([x], lr=0.1)
    with gradlab.watch(model, optimizer, folder=tmp_path, quiet=True) as watch:
        for _ in range(6):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
    assert codes(watch) == []
    assert watch.loop.trackers[0].names == ["parameter0"]


def test_a_watch_that_goes_on(tmp_path):
    """Entered again it continues its folder; what went on in between is not held against anybody."""
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    watch = gradlab.watch(model, optimizer, folder=tmp_path, quiet=True)
    for epoch in range(3):
        with watch:
            train(model, optimizer, 5, epoch)
        train(model, optimizer, 1)
        assert not PATCHES
    assert codes(watch) == []
    lines = list(read_lines(tmp_path / "metrics.jsonl"))
    assert [line["attempt"] for line in lines] == [*range(1, 16)]
    with watch, pytest.raises(RuntimeError, match="running already"), watch:
        pass


@pytest.mark.parametrize("error, status", [(KeyboardInterrupt, "interrupted"), (ZeroDivisionError, "failed")])
def test_what_breaks_off_is_told_and_put_right(error, status, tmp_path):
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    with pytest.raises(error), gradlab.watch(model, optimizer, folder=tmp_path, quiet=True) as watch:
        train(model, optimizer)
        raise error
    assert watch.status == status
    assert error.__name__ in watch.report()
    assert not PATCHES
    assert not optimizer._optimizer_step_pre_hooks
    assert (tmp_path / "report.html").is_file()


def test_strict_puts_all_right(tmp_path):
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    with (
        pytest.raises(gradlab.watch.Fault, match="GL305 error") as caught,
        gradlab.watch(model, optimizer, folder=tmp_path, quiet=True, strict=True),
    ):
        for batch in batches(4):
            loss_of(model, batch).backward()
            optimizer.step()
    assert caught.value.code == "GL305"
    assert not PATCHES
    assert len(list(read_lines(tmp_path / "metrics.jsonl"))) == 1


def test_wrong_arguments(tmp_path):
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    (tmp_path / "file").write_text("")
    for given, says in (
        ({"model": optimizer}, "model is a SGD, expected a torch.nn.Module"),
        ({"model": []}, "model is empty"),
        ({"model": model, "optimizer": model}, "optimizer is a Sequential, expected a torch.optim.Optimizer"),
        ({"model": model, "optimzer": optimizer}, "no argument 'optimzer' .did you mean optimizer"),
        ({"model": model, "optimizer": optimizer, "scaler": optimizer}, "scaler is a SGD, expected a torch.amp.Grad"),
        ({"model": model, "optimizer": optimizer, "schedule": model}, "schedule is a Sequential, expected one of"),
        ({"model": model, "optimizer": []}, "optimizer is empty"),
        ({"model": nn.LazyLinear(4)}, "model is a LazyLinear with uninitialized parameters"),
        ({"model": model, "optimizer": optimizer, "strict": "no"}, "strict is 'no', expected True or False"),
        ({"model": model, "optimizer": optimizer, "every": 0}, "every is 0, expected a whole number >= 1"),
        ({"model": model, "optimizer": optimizer, "folder": tmp_path / "file" / "a"}, "file is a file"),
        ({"model": model, "optimizer": optimizer, "folder": 3}, "folder is an int, expected a path"),
    ):
        with pytest.raises((TypeError, ValueError), match=f"^watch: .*{says}"):
            gradlab.watch(**given)
    assert not PATCHES


def test_the_report_names_place_mistake_and_mend(tmp_path, capsys):
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    with gradlab.watch(model, optimizer, folder=tmp_path) as watch:
        for batch in batches(4):
            loss_of(model, batch).backward()
            optimizer.step()
    said, (first, line, when, *_) = capsys.readouterr().err, watch.report().split("\n")
    assert first == "verdict: zero-grad-missing (4 updates)"
    assert f"test_watch_usage.py:{watch.faults[0].site[1]}: GL305 error: gradients are never" in line
    assert when == "    first at update 2, 3 times; call optimizer.zero_grad() once per update, after the step"
    assert said.count("\n") == 1
    assert line in said
