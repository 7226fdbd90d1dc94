"""Windows of micro-batches, schedules and clip bounds: each mistake beside its correct counterpart."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import clip_grad_norm_, clip_grad_value_
from torch.optim import lr_scheduler
from watched_loops import batches, loss_of, marked, net, run

import gradlab

pytestmark = [
    pytest.mark.filterwarnings("ignore:Detected call of .lr_scheduler.step"),
    pytest.mark.filterwarnings("ignore:The epoch parameter in"),
]
"""Schedules are stepped too early, or with an epoch, on purpose."""


def reported(watch):
    assert not watch.broken
    return [(fault.code, fault.site[1], fault.update) for fault in watch.faults]


def divided_manually(model, optimizer, scaler, schedule, each=True):
    for i, batch in enumerate(batches(8)):
        loss_of(model, batch).backward()  # here
        if each or i % 4 == 3:
            for p in model.parameters():
                p.grad /= 4
        if i % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()


def divided_manually_later(model, optimizer, scaler, schedule):
    """In windows that begin after updates of one pass: seen from their second pass on."""
    for i, batch in enumerate(batches(16)):
        loss_of(model, batch).backward()  # here
        if i >= 4:
            for p in model.parameters():
                p.grad /= 4
        if i < 4 or i % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()


def two_losses(model, optimizer, scaler, schedule, divided=False):
    for i, (x, y) in enumerate(batches(8)):
        out = model(x)
        loss = F.cross_entropy(out, y) + 0.1 * F.mse_loss(out, x[:, :4])
        (loss / 4 if divided else loss).backward()  # here
        if i % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()


def two_losses_divided(model, optimizer, scaler, schedule):
    two_losses(model, optimizer, scaler, schedule, divided=True)


def multiplied_by_one(model, optimizer, scaler, schedule):
    for i, batch in enumerate(batches(8)):
        loss_of(model, batch).backward()
        for p in model.parameters():
            p.grad *= 1.0
        if i % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()


def running_mean(model, optimizer, scaler, schedule):
    for i, batch in enumerate(batches(8)):
        k = i % 4
        for p in model.parameters():
            if k:
                p.grad *= k / (k + 1)
        (loss_of(model, batch) / (k + 1)).backward()
        if k == 3:
            optimizer.step()
            optimizer.zero_grad()


def remainder_dropped(model, optimizer, scaler, schedule, count=7):
    for _ in range(2):
        optimizer.zero_grad()  # here
        for i, batch in enumerate(batches(count)):
            (loss_of(model, batch) / 2).backward()
            if i % 2:
                optimizer.step()
                optimizer.zero_grad()


def stepped_at_the_first(model, optimizer, scaler, schedule, first=0):
    for i, batch in enumerate(batches(12), first):
        (loss_of(model, batch) / 4).backward()
        if i % 4 == 0:  # here
            optimizer.step()
            optimizer.zero_grad()


def two_terms(model, optimizer, scaler, schedule, listed=True):
    def term(x, y):
        loss_of(model, (x, y)).backward()

    for x, y in batches(8):
        optimizer.zero_grad()
        if listed:
            for each in (x, x + 0.1):
                loss_of(model, (each, y)).backward()
        else:
            term(x, y)
            term(x + 0.1, y)
        optimizer.step()


def tokens(model, optimizer, scaler, schedule, last=False):
    for i, (x, y) in enumerate(batches(8)):
        if (i % 4 == 3) if last else i % 2:
            y = torch.where(torch.arange(16) < 4, -100, y)
        (F.cross_entropy(model(x), y) / 4).backward()  # here
        if i % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()


def stepped_first(model, optimizer, scaler, schedule):
    for batch in batches(4):
        schedule.step()  # here
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        optimizer.step()


def stepped_first_in_epoch(model, optimizer, scaler, schedule):
    for _ in range(3):
        schedule.step()  # here
        for batch in batches(4):
            optimizer.zero_grad()
            loss_of(model, batch).backward()
            optimizer.step()


def stepped_with_epoch_number(model, optimizer, scaler, schedule):
    for epoch in range(3):
        schedule.step(epoch)
        for batch in batches(4):
            optimizer.zero_grad()
            loss_of(model, batch).backward()
            optimizer.step()


def cosine(model, optimizer, length):
    schedule = lr_scheduler.CosineAnnealingLR(optimizer, length)  # here
    for i, batch in enumerate(batches(12)):
        (loss_of(model, batch) / 4).backward()
        if i % 4 == 3:
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()


def too_long(model, optimizer, scaler, schedule):
    cosine(model, optimizer, 12)


def long_enough(model, optimizer, scaler, schedule):
    cosine(model, optimizer, 3)


def sequential(model, optimizer, scaler, schedule):
    parts = [lr_scheduler.ConstantLR(optimizer), lr_scheduler.ExponentialLR(optimizer, 0.9)]
    schedule = lr_scheduler.SequentialLR(optimizer, parts, [2])
    for batch in batches(6):
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        optimizer.step()
        schedule.step()


def by_value(model, optimizer, scaler, schedule):
    for batch in batches(4):
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        clip_grad_value_(model.parameters(), 0.5)  # here
        optimizer.step()


def extreme_bound(model, optimizer, scaler, schedule, bound=0.01):
    for batch in batches(4):
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        clip_grad_norm_(model.parameters(), bound)  # here
        optimizer.step()


WRONG = [
    (divided_manually, "GL303", 1),
    (divided_manually_later, "GL303", 5),
    (two_losses, "GL301", 1),
    (remainder_dropped, "GL307", 4),
    (stepped_at_the_first, "GL308", 1),
    (tokens, "GL805", 1),
    (stepped_first, "GL402", 2),
    (stepped_first_in_epoch, "GL404", 5),
    (by_value, "GL801", 1),
    (extreme_bound, "GL802", 1),
]


@pytest.mark.parametrize("loop, code, update", WRONG, ids=lambda v: getattr(v, "__name__", None))
def test_a_mistake_is_reported_at_its_line_and_first_update(loop, code, update, tmp_path):
    assert reported(run(loop, tmp_path)) == [(code, marked(loop), update)]


def test_a_schedule_that_counts_micro_batches(tmp_path):
    assert reported(run(too_long, tmp_path)) == [("GL403", marked(cosine), None)]


RIGHT = [
    lambda *parts: divided_manually(*parts, each=False),
    running_mean,
    two_losses_divided,
    multiplied_by_one,
    lambda *parts: remainder_dropped(*parts, count=8),
    two_terms,
    lambda *parts: two_terms(*parts, listed=False),
    lambda *parts: stepped_at_the_first(*parts, first=1),
    lambda *parts: tokens(*parts, last=True),
    stepped_with_epoch_number,
    long_enough,
    sequential,
    lambda *parts: extreme_bound(*parts, bound=0.5),
]


@pytest.mark.parametrize("loop", RIGHT)
def test_a_correct_loop_has_no_mistakes(loop, tmp_path):
    assert reported(run(loop, tmp_path)) == []


class TinyResNet(nn.Sequential):
    """Recognized by its name."""


def test_a_tight_bound_is_reported_for_a_resnet(tmp_path):
    model = TinyResNet(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
    for bound, codes in ((1.0, ["GL804"]), (5.0, [])):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with gradlab.watch(model, optimizer, folder=tmp_path, quiet=True) as watch:
            extreme_bound(model, optimizer, None, None, bound)
        assert [fault.code for fault in watch.faults] == codes


def test_a_schedule_that_was_not_passed_to_the_watch(tmp_path):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = lr_scheduler.StepLR(optimizer, 5)
    with gradlab.watch(model, optimizer, folder=tmp_path, quiet=True) as watch:
        for batch in batches(4):
            optimizer.zero_grad()
            loss_of(model, batch).backward()
            schedule.step()
            optimizer.step()
    assert [fault.code for fault in watch.faults] == ["GL402"]
