"""A watch leaves the training bitwise the same, and everything restored; what it records is right."""

import copy
import io
import json
import pickle

import pytest
import torch
from helpers import weights
from torch import nn
from torch.nn import functional as F
from watched_loops import batches, half_loss, loss_of, net

import gradlab
from gradlab.base.json_lines import read_lines
from gradlab.watch.patches import PATCHES

LOOPS = {}


def loop(function):
    LOOPS[function.__name__] = function
    return function


def plain(watched, make, **given):
    """Forward, backward, clip, step."""
    model = net()
    model.insert(2, nn.Dropout(0.2))
    optimizer = make(model.parameters())
    with watched(model, optimizer):
        for batch in batches(30):
            optimizer.zero_grad()
            loss_of(model, batch).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.3, **given)
            optimizer.step()
    return [model]


@loop
def sgd(watched):
    return plain(watched, lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9))


@loop
def adamw_fused(watched):
    return plain(watched, lambda p: torch.optim.AdamW(p, lr=1e-2, fused=True))


@loop
def adamw_foreach(watched):
    return plain(watched, lambda p: torch.optim.AdamW(p, lr=1e-2, foreach=True), norm_type=1.0)


@loop
def lbfgs(watched):
    model = net()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4, line_search_fn="strong_wolfe")
    with watched(model, optimizer):
        for batch in batches(6):

            def closure(batch=batch):
                optimizer.zero_grad()
                loss = loss_of(model, batch)
                loss.backward()
                return loss

            optimizer.step(closure)
    return [model]


@loop
def adversaries(watched):
    torch.manual_seed(0)
    maker, judge = nn.Linear(4, 8), net()
    first, second = (torch.optim.Adam(m.parameters(), lr=1e-2) for m in (judge, maker))
    with watched([judge, maker], [first, second]):
        for x, y in batches(20):
            judge.zero_grad()
            F.cross_entropy(judge(x), y).backward()
            made = maker(torch.randn(16, 4))
            F.cross_entropy(judge(made.detach()), 0 * y).backward()
            first.step()
            maker.zero_grad()
            F.cross_entropy(judge(made), y).backward()
            second.step()
    return [maker, judge]


@loop
def bfloat(watched):
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 30)
    with watched(model, optimizer, schedule=schedule):
        for batch in batches(30):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = loss_of(model, batch)
            loss.backward()
            nn.utils.clip_grad_value_(model.parameters(), 0.01)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    return [model]


def halves(watched, make, unscale):
    model = net()
    optimizer = make(model.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40, growth_interval=4)
    with watched(model, optimizer, scaler):
        for batch in batches(40):
            optimizer.zero_grad()
            scaler.scale(half_loss(model, batch)).backward()
            if unscale:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 0.3)
            scaler.step(optimizer)
            scaler.update()
    return [model]


@loop
def fp16(watched):
    return halves(watched, lambda p: torch.optim.SGD(p, lr=0.1), True)


@loop
def fp16_fused(watched):
    return halves(watched, lambda p: torch.optim.AdamW(p, lr=1e-2, fused=True), False)


@loop
def accumulation(watched):
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    with watched(model, optimizer):
        for i, batch in enumerate(batches(32)):
            (loss_of(model, batch) / 4).backward()
            if i % 4 == 3:
                optimizer.step()
                optimizer.zero_grad()
    return [model]


@loop
def sparse(watched):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(20, 4, sparse=True), nn.Flatten(), nn.Linear(8, 4).requires_grad_(False))
    optimizer = torch.optim.SGD(model[0].parameters(), lr=0.1)
    with watched(model, optimizer):
        for x, y in batches(20):
            optimizer.zero_grad()
            F.cross_entropy(model((x[:, :2].abs() * 5).long().clamp(max=19)), y).backward()
            optimizer.step()
    return [model]


def compiled_loop(watched):
    model = net()
    run = torch.compile(model, backend="aot_eager")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watched(run, optimizer):
        for batch in batches(6):
            optimizer.zero_grad()
            loss_of(run, batch).backward()
            optimizer.step()
    return [model]


class NoWatch:
    """Stands in for a watch."""

    def __init__(self, *args, **kwargs):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *args):
        pass


def with_and_without(function, tmp_path):
    """Run the same loop without a watch and with one: weights and random state must be equal."""
    torch.manual_seed(3)
    alone = [weights(m) for m in function(NoWatch)]
    drawn = torch.rand(1)
    watches = []

    def watched(*args, **kwargs):
        watch = gradlab.watch(*args, **kwargs, folder=tmp_path / "run", every=3, step_every=5, quiet=True)
        watches.append(watch)
        return watch

    torch.manual_seed(3)
    with_it = [weights(m) for m in function(watched)]
    assert torch.equal(drawn, torch.rand(1))
    assert all(torch.equal(a, b) for a, b in zip(alone, with_it, strict=True))
    assert not watches[0].broken
    assert [fault.code for fault in watches[0].faults if fault.code != "GL801"] == []
    return watches[0]


@pytest.mark.parametrize("name", LOOPS)
def test_bitwise(name, tmp_path):
    before = patched_functions()
    watch = with_and_without(LOOPS[name], tmp_path)
    assert patched_functions() == before
    assert not PATCHES
    lines = list(read_lines(tmp_path / "run" / "metrics.jsonl"))
    assert len(lines) == watch.loop.outputs[0].num_updates >= 6
    assert all(
        {"train/loss", "grad/norm", "clip/coefficient", "amp/scale", "update/skipped", "lr"} <= set(v) for v in lines
    )


@pytest.mark.slow
def test_bitwise_compiled(tmp_path):
    assert with_and_without(compiled_loop, tmp_path).loop.outputs[0].num_updates == 6


def patched_functions():
    """What a watch might leave replaced."""
    clip, scaler = torch.nn.utils.clip_grad, torch.amp.GradScaler
    schedules = torch.optim.lr_scheduler
    return [
        torch.autograd.backward,
        nn.Module.zero_grad,
        torch.optim.Optimizer.zero_grad,
        *(value for where in (clip, torch.nn.utils) for value in vars(where).values() if callable(value)),
        *(getattr(scaler, name) for name in ("scale", "unscale_", "step", "update")),
        schedules.LRScheduler.step,
        schedules.ReduceLROnPlateau.step,
    ]


def hooks(model, optimizer):
    return [
        *(len(m._forward_pre_hooks) + len(m._forward_hooks) for m in model.modules()),
        len(optimizer._optimizer_step_pre_hooks) + len(optimizer._optimizer_step_post_hooks),
        *(sorted(vars(thing)) for thing in (model, optimizer)),
    ]


def test_everything_is_restored_after_an_exception(tmp_path):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler, schedule = torch.amp.GradScaler("cpu"), torch.optim.lr_scheduler.StepLR(optimizer, 5)
    optimizer.step()  # PyTorch sets an attribute at the first step
    before, own = patched_functions(), [*hooks(model, optimizer), sorted(vars(scaler)), sorted(vars(schedule))]
    with pytest.raises(ZeroDivisionError), gradlab.watch(model, optimizer, scaler, schedule, tmp_path, quiet=True):
        for batch in batches(3):
            loss_of(model, batch).backward()
            optimizer.step()
            optimizer.zero_grad()
        assert patched_functions() != before
        1 / 0  # noqa: B018
    assert patched_functions() == before
    assert [*hooks(model, optimizer), sorted(vars(scaler)), sorted(vars(schedule))] == own
    diagnosis = json.loads((tmp_path / "diagnosis.json").read_text())
    assert diagnosis["outcome"]["status"] == "failed"
    assert diagnosis["outcome"]["error"] == "ZeroDivisionError: division by zero"
    assert len(list(read_lines(tmp_path / "metrics.jsonl"))) == 3


def test_an_error_in_backward_reaches_the_loop(tmp_path):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gradlab.watch(model, optimizer, folder=tmp_path, quiet=True) as watch:
        for batch in batches(3):
            with pytest.raises(RuntimeError, match="does not require grad"):
                loss_of(model, batch).detach().backward()
            optimizer.zero_grad()
            loss_of(model, batch).backward()
            optimizer.step()
    assert watch.loop.outputs[0].num_updates == 3
    assert not watch.faults


def test_an_internal_error_ends_the_watch_and_not_the_training(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("gradlab.watch.rules.calls.at_step", lambda *args: 1 / 0)
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gradlab.watch(model, optimizer, folder=tmp_path) as watch:
        for batch in batches(3):
            optimizer.zero_grad()
            loss_of(model, batch).backward()
            optimizer.step()
    assert watch.broken
    assert capsys.readouterr().err.count("stopped by an internal error") == 1
    assert (tmp_path / "diagnosis.json").is_file()


@pytest.mark.parametrize(
    "call", ["share_axes.ShareAxes.follow", "share_axes.ShareAxes.end", "reversed_losses.ReversedLosses.at_backward"]
)
def test_a_reader_that_raises_leaves_the_others_at_work(call, tmp_path, monkeypatch):
    monkeypatch.setattr(f"gradlab.watch.readers.{call}", lambda *args: 1 / 0)
    monkeypatch.setattr("gradlab.watch.observers.backward.bootstraps", no_bootstraps)
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gradlab.watch(model, optimizer, folder=tmp_path, quiet=True) as watch:
        for x, y in batches(3):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x).softmax(1), y).backward()
            optimizer.step()
    assert [fault.name for fault in watch.faults] == ["loss-input"]
    assert watch.broken and watch.loop.outputs[0].num_updates == 3
    for name in (call.split(".")[1], "no_bootstraps"):
        assert f"{name} was switched off by an internal error: ZeroDivisionError" in watch.report()


def no_bootstraps(roots):
    return 1 / 0


def test_copies_and_checkpoints_contain_nothing_of_the_watch(tmp_path):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler, schedule = torch.amp.GradScaler("cpu"), torch.optim.lr_scheduler.StepLR(optimizer, 5)
    with gradlab.watch(model, optimizer, scaler, schedule, tmp_path, quiet=True) as watch:
        loss_of(model, next(batches(1))).backward()
        other = copy.deepcopy(model)
        other.zero_grad()
        assert model[0].weight.grad is not None
        optimizer.step()
        optimizer.zero_grad()
        forwards = watch.loop.forwards.count
        other(torch.zeros(1, 8))
        pickle.loads(pickle.dumps(model))(torch.zeros(1, 8))
        assert watch.loop.forwards.count == forwards
        file = io.BytesIO()
        states = [thing.state_dict() for thing in (model, optimizer, scaler, schedule)]
        torch.save(states, file)
        file.seek(0)
        torch.load(file, weights_only=True)
        copy.deepcopy([scaler, schedule])
    assert watch.faults == []


def test_recorded_numbers_equal_plain_pytorch(tmp_path):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    expected = []
    with gradlab.watch(model, optimizer, scaler, folder=tmp_path, every=1, step_every=1, quiet=True):
        for batch in batches(12):
            optimizer.zero_grad()
            loss = half_loss(model, batch)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            norms = [p.grad.norm().item() for p in model.parameters()]
            before = weights(model)
            total = nn.utils.clip_grad_norm_(model.parameters(), 0.2).item()
            scaler.step(optimizer)
            scaler.update()
            moved = (weights(model) - before).norm() / before.norm()
            expected.append((loss.item(), total, min(1, 0.2 / (total + 1e-6)), scaler.get_scale(), moved.item(), norms))
    lines, layers = list(read_lines(tmp_path / "metrics.jsonl")), list(read_lines(tmp_path / "layers.jsonl"))[1:]
    assert [line["attempt"] for line in lines] == [*range(1, 13)] == [line["attempt"] for line in layers]
    names = ("train/loss", "grad/norm", "clip/coefficient", "amp/scale", "update/ratio")
    for line, layer, (*values, norms) in zip(lines, layers, expected, strict=True):
        assert [line[name] for name in names] == pytest.approx(values, rel=1e-5)
        assert layer["grad/layer"] == pytest.approx(norms, rel=1e-5)


def test_skipped_updates(tmp_path):
    """Skipped by the scaler, with a fused optimizer or another."""
    for i, fused in enumerate((False, True)):
        model = net()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=fused)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40)
        skipped = []
        with gradlab.watch(model, optimizer, scaler, folder=tmp_path / str(i), quiet=True):
            for batch in batches(30):
                optimizer.zero_grad()
                scaler.scale(half_loss(model, batch)).backward()
                before = weights(model)
                scaler.step(optimizer)
                scaler.update()
                skipped.append(torch.equal(before, weights(model)))
        lines = list(read_lines(tmp_path / str(i) / "metrics.jsonl"))
        assert [line["update/skipped"] for line in lines] == skipped
        assert 5 < sum(skipped) < 29
        assert lines[-1]["update"] == skipped.count(False)
        good = [line["grad/norm"] for line in lines if not line["update/skipped"]]
        assert 0 < min(good) < max(good) < 10


def test_a_diverging_run_is_diagnosed(tmp_path):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e4)
    with gradlab.watch(model, optimizer, folder=tmp_path, quiet=True) as watch:
        for x, y in batches(60):
            optimizer.zero_grad()
            (model(x)[:, 0] - y).square().mean().backward()
            optimizer.step()
    diagnosis = json.loads((tmp_path / "diagnosis.json").read_text())
    assert diagnosis["ill"]
    assert diagnosis["verdict"] in watch.report()
    assert {p.name for p in tmp_path.iterdir()} == {
        "metrics.jsonl",
        "layers.jsonl",
        "diagnosis.json",
        "report.html",
        "environment.json",
    }


def test_a_mistake_is_the_verdict(tmp_path):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gradlab.watch(model, optimizer, folder=tmp_path, quiet=True):
        for batch in batches(3):
            loss_of(model, batch).backward()
            optimizer.step()
    diagnosis = json.loads((tmp_path / "diagnosis.json").read_text())
    assert diagnosis["verdict"] == "zero-grad-missing"
    finding = diagnosis["findings"][0]
    assert finding["began"] == 2
    assert finding["evidence"]["file"] == __file__


def test_importing_gradlab_is_quick():
    import subprocess
    import sys

    code = (
        "import gradlab, sys; assert 'torch' not in sys.modules; gradlab.watch.Fault; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
