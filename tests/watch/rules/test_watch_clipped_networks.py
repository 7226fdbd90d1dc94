"""What clipping acts on: each mistake at its line, and nothing in its correct twin."""

import copy

import pytest
from torch.nn import functional as F
from torch.nn.utils import clip_grad_norm_
from torch.optim import SGD
from watched_loops import batches, loss_of, net
from watched_twins import Twins, adversaries, judged

pytestmark = pytest.mark.filterwarnings("ignore:.parameters. is an empty generator")
TWINS = Twins()
wrong, right = TWINS.wrong, TWINS.right


@wrong("clip-elsewhere")
def clipping_the_average(watch):
    model = net()
    optimizer, average = SGD(model.parameters(), 0.1), copy.deepcopy(model)
    with watch(model, optimizer) as w:
        for batch in batches(6):
            optimizer.zero_grad()
            loss_of(model, batch).backward()
            clip_grad_norm_(average.parameters(), 1.0)  # here
            optimizer.step()
    return w


@wrong("clip-elsewhere")
def clipping_the_judge_for_the_maker(watch):
    maker, judge, m_optimizer, j_optimizer = adversaries()
    with watch([maker, judge], [m_optimizer, j_optimizer]) as w:
        for x, _ in batches(6):
            j_optimizer.zero_grad()
            judged(judge, x, maker(x[:, :4]).detach()).backward()
            clip_grad_norm_(judge.parameters(), 1.0)
            j_optimizer.step()
            m_optimizer.zero_grad()
            F.softplus(-judge(maker(x[:, :4]))).mean().backward()
            clip_grad_norm_(judge.parameters(), 1.0)  # here
            m_optimizer.step()
    return w


@wrong("clip-elsewhere")
def clipping_the_second_before_it_has_a_gradient(watch):
    """In the first update; nothing is said of the second, which is clipped again."""
    first, second = net(), net(1)
    optimizers = [SGD(m.parameters(), 0.1) for m in (first, second)]
    with watch([first, second], optimizers) as w:
        for batch in batches(6):
            for model, optimizer in zip((first, second), optimizers, strict=True):
                optimizer.zero_grad()
                loss_of(model, batch).backward()
                clip_grad_norm_(second.parameters(), 1.0)  # here
                optimizer.step()
    return w


@wrong("clip-elsewhere")
def clipping_a_frozen_judge_for_the_maker(watch):
    maker, judge, m_optimizer, j_optimizer = adversaries()
    with watch([maker, judge], [m_optimizer, j_optimizer]) as w:
        for x, _ in batches(6):
            j_optimizer.zero_grad()
            judged(judge, x, maker(x[:, :4]).detach()).backward()
            clip_grad_norm_(judge.parameters(), 1.0)
            j_optimizer.step()
            m_optimizer.zero_grad()
            judge.requires_grad_(False)
            F.softplus(-judge(maker(x[:, :4]))).mean().backward()
            judge.requires_grad_(True)
            clip_grad_norm_(judge.parameters(), 1.0)  # here
            m_optimizer.step()
    return w


@wrong("clip-after-step", optimizer=1)
def clipping_the_judge_after_its_step(watch):
    maker, judge, m_optimizer, j_optimizer = adversaries()
    with watch([maker, judge], [m_optimizer, j_optimizer]) as w:
        for x, _ in batches(6):
            m_optimizer.zero_grad()
            j_optimizer.zero_grad()
            made = maker(x[:, :4])
            F.softplus(-judge(made)).mean().backward(inputs=list(maker.parameters()))
            judged(judge, x, made.detach()).backward()
            j_optimizer.step()
            clip_grad_norm_(judge.parameters(), 1.0)  # here
            m_optimizer.step()
    return w


@right
def clipping_both_networks_each_time(watch):
    maker, judge, m_optimizer, j_optimizer = adversaries()
    everything = [*maker.parameters(), *judge.parameters()]
    with watch([maker, judge], [m_optimizer, j_optimizer]) as w:
        for x, _ in batches(6):
            j_optimizer.zero_grad()
            judged(judge, x, maker(x[:, :4]).detach()).backward()
            clip_grad_norm_(everything, 1.0)
            j_optimizer.step()
            m_optimizer.zero_grad()
            F.softplus(-judge(maker(x[:, :4]))).mean().backward()
            clip_grad_norm_(everything, 1.0)
            m_optimizer.step()
    return w


@right
def clipping_an_empty_group_too(watch):
    model = net()
    optimizer = SGD(model.parameters(), 0.1)
    with watch(model, optimizer) as w:
        for batch in batches(6):
            optimizer.zero_grad()
            loss_of(model, batch).backward()
            clip_grad_norm_([p for p in model.parameters() if p.dim() == 3], 1.0)
            clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
    return w


@wrong("backward-twice")
def backward_twice(watch):
    model = net()
    optimizer = SGD(model.parameters(), 0.1)
    with watch(model, optimizer) as w:
        for batch in batches(6):
            optimizer.zero_grad()
            loss = loss_of(model, batch)
            loss.backward(retain_graph=True)
            loss.backward()  # here
            optimizer.step()
    return w


@pytest.mark.parametrize("name", TWINS.of_mistakes)
def test_a_mistake_is_reported_at_its_line(name, tmp_path):
    TWINS.check_mistake(name, tmp_path)


@pytest.mark.parametrize("name", TWINS.of_right_loops)
def test_its_correct_twin_has_none(name, tmp_path):
    TWINS.check_right_loop(name, tmp_path)
