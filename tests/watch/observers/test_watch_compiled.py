"""Models, steps and clip calls that are compiled."""

import inspect

import pytest
import torch
from helpers import weights
from torch import nn
from torch.optim import AdamW
from watched_loops import batches, codes, lines, loss_of, net, pair, train

import gradlab


@pytest.mark.slow
@pytest.mark.parametrize("schedule", [True, False])
@pytest.mark.parametrize("cleared", [True, False])
def test_a_step_that_is_compiled(cleared, schedule, tmp_path):
    """It calls no hooks, and is detected afterwards."""
    torch._dynamo.reset()
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    moves = torch.optim.lr_scheduler.StepLR(optimizer, 5)
    norms = []
    with gradlab.watch(model, optimizer, folder=tmp_path, every=1, quiet=True) as watch:
        step = torch.compile(optimizer.step, backend="eager")
        for batch in batches(6):
            if cleared:
                optimizer.zero_grad()
            loss_of(model, batch).backward()  # here
            norms.append(nn.utils.get_total_norm([p.grad for p in model.parameters()]).item())
            step()
            if schedule:
                moves.step()
    assert not watch.broken
    line = inspect.getsource(test_a_step_that_is_compiled).split("\n")
    place = test_a_step_that_is_compiled.__code__.co_firstlineno + next(i for i, v in enumerate(line) if "# here" in v)
    assert [(s.code, s.site[1], s.update) for s in watch.faults] == ([] if cleared else [("GL305", place, 2)])
    assert [line["grad/norm"] for line in lines(tmp_path)] == pytest.approx(norms, rel=1e-5)


@pytest.mark.slow
def test_a_clip_that_is_compiled(tmp_path):
    """Its graph does not break."""
    torch._dynamo.reset()
    model, optimizer = pair()

    @torch.compile(backend="eager", fullgraph=True)
    def clip():
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)

    with gradlab.watch(model, optimizer, folder=tmp_path, quiet=True) as watch:
        for batch in batches(3):
            optimizer.zero_grad()
            loss_of(model, batch).backward()
            clip()
            optimizer.step()
    assert not watch.broken
    assert watch.faults == []


@pytest.mark.slow
def test_a_step_that_is_compiled_later(tmp_path):
    torch._dynamo.reset()
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    step = torch.compile(optimizer.step, backend="eager")
    with gradlab.watch(model, optimizer, folder=tmp_path, quiet=True) as watch:
        for i, batch in enumerate(batches(12)):
            optimizer.zero_grad()
            loss_of(model, batch).backward()
            optimizer.step() if i < 4 else step()
    assert watch.faults == []
    assert len(lines(tmp_path)) == 11  # the first compiled step is noticed only at the next one


COMPILED = {
    "wrapped": lambda model, how: (torch.compile(model, **how),) * 2,
    "inside": lambda model, how: (model, torch.compile(model, **how)),
    "in place": lambda model, how: (model, model.compile(**how) or model),
}


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize("form", COMPILED)
def test_compiled(backend, form, tmp_path):
    """Bitwise the same, in one graph; accumulation is detected where hooks or graphs show it."""
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


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute")  # the compiler asks for it
def test_what_is_compiled_whole_in_an_update_that_is_followed(tmp_path):
    """The compiler refuses what it cannot compile: it must not meet what reads the calls."""
    torch._dynamo.reset()
    model, optimizer = pair()
    loss = torch.compile(nn.functional.cross_entropy, backend="eager", fullgraph=True)
    with gradlab.watch(model, optimizer, folder=tmp_path, quiet=True) as watch:
        for i, (x, y) in enumerate(batches(4)):
            optimizer.zero_grad()
            (loss if i == 1 else nn.functional.cross_entropy)(model(x), y).backward()
            optimizer.step()
    assert not watch.broken
    torch._dynamo.reset()


def test_nothing_is_read_while_a_graph_is_recorded(tmp_path, monkeypatch):
    """To wait for the device would end the recording, and the training with it."""
    model, optimizer = pair()
    with gradlab.watch(model, optimizer, folder=tmp_path, quiet=True):
        train(model, optimizer, 3)
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        monkeypatch.setattr(torch.Tensor, "__bool__", lambda self: pytest.fail("it waits for the device"))
        train(model, optimizer, 2)
        monkeypatch.undo()
    assert len(lines(tmp_path)) == 3
