"""Correct loops of many kinds: no mistake is reported."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import clip_grad_norm_
from watched_loops import batches, half_loss, loss_of, net

import gradlab

LOOPS = {}


def correct(loop):
    LOOPS[loop.__name__] = loop
    return loop


def watched(*parts, **given):
    return gradlab.watch(*parts, **given, quiet=True, folder="run")


def adversaries():
    torch.manual_seed(0)
    maker, judge = nn.Linear(4, 8), nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    return maker, judge, torch.optim.Adam(maker.parameters(), 1e-3), torch.optim.Adam(judge.parameters(), 1e-3)


@correct
def wasserstein_gan_with_penalty_in_fp16():
    maker, judge, m_optimizer, j_optimizer = adversaries()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8)
    with watched([maker, judge], [m_optimizer, j_optimizer], scaler) as watch:
        for i, (x, _) in enumerate(batches(20)):
            j_optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                made = maker(torch.randn(16, 4)).detach()
                loss = judge(made).mean() - judge(x).mean()
            mixed = ((x + made.float()) / 2).requires_grad_()
            (slope,) = torch.autograd.grad(judge(mixed).sum(), mixed, create_graph=True)
            scaler.scale(loss).backward()
            scaler.scale((slope.norm(dim=1) - 1).square().mean()).backward()
            scaler.step(j_optimizer)
            scaler.update()
            if i % 3 == 2:
                m_optimizer.zero_grad()
                with torch.autocast("cpu", dtype=torch.float16):
                    loss = -judge(maker(torch.randn(16, 4))).mean()
                scaler.scale(loss).backward()
                scaler.step(m_optimizer)
                scaler.update()
    return watch


@correct
def gan_with_one_scaler_update():
    maker, judge, m_optimizer, j_optimizer = adversaries()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8)
    with watched([maker, judge], [m_optimizer, j_optimizer], scaler) as watch:
        for x, _ in batches(12):
            j_optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                made = maker(torch.randn(16, 4))
                loss = F.softplus(-judge(x)).mean() + F.softplus(judge(made.detach())).mean()
            scaler.scale(loss).backward()
            scaler.unscale_(j_optimizer)
            clip_grad_norm_(judge.parameters(), 1.0)
            scaler.step(j_optimizer)
            m_optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                loss = F.softplus(-judge(made)).mean()
            scaler.scale(loss).backward()
            scaler.unscale_(m_optimizer)
            clip_grad_norm_(maker.parameters(), 1.0)
            scaler.step(m_optimizer)
            scaler.update()
    return watch


@correct
def gan_with_accumulation():
    maker, judge, m_optimizer, j_optimizer = adversaries()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8)
    with watched([maker, judge], [m_optimizer, j_optimizer], scaler) as watch:
        for i, (x, _) in enumerate(batches(24)):
            if i // 2 % 2 == 0:
                if i % 2 == 0:
                    j_optimizer.zero_grad()
                with torch.autocast("cpu", dtype=torch.float16):
                    loss = F.softplus(-judge(x)).mean() + F.softplus(judge(maker(x[:, :4]).detach())).mean()
                scaler.scale(loss / 2).backward()
                if i % 2:
                    scaler.unscale_(j_optimizer)
                    scaler.step(j_optimizer)
                    scaler.update()
            else:
                if i % 2 == 0:
                    m_optimizer.zero_grad()
                with torch.autocast("cpu", dtype=torch.float16):
                    loss = F.softplus(-judge(maker(x[:, :4]))).mean()
                scaler.scale(loss / 2).backward()
                if i % 2:
                    scaler.unscale_(m_optimizer)
                    scaler.step(m_optimizer)
                    scaler.update()
    return watch


@correct
def overflow_skipped_with_scaler_update():
    model = net()
    optimizer, scaler = torch.optim.SGD(model.parameters(), 0.1), torch.amp.GradScaler("cpu", init_scale=2.0**40)
    with watched(model, optimizer, scaler) as watch:
        for batch in batches(40):
            optimizer.zero_grad()
            scaler.scale(half_loss(model, batch)).backward()
            scaler.unscale_(optimizer)
            if not torch.isfinite(clip_grad_norm_(model.parameters(), 1.0)):
                scaler.update()
                continue
            scaler.step(optimizer)
            scaler.update()
    return watch


@correct
def actor_and_critic_over_the_same_batch():
    actor, critic = net(), net(1)
    optimizers = [torch.optim.Adam(m.parameters(), 1e-3) for m in (actor, critic)]
    with watched([actor, critic], optimizers) as watch:
        for batch in batches(5):
            for _ in range(4):
                for model, optimizer in zip((actor, critic), optimizers, strict=True):
                    optimizer.zero_grad()
                    loss_of(model, batch).backward()
                    clip_grad_norm_(model.parameters(), 0.5)
                    optimizer.step()
    return watch


@correct
def one_loss_for_two_optimizers():
    actor, critic = net(), net(1)
    first, second = (torch.optim.Adam(m.parameters(), 1e-3) for m in (actor, critic))
    with watched([actor, critic], [first, second]) as watch:
        for batch in batches(10):
            first.zero_grad()
            second.zero_grad()
            (loss_of(actor, batch) + 0.5 * loss_of(critic, batch)).backward()
            clip_grad_norm_([*actor.parameters(), *critic.parameters()], 0.5)
            first.step()
            second.step()
    return watch


@correct
def two_forward_passes_and_weight_averaging():
    model, teacher = net(), net(2)
    model.insert(2, nn.Dropout(0.2))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    average = copy.deepcopy(model)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.01, total_steps=12)
    with watched(model, optimizer, schedule=schedule) as watch:
        for x, y in batches(12):
            with torch.no_grad():
                aim = teacher(x)
            a, b = model(x), model(x)
            loss = F.cross_entropy(a, y) + F.mse_loss(a, b) + 0.1 * F.mse_loss(a, aim)
            optimizer.zero_grad(set_to_none=False)
            loss.backward()
            optimizer.step()
            schedule.step()
            for p, q in zip(average.parameters(), model.parameters(), strict=True):
                p.data.lerp_(q.data, 0.1)
    return watch


@correct
def averaged_gradients_of_two_tasks():
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with watched(model, optimizer) as watch:
        for one, two in zip(batches(8), batches(8, 2), strict=True):
            kept = []
            for batch in (one, two):
                optimizer.zero_grad()
                loss_of(model, batch).backward()
                kept.append([p.grad.clone() for p in model.parameters()])
            for p, a, b in zip(model.parameters(), *kept, strict=True):
                p.grad = (a + b) / 2
            optimizer.step()
    return watch


@correct
def two_parameter_groups():
    model = net()
    groups = [{"params": [p for p in model.parameters() if p.dim() == d], "lr": 0.1 / d} for d in (1, 2)]
    optimizer = torch.optim.SGD(groups, momentum=0.9)
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
    with watched(model, optimizer, schedule=schedule) as watch:
        for _ in range(3):
            total = 0.0
            for batch in batches(6):
                optimizer.zero_grad()
                loss = loss_of(model, batch)
                loss.backward()
                optimizer.step()
                total += loss.item()
            schedule.step(total)
    return watch


@correct
def two_optimizers_of_one_model():
    model = net()
    first, second = torch.optim.SGD(model[0].parameters(), 0.1), torch.optim.SGD(model[2].parameters(), 0.1)
    with watched(model, [first, second]) as watch:
        for batch in batches(10):
            model.zero_grad()
            loss_of(model, batch).backward()
            first.step()
            second.step()
    return watch


@correct
def disabled_scaler():
    model = net()
    optimizer, scaler = torch.optim.SGD(model.parameters(), 0.1), torch.amp.GradScaler("cpu", enabled=False)
    with watched(model, optimizer, scaler) as watch:
        for i, batch in enumerate(batches(12)):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = loss_of(model, batch) / 3
            scaler.scale(loss).backward()
            if i % 3 == 2:
                scaler.unscale_(optimizer)
                clip_grad_norm_(model.parameters(), 1.0)
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
    return watch


@correct
def validation_inside_the_window():
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with watched(model, optimizer) as watch:
        for i, batch in enumerate(batches(12)):
            (loss_of(model, batch) / 4).backward()
            if i % 4 == 1:
                model.eval()
                probe = torch.zeros(2, 8, requires_grad=True)
                torch.autograd.grad(model(probe).sum(), probe)
                model.train()
            if i % 4 == 3:
                optimizer.step()
                optimizer.zero_grad()
    return watch


@pytest.mark.parametrize("name", LOOPS)
def test_no_mistake_is_reported(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    watch = LOOPS[name]()
    assert not watch.broken
    assert [(fault.line, fault.update) for fault in watch.faults] == []
    assert all(output.num_updates >= 3 for output in watch.loop.outputs)
