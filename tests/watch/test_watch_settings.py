"""Settings that leave a loop without effect: rates, warm-ups, and what is clipped; and the lines of findings."""

import copy
import inspect
import math
import types

import pytest
from torch import nn
from torch.optim import SGD
from torch.optim.lr_scheduler import LambdaLR, LinearLR
from watched_loops import batches, loss_of, marked, net

import gradlab

N = 44


def rate_of_a_group(folder, unfrozen):
    model = net()
    optimizer = SGD([{"params": model[0].parameters(), "lr": 0.0}, {"params": model[2].parameters()}], lr=0.1)  # here
    with gradlab.watch(model, optimizer, folder=folder, quiet=True) as watch:
        for i, batch in enumerate(batches(N)):
            optimizer.zero_grad()
            loss_of(model, batch).backward()
            optimizer.step()
            if unfrozen and i == N // 2:
                optimizer.param_groups[0]["lr"] = 0.1
    return watch, "learning-rate-zero"


def warm_up(folder, short):
    model = net()
    optimizer = SGD(model.parameters(), 0.1)
    schedule = LinearLR(optimizer, 0.001, total_iters=200 if short else 10_000)  # here
    with gradlab.watch(model, optimizer, schedule=schedule, folder=folder, quiet=True) as watch:
        for batch in batches(N):
            optimizer.zero_grad()
            loss_of(model, batch).backward()
            optimizer.step()
            schedule.step()
    return watch, "warm-up-unfinished"


SETTINGS = types.SimpleNamespace(floor=0.0)


@pytest.mark.parametrize(
    "kind", ["counts updates", "counts epochs", "of base rate 1", "search", "with a memory", "with a log"]
)
def test_a_warm_up_that_a_function_makes(kind, tmp_path):
    """Each epoch has 10 updates, and the first 5 are seen; a rate of 1 is a factor of what the function returns.

    A function that leaves a trace is never asked.
    """
    start, length = {"of base rate 1": (1.0, 20), "counts epochs": (0.1, 30)}.get(kind, (0.1, 240))
    model, memory, asked = net(), {}, []
    optimizer = SGD(model.parameters(), start)

    def remembered(step):
        memory["step"] = step
        return factor(step)

    def logged(step):
        asked.append(step)
        return factor(step)

    def factor(step):
        if kind == "search":
            return 1e-3 * (step + 1)
        part = max(SETTINGS.floor, min((step + 1) / length, math.sqrt(length / (step + 1))))
        return part * (0.001 if kind == "of base rate 1" else 1)

    schedule = LambdaLR(optimizer, {"with a memory": remembered, "with a log": logged}.get(kind, factor))
    with gradlab.watch(model, optimizer, folder=tmp_path, quiet=True) as watch:
        for i, batch in enumerate(batches(50)):
            optimizer.zero_grad()
            loss_of(model, batch).backward()
            optimizer.step()
            if kind == "of base rate 1" or i % 10 == 9:
                schedule.step()
    assert not watch.broken
    assert [f.name for f in watch.faults] == ["warm-up-unfinished"] * (kind == "counts updates")
    assert memory.get("step", 5) == 5
    assert max(asked, default=5) == 5


@pytest.mark.parametrize(
    "made",
    [
        lambda optimizer: LinearLR(optimizer, 0.001, total_iters=100),
        lambda optimizer: LambdaLR(optimizer, lambda epoch: min(1, (epoch + 1) / 100)),
        lambda optimizer: LambdaLR(optimizer, lambda epoch: min(1, (epoch + 1) / 10)),
    ],
)
def test_a_warm_up_of_epochs_of_which_one_was_watched(made, tmp_path):
    model = net()
    optimizer = SGD(model.parameters(), 0.1)
    schedule = made(optimizer)
    with gradlab.watch(model, optimizer, folder=tmp_path, quiet=True) as watch:
        for batch in batches(N):
            optimizer.zero_grad()
            loss_of(model, batch).backward()
            optimizer.step()
        schedule.step()
    assert not watch.broken
    assert not watch.faults


def clipping_of_single_tensors(folder, layers):
    model = net()
    optimizer = SGD(model.parameters(), 0.1)
    with gradlab.watch(model, optimizer, folder=folder, quiet=True) as watch:
        for batch in batches(N):
            optimizer.zero_grad()
            loss_of(model, batch).backward()
            for part in (model[0], model[2]) if layers else model.parameters():
                nn.utils.clip_grad_norm_(part.parameters() if layers else part, 0.1)  # here
            optimizer.step()
    return watch, "clip-per-parameter"


def clipping_of_a_copy(folder, copied_back):
    model = net()
    optimizer = SGD(model.parameters(), 0.1)
    with gradlab.watch(model, optimizer, folder=folder, quiet=True) as watch:
        for batch in batches(N):
            optimizer.zero_grad()
            loss_of(model, batch).backward()
            other = copy.deepcopy(model)
            for p, q in zip(other.parameters(), model.parameters(), strict=True):
                p.grad = q.grad.clone()
            nn.utils.clip_grad_norm_(other.parameters(), 0.1)  # here
            for p, q in zip(other.parameters(), model.parameters(), strict=True):
                if copied_back:
                    q.grad.copy_(p.grad)
            optimizer.step()
    return watch, "clip-elsewhere"


@pytest.mark.parametrize("right", [False, True])
@pytest.mark.parametrize("loop", [rate_of_a_group, warm_up, clipping_of_single_tensors, clipping_of_a_copy])
def test_a_setting_is_named_at_its_line(loop, right, tmp_path):
    watch, name = loop(tmp_path, right)
    assert not watch.broken
    if loop is rate_of_a_group and not right:  # its function has returned
        assert [f.name for f in watch.faults] == [name]
    else:
        assert [(f.name, f.site[1]) for f in watch.faults] == ([] if right else [(name, marked(loop))])


def test_findings_about_clipping_and_steps_have_lines(tmp_path):
    model = net().bfloat16()
    optimizer = SGD(model.parameters(), 1e-6)
    with gradlab.watch(model, optimizer, folder=tmp_path, quiet=True) as watch:
        for x, y in batches(64):
            optimizer.zero_grad()
            loss_of(model, (x.bfloat16(), y)).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 100.0)
            optimizer.step()
            line = inspect.currentframe().f_lineno - 1
    made = line - 6
    final = watch.loop.outputs[0].final
    lines = {finding.code: finding.evidence.get("line") for finding in final.findings}
    assert final.verdict == "updates_lost"
    assert (
        f"test_watch_settings.py:{made}: weights are kept in bfloat16, which rounds the updates off" in final.sentence
    )
    assert (lines["updates_lost"], lines["clip_idle"]) == (made, line - 1)


@pytest.mark.parametrize("before", [False, True])
def test_clipping_of_what_is_zero_is_not_said_to_be_idle(before, tmp_path):
    model = net()
    optimizer = SGD(model.parameters(), 1e-2)
    with gradlab.watch(model, optimizer, folder=tmp_path, quiet=True) as watch:
        for batch in batches(64):
            optimizer.zero_grad()
            for clip in (before, not before):
                if clip:
                    nn.utils.clip_grad_norm_(model.parameters(), 100.0)
                else:
                    loss_of(model, batch).backward()
            optimizer.step()
    final = watch.loop.outputs[0].final
    assert ("clip_idle" in final.checked) != before
