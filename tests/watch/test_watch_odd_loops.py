"""Odd but correct loops of many kinds: nothing is reported of any, and none is called unhealthy."""

import copy
import itertools
import os
import sys

import pytest
import torch
import torch.utils.checkpoint
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import clip_grad_norm_
from torch.optim import LBFGS, SGD, Adam, AdamW
from watched_loops import batches, half_loss, loss_of, net

import gradlab

LONG = ("wasserstein_with_clipped_weights", "gan_with_both_losses_before_both_steps", "soft_actor_critic")
"""Also run for as many updates as losses are judged by."""
N = int(os.environ.get("ODD_UPDATES", "14"))
"""Updates of each loop; more of them let more rules judge."""
LOOPS = {}


def odd(loop):
    LOOPS[loop.__name__] = loop
    return loop


def adversaries(rate=1e-3):
    torch.manual_seed(0)
    maker, judge = nn.Linear(4, 8), nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    return maker, judge, Adam(maker.parameters(), rate), Adam(judge.parameters(), rate)


def trunk_and_heads():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh()), nn.Linear(16, 4), nn.Linear(16, 4)


# Adversaries


@odd
def gan_with_labels_smoothed_and_two_judge_steps(watch):
    maker, judge, m, j = adversaries()
    with watch([maker, judge], [m, j]) as w:
        for x, _ in batches(N):
            for _ in range(2):
                j.zero_grad()
                real, made = judge(x), judge(maker(torch.randn(16, 4)).detach())
                F.binary_cross_entropy_with_logits(real, 0.9 * torch.ones_like(real)).backward()
                F.binary_cross_entropy_with_logits(made, torch.zeros_like(made)).backward()
                j.step()
            m.zero_grad()
            (-F.logsigmoid(judge(maker(torch.randn(16, 4))))).mean().backward()
            m.step()
    return w


@odd
def gan_with_both_losses_before_both_steps(watch):
    maker, judge, m, j = adversaries()
    with watch([maker, judge], [m, j]) as w:
        for x, _ in batches(N):
            m.zero_grad()
            j.zero_grad()
            made = maker(torch.randn(16, 4))
            (-F.logsigmoid(judge(made))).mean().backward(inputs=list(maker.parameters()))
            (F.softplus(-judge(x)) + F.softplus(judge(made.detach()))).mean().backward(inputs=list(judge.parameters()))
            clip_grad_norm_(itertools.chain(maker.parameters(), judge.parameters()), 5.0)
            m.step()
            j.step()
    return w


@odd
def gradient_reversal(watch):
    trunk, head, domain = trunk_and_heads()

    class Reversed(torch.autograd.Function):
        @staticmethod
        def forward(context, x):
            return x.view_as(x)

        @staticmethod
        def backward(context, grad):
            return -0.1 * grad

    optimizers = [SGD(m.parameters(), 0.1) for m in (trunk, head, domain)]
    with watch([trunk, head, domain], optimizers) as w:
        for x, y in batches(N):
            for o in optimizers:
                o.zero_grad()
            h = trunk(x)
            (F.cross_entropy(head(h), y) + F.cross_entropy(domain(Reversed.apply(h)), y % 2)).backward()
            for o in optimizers:
                o.step()
    return w


@odd
def wasserstein_with_clipped_weights(watch):
    maker, judge, m, j = adversaries()
    with watch([maker, judge], [m, j]) as w:
        for i, (x, _) in enumerate(batches(N * 3)):
            j.zero_grad()
            (judge(maker(torch.randn(16, 4)).detach()).mean() - judge(x).mean()).backward()
            j.step()
            with torch.no_grad():
                for p in judge.parameters():
                    p.clamp_(-0.1, 0.1)
            if i % 3 == 2:
                m.zero_grad()
                (-judge(maker(torch.randn(16, 4))).mean()).backward()
                m.step()
    return w


@odd
def free_adversarial_training(watch):
    """The gradient of the input is used too."""
    model = net()
    optimizer = SGD(model.parameters(), 0.1)
    with watch(model, optimizer) as w:
        for x, y in batches(N // 2):
            delta = torch.zeros_like(x, requires_grad=True)
            for _ in range(2):
                optimizer.zero_grad()
                F.cross_entropy(model(x + delta), y).backward()
                delta.data = (delta + 0.05 * delta.grad.sign()).clamp(-0.1, 0.1)
                delta.grad.zero_()
                optimizer.step()
    return w


@odd
def attacked_in_eval_and_trained_in_train(watch):
    model = net()
    model.insert(2, nn.Dropout(0.2))
    optimizer = SGD(model.parameters(), 0.1)
    with watch(model, optimizer) as w:
        for x, y in batches(N):
            model.eval()
            with torch.no_grad():
                model(x)
            moved = x.clone().requires_grad_()
            (slope,) = torch.autograd.grad(F.cross_entropy(model(moved), y), moved)
            model.train()
            optimizer.zero_grad()
            F.cross_entropy(model(x + 0.05 * slope.sign()), y).backward()
            optimizer.step()
    return w


# Reinforcement learning


@odd
def soft_actor_critic(watch):
    torch.manual_seed(0)
    actor, critic = nn.Linear(8, 2), nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 1))
    target, temperature = copy.deepcopy(critic).requires_grad_(False), torch.zeros((), requires_grad=True)
    a, c, t = Adam(actor.parameters(), 1e-3), Adam(critic.parameters(), 1e-3), Adam([temperature], 1e-3)
    with watch([actor, critic], [a, c, t]) as w:
        for x, y in batches(N):
            with torch.no_grad():
                goal = y[:, None].float() + 0.9 * target(torch.cat([x, actor(x)], 1))
            c.zero_grad()
            F.mse_loss(critic(torch.cat([x, torch.randn(16, 2)], 1)), goal).backward()
            c.step()
            a.zero_grad()
            action = actor(x) + 0.1 * torch.randn(16, 2)
            (temperature.exp().detach() * action.square().mean() - critic(torch.cat([x, action], 1)).mean()).backward()
            a.step()
            t.zero_grad()
            (-temperature * (action.square().mean().detach() - 1)).backward()
            t.step()
            for p, q in zip(target.parameters(), critic.parameters(), strict=True):
                p.data.lerp_(q.data, 0.05)
    return w


@odd
def policy_gradient_over_an_episode(watch):
    policy = net()
    optimizer = Adam(policy.parameters(), 1e-2)
    with watch(policy, optimizer) as w:
        for episode in range(N):
            chances = []
            for x, y in batches(3, episode):
                picked = torch.distributions.Categorical(logits=policy(x))
                action = picked.sample()
                chances.append((picked.log_prob(action) * ((action == y).float() - 0.25)).mean())
            optimizer.zero_grad()
            (-torch.stack(chances).sum()).backward()
            optimizer.step()
    return w


@odd
def delayed_policy_with_target_networks(watch):
    torch.manual_seed(0)
    actor, critic = nn.Linear(8, 2), nn.Linear(10, 1)
    targets = copy.deepcopy(actor), copy.deepcopy(critic)
    a, c = Adam(actor.parameters(), 1e-3), Adam(critic.parameters(), 1e-3)
    with watch([actor, critic], [a, c]) as w:
        for i, (x, y) in enumerate(batches(N * 2)):
            goal = y[:, None].float() + 0.9 * targets[1](torch.cat([x, targets[0](x)], 1)).detach()
            c.zero_grad()
            F.smooth_l1_loss(critic(torch.cat([x, torch.randn(16, 2)], 1)), goal).backward()
            c.step()
            if i % 2 == 0:
                a.zero_grad()
                (-critic(torch.cat([x, actor(x)], 1)).mean()).backward()
                a.step()
    return w


@odd
def recurrent_state_carried_over(watch):
    torch.manual_seed(0)
    cell, head = nn.GRUCell(8, 16), nn.Linear(16, 4)
    optimizer = Adam([*cell.parameters(), *head.parameters()], 1e-2)
    state = torch.zeros(16, 16)
    with watch([cell, head], optimizer) as w:
        loss = 0.0
        for i, (x, y) in enumerate(batches(N * 3)):
            state = cell(x, state)
            loss = loss + F.cross_entropy(head(state), y) / 3
            if i % 3 == 2:
                optimizer.zero_grad()
                loss.backward()
                clip_grad_norm_(cell.parameters(), 1.0)
                optimizer.step()
                state, loss = state.detach(), 0.0
    return w


# Gradients of gradients and of several losses


@odd
def reptile(watch):
    model = net()
    outer = SGD(model.parameters(), 0.5)
    with watch(model, outer) as w:
        for task in range(N):
            fast = copy.deepcopy(model)
            inner = SGD(fast.parameters(), 0.1)
            for batch in batches(2, task):
                inner.zero_grad()
                loss_of(fast, batch).backward()
                inner.step()
            outer.zero_grad()
            for p, q in zip(model.parameters(), fast.parameters(), strict=True):
                p.grad = p.data - q.data
            outer.step()
    return w


@odd
def second_order_meta_learning(watch):
    model = net()
    outer = Adam(model.parameters(), 1e-2)
    names, params = zip(*model.named_parameters(), strict=True)
    with watch(model, outer) as w:
        for task in range(N):
            (x, y), (u, v) = batches(2, task)
            slopes = torch.autograd.grad(loss_of(model, (x, y)), params, create_graph=True)
            fast = {n: p - 0.1 * g for n, p, g in zip(names, params, slopes, strict=True)}
            outer.zero_grad()
            F.cross_entropy(torch.func.functional_call(model, fast, (u,)), v).backward()
            outer.step()
    return w


@odd
def first_order_meta_learning_over_tasks(watch):
    model = net()
    outer = Adam(model.parameters(), 1e-2)
    with watch(model, outer) as w:
        for task in range(N):
            outer.zero_grad()
            for (x, y), (u, v) in zip(batches(3, task), batches(3, task + 99), strict=True):
                fast = copy.deepcopy(model)
                for p, g in zip(
                    fast.parameters(), torch.autograd.grad(loss_of(fast, (x, y)), fast.parameters()), strict=True
                ):
                    p.data.sub_(0.1 * g)
                for p, g in zip(
                    model.parameters(), torch.autograd.grad(loss_of(fast, (u, v)), fast.parameters()), strict=True
                ):
                    p.grad = g / 3 if p.grad is None else p.grad + g / 3
            outer.step()
    return w


@odd
def gradient_norms_balanced(watch):
    """GradNorm: weights of the losses are trained by how fast each of them falls."""
    trunk, one, two = trunk_and_heads()
    weights = torch.ones(2, requires_grad=True)
    optimizer, second = Adam([*trunk.parameters(), *one.parameters(), *two.parameters()], 1e-3), Adam([weights], 1e-2)
    with watch([trunk, one, two], [optimizer, second]) as w:
        for x, y in batches(N):
            h = trunk(x)
            losses = torch.stack([F.cross_entropy(one(h), y), F.cross_entropy(two(h), y.flip(0))])
            optimizer.zero_grad()
            (weights.detach() * losses).sum().backward(retain_graph=True)
            norms = [
                torch.autograd.grad(k * loss, trunk[0].weight, create_graph=True)[0].norm()
                for k, loss in zip(weights, losses, strict=True)
            ]
            second.zero_grad()
            (weights.grad,) = torch.autograd.grad((norms[0] - norms[1]).abs(), weights)
            second.step()
            optimizer.step()
    return w


@odd
def physics_informed(watch):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = Adam(model.parameters(), 1e-2)
    with watch(model, optimizer) as w:
        for _ in range(N):
            t = torch.rand(32, 1, requires_grad=True)
            u = model(t)
            (slope,) = torch.autograd.grad(u, t, torch.ones_like(u), create_graph=True)
            optimizer.zero_grad()
            ((slope + u).square().mean() + (model(torch.zeros(1, 1)) - 1).square().mean()).backward()
            optimizer.step()
    return w


@odd
def look_ahead_weights(watch):
    model = net()
    optimizer = SGD(model.parameters(), 0.1)
    slow = [p.detach().clone() for p in model.parameters()]
    with watch(model, optimizer) as w:
        for i, batch in enumerate(batches(N)):
            optimizer.zero_grad()
            loss_of(model, batch).backward()
            optimizer.step()
            if i % 5 == 4:
                with torch.no_grad():
                    for p, s in zip(model.parameters(), slow, strict=True):
                        s.lerp_(p, 0.5)
                        p.copy_(s)
    return w


@odd
def noise_is_added_to_gradients(watch):
    model = net()
    optimizer = SGD(model.parameters(), 0.1)
    with watch(model, optimizer) as w:
        for batch in batches(N):
            optimizer.zero_grad()
            loss_of(model, batch).backward()
            clip_grad_norm_(model.parameters(), 1.0)
            for p in model.parameters():
                p.grad += 0.01 * torch.randn_like(p)
            optimizer.step()
    return w


@odd
def samples_one_by_one(watch):
    model = net()
    optimizer = SGD(model.parameters(), 0.1)
    with watch(model, optimizer) as w:
        for x, y in batches(N):
            total = [torch.zeros_like(p) for p in model.parameters()]
            for i in range(4):
                optimizer.zero_grad()
                F.cross_entropy(model(x[i : i + 1]), y[i : i + 1]).backward()
                clip_grad_norm_(model.parameters(), 1.0)
                total = [t + p.grad for t, p in zip(total, model.parameters(), strict=True)]
            optimizer.zero_grad()
            for p, t in zip(model.parameters(), total, strict=True):
                p.grad = t / 4
            optimizer.step()
    return w


# Phases and parts


@odd
def blocks_in_turn(watch):
    model = net()
    optimizers = [SGD(model[i].parameters(), 0.1) for i in (0, 2)]
    with watch(model, optimizers) as w:
        for i, batch in enumerate(batches(N * 2)):
            model.zero_grad()
            loss_of(model, batch).backward()
            optimizers[i // 5 % 2].step()
    return w


@odd
def expectation_and_maximization(watch):
    """Fifteen updates of one network with the other frozen, then the reverse; one optimizer for both."""
    trunk, head, _ = trunk_and_heads()
    optimizer = SGD([*trunk.parameters(), *head.parameters()], 0.1)
    with watch([trunk, head], optimizer) as w:
        for i, (x, y) in enumerate(batches(N * 3)):
            trunk.requires_grad_(i // 15 % 2 == 0)
            head.requires_grad_(i // 15 % 2 == 1)
            optimizer.zero_grad()
            F.cross_entropy(head(trunk(x)), y).backward()
            optimizer.step()
    return w


@odd
def head_first_then_all(watch):
    trunk, head, _ = trunk_and_heads()
    model = nn.Sequential(trunk, head)
    trunk.requires_grad_(False)
    optimizer = AdamW(model.parameters(), 1e-2)
    with watch(model, optimizer) as w:
        for i, batch in enumerate(batches(N)):
            if i == N // 2:
                trunk.requires_grad_(True)
            optimizer.zero_grad()
            loss_of(model, batch).backward()
            clip_grad_norm_(trunk.parameters(), 1.0)
            clip_grad_norm_(head.parameters(), 1.0)
            optimizer.step()
    return w


@odd
def head_first_in_two_optimizers(watch):
    trunk, head, _ = trunk_and_heads()
    model = nn.Sequential(trunk, head)
    trunk.requires_grad_(False)
    optimizers = [AdamW(m.parameters(), 1e-2) for m in (head, trunk)]
    with watch(model, optimizers) as w:
        for i, batch in enumerate(batches(N * 2)):
            if i == N:
                trunk.requires_grad_(True)
            for o in optimizers:
                o.zero_grad()
            loss_of(model, batch).backward()
            for o in optimizers:
                o.step()
    return w


@odd
def random_depth(watch):
    torch.manual_seed(0)
    blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(6))
    head = nn.Linear(8, 4)
    optimizer = SGD([*blocks.parameters(), *head.parameters()], 0.1)
    with watch([blocks, head], optimizer) as w:
        for i, (x, y) in enumerate(batches(N)):
            for k, block in enumerate(blocks):
                x = x + block(x) if (i + k) % 3 else x
            optimizer.zero_grad()
            F.cross_entropy(head(x), y).backward()
            optimizer.step()
    return w


@odd
def experts_one_a_batch(watch):
    torch.manual_seed(0)
    experts = nn.ModuleList(net(i) for i in range(5))
    optimizer = SGD(experts.parameters(), 0.1)
    with watch(experts, optimizer) as w:
        for i, batch in enumerate(batches(N * 2)):
            optimizer.zero_grad()
            loss_of(experts[i % 5], batch).backward()
            optimizer.step()
    return w


@odd
def adapters_beside_frozen_weights(watch):
    model, down, up = net().requires_grad_(False), nn.Linear(8, 2, bias=False), nn.Linear(2, 4, bias=False)
    nn.init.zeros_(up.weight)
    optimizer = AdamW([*down.parameters(), *up.parameters()], 1e-2)
    with watch([model, down, up], optimizer) as w:
        for x, y in batches(N):
            optimizer.zero_grad()
            F.cross_entropy(model(x) + up(down(x)), y).backward()
            optimizer.step()
    return w


# Averages and teachers


@odd
def averaged_teacher_in_eval(watch):
    model = net()
    model.insert(2, nn.Dropout(0.2))
    teacher = copy.deepcopy(model).eval().requires_grad_(False)
    optimizer = AdamW(model.parameters(), 1e-2)
    with watch([model, teacher], optimizer) as w:
        for x, y in batches(N):
            with torch.no_grad():
                aim = teacher(x)
            optimizer.zero_grad()
            (F.cross_entropy(model(x), y) + F.mse_loss(model(x + 0.1), aim)).backward()
            optimizer.step()
            for p, q in zip(teacher.parameters(), model.parameters(), strict=True):
                p.data.lerp_(q.data, 0.05)
    return w


@odd
def stochastic_weight_averaging(watch):
    model = net()
    optimizer = SGD(model.parameters(), 0.1, momentum=0.9)
    average = torch.optim.swa_utils.AveragedModel(model)
    schedule = torch.optim.swa_utils.SWALR(optimizer, swa_lr=0.05, anneal_epochs=2)
    with watch(model, optimizer, None, schedule) as w:
        for epoch in range(4):
            for batch in batches(N // 3):
                optimizer.zero_grad()
                loss_of(model, batch).backward()
                optimizer.step()
            if epoch > 1:
                average.update_parameters(model)
                schedule.step()
    return w


@odd
def momentum_contrast(watch):
    query = nn.Linear(8, 6)
    key = copy.deepcopy(query)
    optimizer = SGD(query.parameters(), 0.1)
    queue = F.normalize(torch.randn(32, 6), dim=1)
    with watch(query, optimizer) as w:
        for x, _ in batches(N):
            q = F.normalize(query(x + 0.05 * torch.randn_like(x)), dim=1)
            with torch.no_grad():
                for p, s in zip(key.parameters(), query.parameters(), strict=True):
                    p.lerp_(s, 0.1)
                k = F.normalize(key(x), dim=1)
            logits = torch.cat([(q * k).sum(1, keepdim=True), q @ queue.T], 1) / 0.2
            optimizer.zero_grad()
            F.cross_entropy(logits, torch.zeros(16, dtype=torch.long)).backward()
            optimizer.step()
            queue = torch.cat([k, queue])[:32]
    return w


# Steps


@odd
def quasi_newton(watch):
    model = net()
    optimizer = LBFGS(model.parameters(), 0.5, max_iter=4, line_search_fn="strong_wolfe")
    batch = next(batches(1))
    with watch(model, optimizer) as w:
        for _ in range(N):

            def closure():
                optimizer.zero_grad()
                loss = loss_of(model, batch)
                loss.backward()
                clip_grad_norm_(model.parameters(), 10.0)
                return loss

            optimizer.step(closure)
    return w


@odd
def adam_then_quasi_newton(watch):
    model = net()
    first, second = Adam(model.parameters(), 1e-2), LBFGS(model.parameters(), 0.1, max_iter=3)
    with watch(model, [first, second]) as w:
        for i, batch in enumerate(batches(N)):

            def closure(batch=batch):
                model.zero_grad()
                loss = loss_of(model, batch)
                loss.backward()
                return loss

            if i < N // 2:
                closure()
                first.step()
            else:
                second.step(closure)
    return w


@odd
def remainder_weighted_by_its_own_length(watch):
    model = net()
    optimizer = SGD(model.parameters(), 0.1)
    with watch(model, optimizer) as w:
        for _ in range(3):
            total = 4 * (N // 4) + 3
            for i, batch in enumerate(batches(total)):
                (loss_of(model, batch) / min(4, total - i // 4 * 4)).backward()
                if i % 4 == 3 or i + 1 == total:
                    clip_grad_norm_(model.parameters(), 1.0)
                    optimizer.step()
                    optimizer.zero_grad()
    return w


@odd
def windows_that_grow(watch):
    model = net()
    optimizer = SGD(model.parameters(), 0.1)
    with watch(model, optimizer) as w:
        for window in range(1, N // 2):
            for batch in batches(window):
                (loss_of(model, batch) / window).backward()
            optimizer.step()
            optimizer.zero_grad()
    return w


@odd
def summed_losses_divided_by_tokens_of_the_window(watch):
    model = net()
    optimizer = SGD(model.parameters(), 0.1)
    with watch(model, optimizer) as w:
        for update in range(N):
            window = [(x[: 4 * (i + 1)], y[: 4 * (i + 1)]) for i, (x, y) in enumerate(batches(3, update))]
            tokens = sum(len(y) for _, y in window)
            for x, y in window:
                (F.cross_entropy(model(x), y, reduction="sum") / tokens).backward()
            optimizer.step()
            optimizer.zero_grad()
    return w


@odd
def an_optimizer_for_each_parameter(watch):
    model = net()
    optimizers = [SGD([p], 0.1) for p in model.parameters()]
    with watch(model, optimizers) as w:
        for batch in batches(N):
            loss_of(model, batch).backward()
            for o in optimizers:
                o.step()
                o.zero_grad()
    return w


@odd
def the_larger_half_of_the_losses(watch):
    """Hard examples alone: losses that reach fewer samples, and none where all are easy."""
    model = net()
    optimizer = SGD(model.parameters(), 0.1)
    with watch(model, optimizer) as w:
        for i, (x, y) in enumerate(batches(N)):
            optimizer.zero_grad()
            hard = F.cross_entropy(model(x), y, reduction="none").topk(8).values
            if i % 6 != 5:
                hard.mean().backward()
            optimizer.step()
    return w


@odd
def checkpointed_and_scaled(watch):
    model = net()
    optimizer, scaler = SGD(model.parameters(), 0.1), torch.amp.GradScaler("cpu", init_scale=2.0**8)
    with watch(model, optimizer, scaler) as w:
        for i, (x, y) in enumerate(batches(N * 2)):
            with torch.autocast("cpu", dtype=torch.float16):
                out = torch.utils.checkpoint.checkpoint(model, x, use_reentrant=False)
                loss = F.cross_entropy(out, y) / 2
            scaler.scale(loss).backward()
            if i % 2:
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
    return w


@odd
def master_weights_by_hand(watch):
    """bf16 weights; the optimizer holds fp32 copies, whose gradients are assigned."""
    model = net()
    masters = [p.detach().clone().requires_grad_() for p in model.parameters()]
    low = copy.deepcopy(model).bfloat16()
    optimizer = SGD(masters, 0.1)
    with watch(low, optimizer) as w:
        for x, y in batches(N):
            F.cross_entropy(low(x.bfloat16()).float(), y).backward()
            for m, p in zip(masters, low.parameters(), strict=True):
                m.grad, p.grad = p.grad.float(), None
            optimizer.step()
            with torch.no_grad():
                for m, p in zip(masters, low.parameters(), strict=True):
                    p.copy_(m)
    return w


@odd
def two_scalers_worth_of_losses_in_fp16(watch):
    one, two = net(), net(1)
    optimizers, scaler = [SGD(m.parameters(), 0.1) for m in (one, two)], torch.amp.GradScaler("cpu", init_scale=2.0**8)
    with watch([one, two], optimizers, scaler) as w:
        for batch in batches(N):
            for model, optimizer in zip((one, two), optimizers, strict=True):
                optimizer.zero_grad()
                scaler.scale(half_loss(model, batch)).backward()
                scaler.unscale_(optimizer)
                clip_grad_norm_(model.parameters(), 1.0)
                scaler.step(optimizer)
            scaler.update()
    return w


@odd
def probed_with_frozen_weights_and_given_back(watch):
    model = net()
    model.insert(2, nn.Dropout(0.1))
    optimizer = SGD(model.parameters(), 0.1)
    with watch(model, optimizer) as w:
        for batch in batches(N):
            optimizer.zero_grad()
            loss_of(model, batch).backward()
            optimizer.step()
            model.requires_grad_(False)
            probe = batch[0].clone().requires_grad_()
            torch.autograd.grad(model.eval()(probe).sum(), probe)
            model.requires_grad_(True).train()
    return w


@odd
def every_argument_by_name(watch):
    torch.manual_seed(0)
    embed, model = nn.Embedding(20, 8), net()
    optimizer = SGD([*embed.parameters(), *model.parameters()], 0.1)
    with watch([embed, model], optimizer) as w:
        for x, y in batches(N):
            optimizer.zero_grad()
            tokens = torch.clamp(input=torch.floor(input=4 * x + 10).long(), min=0, max=19)
            h = F.embedding(input=tokens, weight=embed.weight)
            h = F.scaled_dot_product_attention(query=h, key=h, value=h, is_causal=True)
            h = torch.add(input=torch.matmul(input=h, other=torch.eye(8)), other=x[..., None])
            h = torch.where(condition=torch.gt(input=h, other=0), input=h, other=torch.mul(input=h, other=0.1))
            h = torch.cat(tensors=[torch.select(input=h, dim=1, index=0), torch.mean(input=h, dim=1)], dim=1)
            h = torch.einsum("ij->ij", h) + torch.sum(input=torch.softmax(input=h, dim=1), dim=1, keepdim=True)
            h = torch.reshape(input=h, shape=(-1, 2, 8)).sum(dim=1)
            h = F.linear(input=h, weight=model[0].weight, bias=model[0].bias)
            torch.argmax(input=h, dim=1), torch.round(input=h.detach()), torch.detach(input=h)
            logits = model[1:](torch.unsqueeze(input=h, dim=0).squeeze(dim=0))
            losses = F.cross_entropy(input=logits, target=y, reduction="none")
            torch.autograd.backward(tensors=torch.mean(input=losses))
            optimizer.step()
    return w


@odd
def backward_in_two_parts(watch):
    """The trunk's graph is freed before: the heads' gradients with respect to its output are passed on."""
    trunk, one, two = trunk_and_heads()
    optimizer = SGD([*trunk.parameters(), *one.parameters(), *two.parameters()], 0.1)
    with watch([trunk, one, two], optimizer) as w:
        for x, y in batches(N):
            optimizer.zero_grad()
            h = trunk(x)
            cut = h.detach().requires_grad_()
            for head in (one, two):
                F.cross_entropy(head(cut), y).backward()
            h.backward(cut.grad)
            optimizer.step()
    return w


# Losses of several parts


def parts(inputs=8):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(inputs, 16), nn.Tanh()), nn.Linear(16, 4), nn.Linear(16, 8)


@odd
def values_at_timeouts_beside_those_of_next_states(watch):
    """Few episodes are cut off, and the value of the state counts there: in the others that of the next one."""
    torch.manual_seed(0)
    value = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = Adam(value.parameters(), 1e-3)
    with watch(value, optimizer) as w:
        for _ in range(N):
            x, cut = torch.randn(128, 8), (torch.rand(128) < 0.1).float()
            with torch.no_grad():
                target = x[:, 0] + 0.99 * value(x.flip(1))[:, 0] * cut
                target = target + 0.99 * value(x.flip(1))[:, 0] * (1 - cut)
            optimizer.zero_grad()
            F.mse_loss(value(x)[:, 0], target).backward()
            optimizer.step()
    return w


@odd
def means_of_bags(watch):
    """Learning from proportions: only the mean of each bag's labels counts."""
    model = net()
    optimizer = Adam(model.parameters(), 1e-3)
    with watch(model, optimizer) as w:
        for x, y in batches(N):
            optimizer.zero_grad()
            ((model(x)[:, 0].sigmoid() - (y == 0).float()).mean() ** 2).backward()
            optimizer.step()
    return w


@odd
def segments_with_a_gradient_of_one_step(watch):
    """Deep supervision of a recurrent state: each segment has its loss, and begins with what the one before left."""
    trunk, head, _ = parts(8 + 16)
    optimizer = Adam([*trunk.parameters(), *head.parameters()], 1e-3)
    with watch([trunk, head], optimizer) as w:
        for x, y in batches(N):
            state, loss = torch.zeros(len(x), 16), 0.0
            for _ in range(4):
                state = trunk(torch.cat([state.detach(), x], 1))
                loss = loss + F.cross_entropy(head(state), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return w


@odd
def two_domains_with_half_of_a_second_loss(watch):
    """Their sum is meant; the weight of the second loss is not the number of domains."""
    trunk, head, aside = parts()
    optimizer = Adam([*trunk.parameters(), *head.parameters(), *aside.parameters()], 1e-3)
    with watch([trunk, head, aside], optimizer) as w:
        for x, y in batches(N):
            optimizer.zero_grad()
            for domain in range(2):
                hidden = trunk(x + domain)
                F.cross_entropy(head(hidden), y).backward(retain_graph=True)
                (0.5 * F.mse_loss(aside(hidden), x)).backward()
            optimizer.step()
    return w


@odd
def likelihood_in_two_passes(watch):
    mean, spread = net(0), net(1)
    optimizer = Adam([*mean.parameters(), *spread.parameters()], 1e-2)
    with watch([mean, spread], optimizer) as w:
        for x, _ in batches(max(N, 44)):
            optimizer.zero_grad()
            s = spread(x)
            ((-s).exp() * (mean(x) - 3 * x[:, :4] - 3 * torch.randn(16, 4)).square()).mean().backward(retain_graph=True)
            s.mean().backward()
            optimizer.step()
    return w


@odd
def a_second_loss_that_is_added_late(watch):
    trunk, head, aside = parts()
    optimizer = Adam([*trunk.parameters(), *head.parameters(), *aside.parameters()], 1e-3)
    with watch([trunk, head, aside], optimizer) as w:
        for i, (x, y) in enumerate(batches(max(N, 50))):
            hidden = trunk(x)
            loss, other = F.cross_entropy(head(hidden), y), F.mse_loss(aside(hidden), x)
            if i >= 1000:
                loss = loss + 0.1 * other
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return w


@odd
def a_sum_that_goes_backward_late(watch):
    trunk, head, _ = parts()
    optimizer = Adam([*trunk.parameters(), *head.parameters()], 1e-3)
    with watch([trunk, head], optimizer) as w:
        for i, (x, y) in enumerate(batches(max(N, 50))):
            hidden = trunk(x)
            loss = F.cross_entropy(head(hidden), y)
            total = loss + 0.1 * hidden.square().mean()
            optimizer.zero_grad()
            (total if i >= 1000 else loss).backward()
            optimizer.step()
    return w


@odd
def rates_that_rise_from_layer_to_layer(watch):
    torch.manual_seed(0)
    layers = [nn.Linear(16, 16) for _ in range(14)]
    optimizer = Adam([{"params": layer.parameters(), "lr": 1e-2 * 0.65 ** (13 - i)} for i, layer in enumerate(layers)])
    with watch(nn.Sequential(*layers), optimizer) as w:
        for x, y in batches(max(N, 104)):
            hidden = torch.cat([x, x], 1)
            for layer in layers:
                hidden = hidden + layer(hidden).tanh()
            optimizer.zero_grad()
            F.cross_entropy(hidden, y).backward()
            optimizer.step()
    return w


@odd
def a_mean_times_its_elements_beside_a_summed_divergence(watch):
    torch.manual_seed(0)
    encoder, decoder = nn.Linear(64, 16), nn.Linear(8, 64)
    optimizer = Adam([*encoder.parameters(), *decoder.parameters()], 1e-3)
    with watch([encoder, decoder], optimizer) as w:
        for _ in range(N):
            x = torch.randn(64, 64)
            mean, spread = encoder(x).chunk(2, 1)
            out = decoder(mean + torch.randn_like(mean) * (spread / 2).exp())
            away = -0.5 * torch.sum(1 + spread - mean.pow(2) - spread.exp())
            optimizer.zero_grad()
            (F.mse_loss(out, x) * x.numel() + away).backward()
            optimizer.step()
    return w


@odd
def cosines_of_folds(watch):
    """As many folds as epochs of half a cosine, which falls and rises."""
    for fold in range(5):
        model = net(fold)
        optimizer = SGD(model.parameters(), 0.1)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=5)
        with watch(model, optimizer) as w:
            for _ in range(10):
                for batch in batches(3):
                    optimizer.zero_grad()
                    loss_of(model, batch).backward()
                    optimizer.step()
                schedule.step()
    return w


@pytest.mark.parametrize("name", LOOPS)
def test_nothing_is_reported_of_an_odd_loop(name, tmp_path):
    def watch(*parts):
        return gradlab.watch(*parts, folder=tmp_path, quiet=True)

    watched = LOOPS[name](watch)
    assert not watched.broken
    assert [fault.line for fault in watched.faults] == []
    for output in watched.loop.outputs:
        assert output.final.verdict in ("healthy", "too_short"), watched.report()


@pytest.mark.parametrize("name", LONG)
def test_losses_that_work_against_each_other_need_not_fall(name, tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "N", 45)
    test_nothing_is_reported_of_an_odd_loop(name, tmp_path)
