"""Several optimizers, and closures: each optimizer has its own diagnosis and its own mistakes."""

import json

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from watched_loops import batches, half_loss, loss_of, marked, net

import gradlab
from gradlab.base.json_lines import read_lines


def adversaries(judge, maker, first, second):
    for x, y in batches(6):
        judge.zero_grad()
        F.cross_entropy(judge(x), y).backward()
        made = maker(torch.randn(16, 4))
        F.cross_entropy(judge(made.detach()), 0 * y).backward()
        first.step()
        F.cross_entropy(judge(made), y).backward()
        second.step()  # here


def test_a_mistake_of_the_second_of_two_optimizers(tmp_path):
    torch.manual_seed(0)
    maker, judge = nn.Linear(4, 8), net()
    first, second = (torch.optim.Adam(m.parameters(), lr=1e-2) for m in (judge, maker))
    with gradlab.watch([judge, maker], [first, second], folder=tmp_path, quiet=True) as watch:
        adversaries(judge, maker, first, second)
    assert [(s.name, s.site[1], s.update, s.optimizer) for s in watch.faults] == [
        ("zero-grad-missing", marked(adversaries), 2, 1)
    ]
    verdicts = [
        json.loads((at / "diagnosis.json").read_text())["verdict"] for at in (tmp_path, tmp_path / "optimizer1")
    ]
    assert verdicts == ["too_short", "zero-grad-missing"]
    assert len(list(read_lines(tmp_path / "optimizer1" / "metrics.jsonl"))) == 6
    assert "optimizer 1 (Adam): verdict: zero-grad-missing" in watch.report()


def test_a_loss_that_is_maximized_is_to_rise(tmp_path):
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, maximize=True)
    with gradlab.watch(model, optimizer, folder=tmp_path, quiet=True) as watch:
        for _ in range(100):
            x = torch.randn(16, 4)
            optimizer.zero_grad()
            (2 - (model(x)[:, 0] - x.sum(1) - 5).square().mean()).backward()
            optimizer.step()
    final = watch.loop.outputs[0].final
    assert final.verdict == "healthy" and final.sentence.endswith(
        "it need not fall, since it is what its optimizer maximizes"
    )
    assert all(finding.severity == "info" for finding in final.findings)


@pytest.mark.parametrize("layer", [nn.Linear(4, 1), nn.Sequential(nn.Unflatten(1, (1, 4)), nn.Conv1d(1, 1, 4))])
def test_a_loss_through_a_frozen_judge_need_not_fall(layer, tmp_path):
    """The judge learns to tell real samples from made ones, and its weights want no gradient while the maker learns."""
    torch.manual_seed(0)
    maker, judge = nn.Linear(2, 4), layer
    first, second = (torch.optim.SGD(m.parameters(), lr=0.05) for m in (maker, judge))
    with gradlab.watch([maker, judge], [first, second], folder=tmp_path, quiet=True) as watch:
        for _ in range(60):
            made = maker(torch.randn(16, 2))
            second.zero_grad()
            (judge(made.detach()).mean() - judge(3 + torch.randn(16, 4)).mean()).backward()
            second.step()
            judge.requires_grad_(False)
            first.zero_grad()
            (1 - judge(made).mean()).backward()
            first.step()
            judge.requires_grad_(True)
    found = [output.final for output in watch.loop.outputs]
    said = "depends on weights that another optimizer moves by another loss"
    assert found[0].verdict == "healthy" and found[0].sentence.endswith(f"; it need not fall, since it {said}")
    assert "is that of an optimizer whose weights the loss of another one depends on" in found[1].sentence
    assert found[0].unchecked["not_learning"] == f"its loss {said}"


@pytest.mark.parametrize("how", ["asked", "inputs", "layers"])
def test_two_networks_of_one_optimizer_need_not_fall(how, tmp_path):
    """Each gets its gradient of its own loss; layers of one network get theirs of one."""
    torch.manual_seed(0)
    maker, judge = nn.Linear(2, 4), nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.Adam([*maker.parameters(), *judge.parameters()], 1e-3)
    with gradlab.watch([maker, judge], optimizer, folder=tmp_path, quiet=True) as watch:
        for _ in range(3):
            optimizer.zero_grad()
            made = judge(maker(torch.randn(16, 2)))
            losses = [F.softplus(-made).mean(), F.softplus(made).mean() + F.softplus(-judge(torch.randn(16, 4))).mean()]
            for loss, part in zip(losses, (maker, judge), strict=True):
                loss = losses[0] if how == "layers" else loss
                if how == "inputs":
                    loss.backward(inputs=list(part.parameters()), retain_graph=True)
                elif part is maker:
                    grads = torch.autograd.grad(loss, list(part.parameters()), retain_graph=True)
                else:
                    grads += torch.autograd.grad(loss, list(part.parameters()))
            for p, grad in zip(optimizer.param_groups[0]["params"], () if how == "inputs" else grads, strict=False):
                p.grad = grad
            optimizer.step()
    said = "" if how == "layers" else "depends on weights that it trains by another loss"
    assert not watch.broken and watch.loop.need_not_fall(watch.loop.trackers[0]) == said


def test_a_reused_folder_contains_nothing_of_an_earlier_watch(tmp_path):
    """Files of other programs stay."""
    torch.manual_seed(0)
    maker, judge = nn.Linear(4, 8), net()
    pair = [torch.optim.Adam(m.parameters(), lr=1e-2) for m in (judge, maker)]
    for name in ("optimizer1", "optimizer2", "optimizers"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "notes.txt").write_text("mine")
    for name in ("optimizer1", "optimizers"):
        (tmp_path / name / "notes.txt").unlink()
        (tmp_path / name / "diagnosis.json").write_text("{}")
    (tmp_path / "optimizer2" / "diagnosis.json").write_text("{}")
    watch = gradlab.watch([judge, maker], pair, folder=tmp_path, quiet=True)
    for _ in range(2):
        with watch:
            adversaries(judge, maker, *pair)
    assert len(list(read_lines(tmp_path / "optimizer1" / "metrics.jsonl"))) == 12
    with gradlab.watch(judge, pair[0], folder=tmp_path, quiet=True):
        pass
    assert not (tmp_path / "optimizer1").exists()
    assert [path.name for path in (tmp_path / "optimizer2").iterdir()] == ["notes.txt"]
    assert (tmp_path / "optimizers" / "diagnosis.json").exists()


def never_zeroed(model, optimizer):
    for batch in batches(4):

        def closure(batch=batch):
            loss = loss_of(model, batch)
            loss.backward()
            return loss

        optimizer.step(closure)  # here


def test_a_closure_that_never_zeroes(tmp_path):
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    with gradlab.watch(model, optimizer, folder=tmp_path, quiet=True) as watch:
        never_zeroed(model, optimizer)
    assert [(s.name, s.site[1], s.update) for s in watch.faults] == [("zero-grad-missing", marked(never_zeroed), 2)]
    assert all("train/loss" in line for line in read_lines(tmp_path / "metrics.jsonl"))


def test_one_loss_for_several_optimizers(tmp_path):
    """Both record it; an optimizer that is passed twice is one."""
    model = net()
    matrices, vectors = ([p for p in model.parameters() if p.dim() == d] for d in (2, 1))
    first, second = torch.optim.SGD(matrices, lr=0.1), torch.optim.Adam(vectors, lr=1e-2)
    losses = []
    with gradlab.watch(model, [first, second, first], folder=tmp_path, quiet=True) as watch:
        for batch in batches(4):
            model.zero_grad()
            loss = loss_of(model, batch)
            loss.backward()
            losses.append(loss.item())
            first.step()
            second.step()
    assert watch.faults == []
    assert len(watch.loop.outputs) == 2
    for folder in (tmp_path, tmp_path / "optimizer1"):
        assert [line["train/loss"] for line in read_lines(folder / "metrics.jsonl")] == pytest.approx(losses)


def test_gradients_that_are_assigned_manually(tmp_path):
    """As evolution strategies do: gradients that do not come from backward are no mistake."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gradlab.watch(model, optimizer, folder=tmp_path, quiet=True) as watch:
        for batch in batches(4):
            loss_of(model, batch).backward()
            kept = [p.grad.clone() for p in model.parameters()]
            optimizer.zero_grad()
            for p, grad in zip(model.parameters(), kept, strict=True):
                p.grad = grad
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
            optimizer.zero_grad()
    assert watch.faults == []


@pytest.mark.parametrize("steps", [0, 1])
def test_zero_or_one_update(tmp_path, steps):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gradlab.watch(model, optimizer, folder=tmp_path, quiet=True) as watch:
        for batch in batches(steps):
            loss_of(model, batch).backward()
            optimizer.step()
    assert f"({steps} update{'s' * (steps != 1)})" in watch.report()
    assert (tmp_path / "report.html").is_file()


def test_backward_with_a_gradient_instead_of_a_loss(tmp_path):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gradlab.watch(model, optimizer, folder=tmp_path, quiet=True) as watch:
        for x, _ in batches(4):
            optimizer.zero_grad()
            out = model(x)
            out.backward(torch.ones_like(out))
            optimizer.step()
    lines = list(read_lines(tmp_path / "metrics.jsonl"))
    assert len(lines) == 4
    assert all("train/loss" not in line and line["grad/norm"] > 0 for line in lines)
    assert not watch.broken
    assert watch.faults == []


def two_halves(scaled=False):
    """The two layers of a network, each with an optimizer of its own; and a scaler."""
    model = net()
    optimizers = [torch.optim.SGD(model[i].parameters(), lr=0.1) for i in (0, 2)]
    return model, *optimizers, torch.amp.GradScaler("cpu", init_scale=2.0**8, enabled=scaled)


def second_steps_past_the_scaler(model, first, second, scaler):
    for batch in batches(4):
        model.zero_grad()
        scaler.scale(half_loss(model, batch)).backward()
        scaler.step(first)
        second.step()  # here
        scaler.update()


def second_is_never_zeroed(model, first, second, scaler):
    for batch in batches(4):
        first.zero_grad()
        scaler.scale(half_loss(model, batch) if scaler.is_enabled() else loss_of(model, batch)).backward()
        scaler.step(first)
        scaler.step(second)  # here
        scaler.update()


def a_layer_is_zeroed(model, first, second, scaler):
    for batch in batches(4):
        model[0].zero_grad()
        loss_of(model, batch).backward()
        first.step()
        second.step()  # here


def in_turn_each_zeroed_before_its_step(model, first, second, scaler):
    for i, batch in enumerate(batches(8)):
        optimizer = (first, second)[i % 2]
        optimizer.zero_grad()
        scaler.scale(half_loss(model, batch)).backward()
        scaler.step(optimizer)
        scaler.update()


def second_has_longer_windows(model, first, second, scaler):
    for i, batch in enumerate(batches(8)):
        first.zero_grad()
        (loss_of(model, batch) / 2).backward()
        first.step()
        if i % 2:
            second.step()
            second.zero_grad()


def second_has_a_loss_that_is_not_scaled(model, first, second, scaler):
    other = net(1)
    second.add_param_group({"params": other.parameters()})
    for batch in batches(4):
        first.zero_grad()
        second.zero_grad()
        scaler.scale(half_loss(model, batch)).backward(inputs=list(model[0].parameters()))
        loss_of(other, batch).backward()  # here
        scaler.step(first)
        scaler.step(second)
        scaler.update()


def scale_is_updated_between_two_steps(model, first, second, scaler):
    for batch in batches(4):
        first.zero_grad()
        second.zero_grad()
        scaler.scale(half_loss(model, batch)).backward()
        scaler.step(first)
        scaler.update()  # here
        scaler.step(second)
        scaler.update()


def scale_is_updated_within_a_longer_window(model, first, second, scaler):
    """The scale stays what it is for 2000 updates, and PyTorch's notes allow several updates."""
    for i, batch in enumerate(batches(8)):
        first.zero_grad()
        scaler.scale(half_loss(model, batch) / 2).backward()
        scaler.step(first)
        if i % 2:
            scaler.step(second)
            second.zero_grad()
        scaler.update()


@pytest.mark.parametrize(
    "loop, scaled, found",
    [
        (scale_is_updated_between_two_steps, True, [("update-every-micro-batch", 1, 1)]),
        (scale_is_updated_within_a_longer_window, True, []),
        (second_has_a_loss_that_is_not_scaled, True, [("loss-not-scaled", 1, 1)]),
        (second_steps_past_the_scaler, True, [("step-past-scaler", 1, 1)]),
        (second_is_never_zeroed, True, [("zero-grad-missing", 2, 1)]),
        (second_is_never_zeroed, False, [("zero-grad-missing", 2, 1)]),
        (a_layer_is_zeroed, False, [("zero-grad-missing", 2, 1)]),
        (in_turn_each_zeroed_before_its_step, True, []),
        (second_has_longer_windows, False, []),
    ],
)
def test_each_of_two_optimizers_is_judged_though_both_step_on_one_loss(loop, scaled, found, tmp_path):
    model, first, second, scaler = two_halves(scaled)
    with gradlab.watch(model, [first, second], scaler, folder=tmp_path, quiet=True) as watch:
        loop(model, first, second, scaler)
    assert not watch.broken
    where = [(name, marked(loop), update, index) for name, update, index in found]
    assert [(fault.name, fault.site[1], fault.update, fault.optimizer) for fault in watch.faults] == where


def swapped(judge, maker, first, second):
    for x, _ in batches(24):
        made = maker(torch.randn(16, 4))
        first.zero_grad()
        F.softplus(judge(made.detach()) - judge(x)).mean().backward()
        first.step()  # here
        second.zero_grad()
        F.softplus(-judge(made)).mean().backward()
        second.step()


@pytest.mark.parametrize("right", [False, True])
def test_an_optimizer_whose_gradients_are_always_zeroed(right, tmp_path):
    """Each has the other's weights: the maker gets its gradient where the judge's optimizer steps, and the reverse."""
    torch.manual_seed(0)
    maker, judge = nn.Linear(4, 8), nn.Sequential(nn.Linear(8, 4), nn.Tanh(), nn.Linear(4, 1))
    first, second = (torch.optim.Adam(m.parameters(), 1e-3) for m in ((judge, maker) if right else (maker, judge)))
    with gradlab.watch([maker, judge], [first, second], folder=tmp_path, quiet=True) as watch:
        swapped(judge, maker, first, second)
    assert not watch.broken
    expected = [] if right else [("step-without-gradient", marked(swapped))]
    assert [(f.name, f.site[1]) for f in watch.faults] == expected
