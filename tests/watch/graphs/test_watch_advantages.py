"""Advantages and gradients that are not finite: each mistake at its line, and nothing in its correct twin."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD, Adam
from watched_loops import batches, loss_of, net
from watched_twins import Twins, actor_and_critic, chosen

pytestmark = pytest.mark.filterwarnings("ignore:.parameters. is an empty generator")
TWINS = Twins()
wrong, right = TWINS.wrong, TWINS.right


@wrong("advantage-not-detached")
def advantage_in_one_loss(watch):
    actor, critic = actor_and_critic()
    both = nn.ModuleList([actor, critic])
    optimizer = Adam(both.parameters(), 1e-3)
    with watch(both, optimizer) as w:
        for x, _ in batches(6):
            log_prob, reward = chosen(actor, x)
            advantage = reward - critic(x).squeeze(-1)
            optimizer.zero_grad()
            (-(log_prob * advantage).mean() + 0.5 * advantage.square().mean()).backward()  # here
            optimizer.step()
    return w


@wrong("advantage-not-detached", optimizer=1)
def advantage_of_a_ratio_and_two_optimizers(watch):
    actor, critic = actor_and_critic()
    optimizers = [Adam(actor.parameters(), 1e-3), Adam(critic.parameters(), 1e-3)]
    with watch([actor, critic], optimizers) as w:
        for x, _ in batches(6):
            log_prob, reward = chosen(actor, x)
            error = reward - critic(x).squeeze(-1)
            advantage = (error - error.mean()) / (error.std() + 1e-8)
            for optimizer in optimizers:
                optimizer.zero_grad()
            ratio = (log_prob - log_prob.detach()).exp()
            (-torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()).backward()  # here
            F.smooth_l1_loss(critic(x).squeeze(-1), reward).backward()
            for optimizer in optimizers:
                optimizer.step()
    return w


@right
def advantages_that_are_detached_or_zeroed(watch):
    actor, critic = actor_and_critic()
    optimizers = [Adam(actor.parameters(), 1e-3), Adam(critic.parameters(), 1e-3)]
    with watch([actor, critic], optimizers) as w:
        for i, (x, _) in enumerate(batches(8)):
            log_prob, reward = chosen(actor, x)
            advantage = reward - critic(x).squeeze(-1)
            optimizers[0].zero_grad()
            (-(log_prob * (advantage if i % 2 else advantage.detach())).mean()).backward()
            optimizers[0].step()
            optimizers[1].zero_grad()
            (reward - critic(x).squeeze(-1)).square().mean().backward()
            optimizers[1].step()
    return w


@right
def an_error_over_its_own_width(watch):
    """Of a Gaussian whose mean is regressed as well."""
    mean, width = net(), net(1)
    both = nn.ModuleList([mean, width])
    optimizer = Adam(both.parameters(), 1e-3)
    with watch(both, optimizer) as w:
        for x, _ in batches(6):
            log_width = width(x)
            error = (x[:, :4] - mean(x)) * torch.exp(-log_width)
            optimizer.zero_grad()
            (error.square().mean() + log_width.mean() + F.mse_loss(mean(x), x[:, :4])).backward()
            optimizer.step()
    return w


def root_at_zero(model, batch, i):
    """The gradient of every third batch is not finite, and its loss is."""
    out = model(batch[0])
    return F.cross_entropy(out, batch[1]) + (torch.sqrt((out - out.detach()).square().sum()) if i % 3 == 2 else 0)


@wrong("not-finite-replaced")
def nan_to_number(watch):
    model = net()
    optimizer = SGD(model.parameters(), 0.1)
    with watch(model, optimizer) as w:
        for i, batch in enumerate(batches(9)):
            optimizer.zero_grad()
            root_at_zero(model, batch, i).backward()  # here
            for p in model.parameters():
                torch.nan_to_num_(p.grad)
            optimizer.step()
    assert [(fault.update, fault.times) for fault in w.faults] == [(3, 3)]
    return w


@wrong("not-finite-replaced")
def nan_set_to_zero_in_a_window(watch):
    model = net()
    optimizer = SGD(model.parameters(), 0.1)
    with watch(model, optimizer) as w:
        for i, batch in enumerate(batches(18)):
            (root_at_zero(model, batch, i) / 2).backward()  # here
            if i % 2:
                for p in model.parameters():
                    p.grad[~p.grad.isfinite()] = 0
                optimizer.step()
                optimizer.zero_grad()
    return w


@right
def finite_gradients_are_made_sure_of(watch):
    model = net()
    optimizer = SGD(model.parameters(), 0.1)
    with watch(model, optimizer) as w:
        for batch in batches(9):
            optimizer.zero_grad()
            loss_of(model, batch).backward()
            for p in model.parameters():
                torch.nan_to_num_(p.grad)
            optimizer.step()
    return w


@right
def updates_that_are_not_finite_are_left_out(watch):
    """Written to first, so that the gradients are measured."""
    model = net()
    optimizer = SGD(model.parameters(), 0.1)
    with watch(model, optimizer) as w:
        for i, batch in enumerate(batches(9)):
            optimizer.zero_grad()
            root_at_zero(model, batch, i).backward()
            for p in model.parameters():
                p.grad.mul_(0.5)
            if all(p.grad.isfinite().all() for p in model.parameters()):
                optimizer.step()
    return w


@pytest.mark.parametrize("name", TWINS.of_mistakes)
def test_a_mistake_is_reported_at_its_line(name, tmp_path):
    TWINS.check_mistake(name, tmp_path)


@pytest.mark.parametrize("name", TWINS.of_right_loops)
def test_its_correct_twin_has_none(name, tmp_path):
    TWINS.check_right_loop(name, tmp_path)
