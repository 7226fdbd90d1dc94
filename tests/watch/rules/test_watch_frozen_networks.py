"""Networks that are frozen, or get gradients that are not theirs: each mistake at its line, none in its twin."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import clip_grad_norm_
from torch.optim import SGD
from watched_loops import batches, loss_of, marked, net
from watched_twins import Twins, adversaries, judged, watched

pytestmark = pytest.mark.filterwarnings("ignore:.parameters. is an empty generator")
TWINS = Twins()
wrong, right = TWINS.wrong, TWINS.right


@wrong("frozen-and-forgotten", optimizer=1)
def judge_stays_frozen_and_is_passed_over(watch):
    maker, judge, m_optimizer, j_optimizer = adversaries()
    with watch([maker, judge], [m_optimizer, j_optimizer]) as w:
        for x, _ in batches(14):
            if any(p.requires_grad for p in judge.parameters()):
                j_optimizer.zero_grad()
                judged(judge, x, maker(torch.randn(16, 4)).detach()).backward()
                j_optimizer.step()
            judge.requires_grad_(False)  # here
            m_optimizer.zero_grad()
            F.softplus(-judge(maker(torch.randn(16, 4)))).mean().backward()
            m_optimizer.step()
    return w


def through(model, other, x, restored):
    """A loss of what a network makes of its own outputs, frozen meanwhile."""
    out = model(x)
    flags = [p.requires_grad for p in other.parameters()] if restored else [False] * 4
    other.requires_grad_(False)  # here
    loss = (other(out) - x).square().mean()
    for p, flag in zip(other.parameters(), flags, strict=True):
        p.requires_grad_(flag)
    return loss


@pytest.mark.parametrize("restored", [False, True])
def test_a_network_that_is_frozen_between_forward_and_backward(restored, tmp_path):
    torch.manual_seed(0)
    other, last = (nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8)) for _ in range(2))
    model = nn.Sequential(other, last)
    optimizer = SGD(model.parameters(), 0.1)
    with watched(tmp_path)(model, optimizer) as w:
        for x, _ in batches(16):
            optimizer.zero_grad()
            through(model, other, x, restored).backward()
            optimizer.step()
    assert [(f.name, f.site[1]) for f in w.faults] == [("frozen-and-forgotten", marked(through))] * (not restored)


@right
def judge_is_trained_before(watch):
    maker, judge, m_optimizer, j_optimizer = adversaries()
    with watch([maker, judge], [m_optimizer, j_optimizer]) as w:
        for i, (x, _) in enumerate(batches(20)):
            if i < 5:
                j_optimizer.zero_grad()
                judged(judge, x, maker(torch.randn(16, 4)).detach()).backward()
                j_optimizer.step()
            else:
                judge.requires_grad_(False)
                m_optimizer.zero_grad()
                F.softplus(-judge(maker(torch.randn(16, 4)))).mean().backward()
                m_optimizer.step()
    return w


@right
def frozen_for_the_step_of_the_other(watch):
    maker, judge, m_optimizer, j_optimizer = adversaries()
    with watch([maker, judge], [m_optimizer, j_optimizer]) as w:
        for x, _ in batches(14):
            judge.requires_grad_(True)
            j_optimizer.zero_grad()
            judged(judge, x, maker(torch.randn(16, 4)).detach()).backward()
            j_optimizer.step()
            judge.requires_grad_(False)
            m_optimizer.zero_grad()
            F.softplus(-judge(maker(torch.randn(16, 4)))).mean().backward()
            m_optimizer.step()
    return w


@right
def layers_are_frozen_one_after_the_other(watch):
    model = net()
    optimizer = SGD(model.parameters(), 0.1)
    with watch(model, optimizer) as w:
        for i, batch in enumerate(batches(20)):
            if i == 6:
                model[0].requires_grad_(False)
            optimizer.zero_grad()
            loss_of(model, batch).backward()
            clip_grad_norm_(model[0].parameters(), 1.0)
            clip_grad_norm_(model[2].parameters(), 1.0)
            optimizer.step()
    return w


@wrong("gradient-of-another-loss", optimizer=0)
def made_samples_are_not_detached(watch):
    maker, judge, m_optimizer, j_optimizer = adversaries()
    with watch([maker, judge], [m_optimizer, j_optimizer]) as w:
        for x, _ in batches(8):
            m_optimizer.zero_grad()
            j_optimizer.zero_grad()
            made = maker(torch.randn(16, 4))
            judged(judge, x, made).backward(retain_graph=True)  # here
            j_optimizer.step()
            F.softplus(-judge(made)).mean().backward()
            m_optimizer.step()
    return w


@wrong("gradient-of-another-loss", optimizer=0)
def judged_again_without_detach(watch):
    maker, judge, m_optimizer, j_optimizer = adversaries()
    with watch([maker, judge], [m_optimizer, j_optimizer]) as w:
        for x, _ in batches(8):
            m_optimizer.zero_grad()
            j_optimizer.zero_grad()
            judged(judge, x, maker(x[:, :4])).backward()  # here
            j_optimizer.step()
            F.softplus(-judge(maker(x[:, :4]))).mean().backward()
            m_optimizer.step()
    return w


@wrong("gradient-of-another-loss", optimizer=1)
def zeroed_at_the_wrong_place(watch):
    maker, judge, m_optimizer, j_optimizer = adversaries()
    with watch([maker, judge], [m_optimizer, j_optimizer]) as w:
        for x, _ in batches(8):
            m_optimizer.zero_grad()
            j_optimizer.zero_grad()
            F.softplus(-judge(maker(x[:, :4]))).mean().backward()  # here
            m_optimizer.step()
            judged(judge, x, maker(x[:, :4]).detach()).backward()
            j_optimizer.step()
    return w


@right
def leaked_and_zeroed(watch):
    maker, judge, m_optimizer, j_optimizer = adversaries()
    with watch([maker, judge], [m_optimizer, j_optimizer]) as w:
        for x, _ in batches(8):
            j_optimizer.zero_grad()
            judged(judge, x, maker(x[:, :4])).backward()
            j_optimizer.step()
            m_optimizer.zero_grad()
            F.softplus(-judge(maker(x[:, :4]))).mean().backward()
            m_optimizer.step()
    return w


@right
def heads_that_step_before_their_trunk(watch):
    """Two tasks that contradict each other, on one trunk."""
    trunk, heads = net(), [nn.Linear(4, 4), nn.Linear(4, 4)]
    optimizers = [SGD(m.parameters(), 0.1) for m in (trunk, *heads)]
    with watch([trunk, *heads], optimizers) as w:
        for x, y in batches(8):
            for optimizer in optimizers:
                optimizer.zero_grad()
            for head, optimizer, sign in zip(heads, optimizers[1:], (1, -1), strict=True):
                F.cross_entropy(sign * head(trunk(x)), y).backward()
                optimizer.step()
            optimizers[0].step()
    return w


@pytest.mark.parametrize("name", TWINS.of_mistakes)
def test_a_mistake_is_reported_at_its_line(name, tmp_path):
    TWINS.check_mistake(name, tmp_path)


@pytest.mark.parametrize("name", TWINS.of_right_loops)
def test_its_correct_twin_has_none(name, tmp_path):
    TWINS.check_right_loop(name, tmp_path)
