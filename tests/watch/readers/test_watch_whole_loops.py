"""Mistakes that a whole loop shows, as of two networks or of late updates: found at their lines; and their twins."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import Adam
from watched_loops import marked

import gradlab

UPDATES = 46


def net(inputs=4, outputs=2):
    return nn.Sequential(nn.Linear(inputs, 16), nn.LeakyReLU(0.2), nn.Linear(16, outputs))


def watched(models, optimizers, tmp_path):
    return gradlab.watch(models, optimizers, folder=tmp_path, quiet=True)


def scored_by(judge, made, wrong):
    return judge(made).mean() if wrong else -judge(made).mean()  # here


def a_generator_without_its_sign(tmp_path, wrong):
    maker, judge = net(), net(2, 1)
    first, second = Adam(maker.parameters(), 1e-3), Adam(judge.parameters(), 1e-3)
    with watched([maker, judge], [first, second], tmp_path) as w:
        for _ in range(6):
            made = maker(torch.randn(32, 4))
            second.zero_grad()
            (F.relu(1 - judge(torch.randn(32, 2) + 1)).mean() + F.relu(1 + judge(made.detach())).mean()).backward()
            second.step()
            first.zero_grad()
            scored_by(judge, made, wrong).backward()
            first.step()
    return w


def alone(body, heads, optimizer, x):
    loss, other = parts_of(body, heads, x)
    total = loss + 0.1 * other  # here
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return total.item()


def together(body, heads, optimizer, x):
    loss, other = parts_of(body, heads, x)
    total = loss + 0.1 * other
    optimizer.zero_grad()
    total.backward()
    optimizer.step()
    return total.item()


def a_sum_that_is_logged_alone(tmp_path, wrong, update=None):
    body, heads = net(4, 8), nn.ModuleList([nn.Linear(8, 2), nn.Linear(8, 1)])
    optimizer = Adam([*body.parameters(), *heads.parameters()], 1e-3)
    with watched([body, heads], optimizer, tmp_path) as w:
        for _ in range(UPDATES):
            (update or (alone if wrong else together))(body, heads, optimizer, torch.randn(16, 4))
    return w


def parts_of(body, heads, x):
    hidden = body(x)
    return F.cross_entropy(heads[0](hidden), (x[:, 0] > 0).long()), F.mse_loss(heads[1](hidden)[:, 0], x[:, 1])


def logged(body, heads, optimizer, x):
    hidden = body(x)
    loss = F.cross_entropy(heads[0](hidden), (x[:, 0] > 0).long())
    other = F.mse_loss(heads[1](hidden)[:, 0], x[:, 1])  # here
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{other:.3g}")


def a_head_whose_loss_is_logged_alone(tmp_path, wrong):
    return a_sum_that_is_logged_alone(tmp_path, wrong, logged if wrong else together)


def likelihood(out, y, wrong):
    mean, spread = out.chunk(2, 1)
    error = 0.5 * (y - mean).square() * (-spread).exp()  # here
    return (error if wrong else error + 0.5 * spread).mean()


def a_variance_without_its_logarithm(tmp_path, wrong):
    model = net()
    optimizer = Adam(model.parameters(), 1e-2)
    with watched(model, optimizer, tmp_path) as w:
        for _ in range(UPDATES):
            x = torch.randn(32, 4)
            optimizer.zero_grad()
            likelihood(model(x), x[:, :1] + 0.3 * torch.randn(32, 1), wrong).backward()
            optimizer.step()
    return w


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.log_scale = net(), nn.Parameter(torch.zeros(()))


def a_scale_that_is_computed_once(tmp_path, wrong):
    model = Scaled()
    optimizer = Adam(model.parameters(), 1e-3)
    once = model.log_scale.exp().item()  # here
    with watched(model, optimizer, tmp_path) as w:
        for _ in range(12):
            x = torch.randn(16, 4)
            scale = once if wrong else model.log_scale.exp()
            optimizer.zero_grad()
            F.cross_entropy(scale * model.body(x), (x[:, 0] > 0).long()).backward()
            optimizer.step()
    return w


def distance(one, two, wrong):
    return ((one - two).square().sum(1) + (0 if wrong else 1e-8)).sqrt()  # here


def a_root_that_is_zero_late(tmp_path, wrong):
    model = net()
    optimizer = Adam(model.parameters(), 1e-3)
    with watched(model, optimizer, tmp_path) as w:
        for i in range(16):
            one, two = torch.randn(16, 4), torch.randn(16, 4)
            two[0] = one[0] if i == 12 else two[0]
            optimizer.zero_grad()
            (distance(model(one), model(two), wrong) - 1).square().mean().backward()
            optimizer.step()
    return w


def a_group_that_is_frozen_as_it_was_drawn(tmp_path, wrong):
    """The twin trains it for a while, at a rate that leaves it much as it was."""
    model = net(8)
    optimizer = Adam([{"params": model[0].parameters(), "lr": 1e-4}, {"params": model[2].parameters()}], 0.01)
    begin = 0 if wrong else 20
    with watched(model, optimizer, tmp_path) as w:
        for i in range(UPDATES):
            if i == begin:
                model[0].requires_grad_(False)  # here
            x = torch.randn(32, 8)
            optimizer.zero_grad()
            F.cross_entropy(model(x), (x[:, 0] > 0).long()).backward()
            optimizer.step()
    return w


LOOPS = {
    a_group_that_is_frozen_as_it_was_drawn: ("frozen-and-forgotten", a_group_that_is_frozen_as_it_was_drawn),
    a_generator_without_its_sign: ("loss-reversed", scored_by),
    a_sum_that_is_logged_alone: ("losses-thrown-away", alone),
    a_head_whose_loss_is_logged_alone: ("losses-thrown-away", logged),
    a_variance_without_its_logarithm: ("learnt-weight-unbounded", likelihood),
    a_scale_that_is_computed_once: ("graph-cut", a_scale_that_is_computed_once),
    a_root_that_is_zero_late: ("not-finite", distance),
}


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("wrong", (True, False))
def test_a_loop_and_its_twin(loop, wrong, tmp_path):
    torch.manual_seed(0)
    w = loop(tmp_path, wrong)
    name, place = LOOPS[loop]
    assert not w.broken
    assert [(f.name, f.site[1]) for f in w.faults] == ([(name, marked(place))] if wrong else [])


def energies(model, x):
    return model(x).mean() - model(x.flip(1) + 1).mean() + 0.1 * model(x).square().mean()


def terms_that_come_later(model, x, i):
    error = F.mse_loss(model(x)[:, 0], x[:, 0])
    return error if i < 30 else error + F.mse_loss(model(x)[:, 0], -x[:, 0]) * 2 + F.l1_loss(model(x)[:, 1], x[:, 1])


@pytest.mark.parametrize("loss", (lambda m, x, i: energies(m, x), terms_that_come_later))
def test_losses_whose_level_says_nothing(loss, tmp_path):
    torch.manual_seed(0)
    model = net()
    optimizer = Adam(model.parameters(), 1e-3)
    with watched(model, optimizer, tmp_path) as w:
        for i in range(100):
            optimizer.zero_grad()
            loss(model, torch.randn(16, 4), i).backward()
            optimizer.step()
    assert not w.faults
    assert not w.loop.outputs[0].final.unhealthy


def alternating_tasks(model, optimizer, i):
    """Both are logged, and each second update is of one of them."""
    x = torch.randn(16, 4)
    out = model(x)
    one, two = F.cross_entropy(out[:, :2], (x[:, 0] > 0).long()), F.mse_loss(out[:, 2], x[:, 1])
    total = one + two
    optimizer.zero_grad()
    (one, two)[i % 2].backward()
    optimizer.step()
    return total.item()


def fed_back(model, optimizer, i):
    """What is compared with a target is fed back without its gradient."""
    x = torch.randn(16, 3)
    state, total = x, 0.0
    for _ in range(4):
        state = state.detach() + model(F.pad(state.detach(), (0, 1)))
        total = total + F.mse_loss(state, x)
    optimizer.zero_grad()
    total.backward()
    optimizer.step()


def judged_by_energy(model, optimizer, i):
    """As in an energy-based GAN: another network, which another optimizer trains, judges what is made."""
    x = torch.randn(16, 4)
    optimizer.zero_grad()
    made = model(x)
    F.mse_loss(JUDGE(made), made).backward()
    optimizer.step()
    JUDGES.zero_grad()
    (F.mse_loss(JUDGE(x[:, :3]), x[:, :3]) + F.relu(1 - F.mse_loss(JUDGE(made.detach()), made.detach()))).backward()
    JUDGES.step()


JUDGE = net(3, 3)
JUDGES = Adam(JUDGE.parameters(), 1e-3)


@pytest.mark.parametrize("update", (alternating_tasks, fed_back, judged_by_energy))
def test_a_right_loop(update, tmp_path):
    torch.manual_seed(0)
    model = copy.deepcopy(net(4, 3))
    optimizer = Adam(model.parameters(), 1e-3)
    known = ([model, JUDGE], [optimizer, JUDGES]) if update is judged_by_energy else (model, optimizer)
    with watched(*known, tmp_path) as w:
        for i in range(UPDATES):
            update(model, optimizer, i)
    assert not w.broken
    assert not w.faults
