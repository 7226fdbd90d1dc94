"""What losses reach, and what clipping and steps act on: each mistake at its line, and nothing in its correct twin."""

import copy
import inspect

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import clip_grad_norm_
from torch.optim import SGD, Adam
from watched_loops import batches, loss_of, marked, net

import gradlab

pytestmark = pytest.mark.filterwarnings("ignore:.parameters. is an empty generator")
WRONG, RIGHT = {}, {}


def wrong(code, optimizer=0):
    def keep(loop):
        WRONG[loop.__name__] = (code, optimizer, loop)
        return loop

    return keep


def right(loop):
    RIGHT[loop.__name__] = loop
    return loop


def adversaries():
    torch.manual_seed(0)
    maker, judge = nn.Linear(4, 8), nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    return maker, judge, Adam(maker.parameters(), 1e-3), Adam(judge.parameters(), 1e-3)


def judged(judge, x, made):
    return F.softplus(-judge(x)).mean() + F.softplus(judge(made)).mean()


def dropping(seed=0):
    model = net(seed)
    model.insert(2, nn.Dropout(0.2))
    return model


def validated(model):
    model.eval()
    with torch.no_grad():
        loss_of(model, next(batches(1)))


@wrong("step-without-gradient")
def optimizer_of_an_older_model(watch):
    model = net()
    optimizer, model = SGD(model.parameters(), 0.1), copy.deepcopy(model)
    with watch(model, optimizer) as w:
        for batch in batches(6):
            optimizer.zero_grad()
            loss_of(model, batch).backward()
            optimizer.step()  # here
    return w


@wrong("step-without-gradient")
def loss_wrapped_anew(watch):
    model = net()
    optimizer = SGD(model.parameters(), 0.1)
    with watch(model, optimizer) as w:
        for batch in batches(6):
            optimizer.zero_grad()
            loss = torch.tensor(loss_of(model, batch).item(), requires_grad=True)  # here
            loss.backward()
            optimizer.step()
    return w


@wrong("step-without-gradient")
def frozen_model_under_a_head(watch):
    model, head = net(), nn.Linear(4, 4)
    optimizer = SGD(model.requires_grad_(False).parameters(), 0.1)
    with watch([model, head], optimizer) as w:
        for x, y in batches(6):
            optimizer.zero_grad()
            F.cross_entropy(head(model(x)), y).backward()
            optimizer.step()  # here
    return w


@wrong("step-without-gradient", optimizer=1)
def one_of_two_networks_is_never_reached(watch):
    first, second = net(), net(1)
    optimizers = [SGD(m.parameters(), 0.1) for m in (first, second)]
    with watch([first, second], optimizers) as w:
        for x, y in batches(24):
            for optimizer in optimizers:
                optimizer.zero_grad()
            (loss_of(first, (x, y)) + F.cross_entropy(second(x).detach(), y)).backward()  # here
            optimizers[0].step()
            optimizers[1].step()
    return w


@wrong("step-without-gradient")
def model_is_replaced_on_the_way(watch):
    model = net()
    optimizer = Adam(model.parameters(), 1e-2)
    with watch(model, optimizer) as w:
        for i, batch in enumerate(batches(80)):
            model = copy.deepcopy(model) if i == 50 else model
            optimizer.zero_grad()
            loss_of(model, batch).backward()
            optimizer.step()  # here
    return w


@right
def one_of_two_networks_is_trained_first(watch):
    """Both optimizers are stepped throughout; one of them was not passed."""
    first, second = net(), net(1)
    optimizers = [SGD(m.parameters(), 0.1) for m in (first, second)]
    with watch(first, optimizers[0]) as w:
        for i, batch in enumerate(batches(80)):
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss_of(second if i >= 50 else first, batch).backward()
            for optimizer in optimizers:
                optimizer.step()
    return w


@right
def another_backward_pass_now_and_then(watch):
    """Looks at another model between the updates, at the end of the loop more often."""
    model, other = net(), net(1)
    optimizer = SGD(model.parameters(), 0.1)
    with watch(model, optimizer) as w:
        for batch in batches(40):
            optimizer.zero_grad()
            loss_of(model, batch).backward()
            optimizer.step()
            loss_of(other, batch).backward()
        for batch in batches(40):
            loss_of(other, batch).backward()
    return w


@wrong("zero-before-step")
def a_loss_is_zeroed_away_by_the_next(watch):
    model, heads = net()[:2], [nn.Linear(16, 4), nn.Linear(16, 4)]
    whole = nn.ModuleList([model, *heads])
    optimizer = Adam(whole.parameters(), 1e-2)
    with watch(whole, optimizer) as w:
        for x, y in batches(30):
            optimizer.zero_grad()
            hidden = model(x)
            F.cross_entropy(heads[0](hidden), y).backward(retain_graph=True)
            whole.zero_grad()  # here
            F.cross_entropy(heads[1](hidden), y.flip(0)).backward()
            optimizer.step()
    return w


@right
def a_head_is_kept_as_it_is_by_zeroing(watch):
    model = net()
    optimizer = SGD(model.parameters(), 0.1)
    with watch(model, optimizer) as w:
        for batch in batches(30):
            optimizer.zero_grad()
            loss_of(model, batch).backward()
            model[2].zero_grad()
            optimizer.step()
    return w


@right
def a_probe_of_a_head_is_zeroed_away(watch):
    """And the head is trained in updates of its own."""
    model, heads = net()[:2], [nn.Linear(16, 4), nn.Linear(16, 4)]
    whole = nn.ModuleList([model, *heads])
    optimizer = Adam(whole.parameters(), 1e-2)
    with watch(whole, optimizer) as w:
        for i, (x, y) in enumerate(batches(40)):
            optimizer.zero_grad()
            F.cross_entropy(heads[0](model(x)), y).backward()
            if i % 8 != 7:
                whole.zero_grad()
                F.cross_entropy(heads[1](model(x)), y).backward()
            optimizer.step()
    return w


@right
def second_network_begins_later(watch):
    first, second = net(), net(1)
    optimizers = [SGD(m.parameters(), 0.1) for m in (first, second)]
    with watch([first, second], optimizers) as w:
        for i, batch in enumerate(batches(30)):
            for optimizer in optimizers:
                optimizer.zero_grad()
            (loss_of(first, batch) + (loss_of(second, batch) if i >= 24 else 0)).backward()
            for optimizer in optimizers:
                optimizer.step()
    return w


@right
def steps_before_the_first_backward_pass(watch):
    """To silence a warning of schedules; and for a batch without targets the loss is a constant."""
    model = net()
    optimizer = SGD(model.parameters(), 0.1)
    with watch(model, optimizer) as w:
        optimizer.step()
        optimizer.step()
        for i, batch in enumerate(batches(8)):
            optimizer.zero_grad()
            (torch.zeros((), requires_grad=True) if i % 4 == 0 else loss_of(model, batch)).backward()
            optimizer.step()
    return w


@wrong("weights-in-two-optimizers", optimizer=1)
def same_weights_in_two_optimizers(watch):
    model = net()
    first, second = SGD(model.parameters(), 0.1), Adam(model.parameters(), 1e-3)
    with watch(model, [first, second]) as w:
        for batch in batches(6):
            model.zero_grad()
            loss_of(model, batch).backward()
            first.step()
            second.step()  # here
    return w


@wrong("weights-in-two-optimizers")
def an_optimizer_that_was_not_passed_steps_too(watch):
    model = net()
    first, second = SGD(model.parameters(), 0.1), Adam(model[2].parameters(), 1e-3)
    with watch(model, first) as w:
        for batch in batches(6):
            first.zero_grad()
            loss_of(model, batch).backward()
            first.step()
            second.step()  # here
    return w


@wrong("weights-in-two-optimizers")
def an_optimizer_that_was_not_passed_steps_first(watch):
    model = net()
    first, second = SGD(model.parameters(), 0.1), Adam(model[2].parameters(), 1e-3)
    with watch(model, first) as w:
        for batch in batches(6):
            first.zero_grad()
            loss_of(model, batch).backward()
            second.step()
            first.step()  # here
    return w


@right
def two_optimizers_of_a_trunk_with_losses_of_their_own(watch):
    model = net()
    optimizers = [SGD(model.parameters(), 0.1), Adam(model.parameters(), 1e-3)]
    with watch(model, optimizers) as w:
        for batch in batches(6):
            for optimizer in optimizers:
                optimizer.zero_grad()
                loss_of(model, batch).backward()
                optimizer.step()
    return w


@right
def another_optimizer_takes_over(watch):
    model = net()
    first, second = Adam(model.parameters(), 1e-3), SGD(model.parameters(), 0.1)
    with watch(model, first) as w:
        for i, batch in enumerate(batches(12)):
            optimizer = first if i < 6 else second
            optimizer.zero_grad()
            loss_of(model, batch).backward()
            optimizer.step()
    return w


@wrong("frozen-and-forgotten")
def requires_grad_is_not_given_back(watch):
    model = net()
    optimizer = SGD(model.parameters(), 0.1)
    with watch(model, optimizer) as w:
        for batch in batches(14):
            optimizer.zero_grad()
            loss_of(model, batch).backward()
            optimizer.step()
            model[0].requires_grad_(False)  # here
            loss_of(model, batch)
    return w


@wrong("frozen-and-forgotten", optimizer=1)
def judge_stays_frozen(watch):
    maker, judge, m_optimizer, j_optimizer = adversaries()
    with watch([maker, judge], [m_optimizer, j_optimizer]) as w:
        for x, _ in batches(14):
            j_optimizer.zero_grad()
            judged(judge, x, maker(torch.randn(16, 4))).backward()
            j_optimizer.step()  # here
            for p in judge.parameters():
                p.requires_grad = False
            m_optimizer.zero_grad()
            F.softplus(-judge(maker(torch.randn(16, 4)))).mean().backward()
            m_optimizer.step()
    return w


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


class Table(nn.Module):
    """A graph of it outlives updates: nothing keeps the weights."""

    def __init__(self):
        super().__init__()
        self.values = nn.Parameter(torch.zeros(8, 4))

    def forward(self, x):
        return self.values[x.argmax(1)]


@wrong("backward-twice")
def losses_of_an_epoch_are_summed_with_their_graphs(watch):
    model = Table()
    optimizer = SGD(model.parameters(), 0.1)
    with watch(model, optimizer) as w:
        total = 0
        for batch in batches(6):
            optimizer.zero_grad()
            total = total + loss_of(model, batch) / 2
            total.backward(retain_graph=True)  # here
            optimizer.step()
            w.loop.trackers[0].graph_tokens.clear()  # that they are kept is another mistake
    return w


@wrong("backward-twice")
def losses_of_a_window_are_summed_and_passed_each_time(watch):
    model = net()
    optimizer = SGD(model.parameters(), 0.1)
    with watch(model, optimizer) as w:
        for _ in range(3):
            total = 0
            optimizer.zero_grad()
            for batch in batches(4):
                total = total + loss_of(model, batch) / 4
                total.backward(retain_graph=True)  # here
            optimizer.step()
    return w


@right
def a_term_is_passed_by_halves(watch):
    model = net()
    optimizer = SGD(model.parameters(), 0.1)
    with watch(model, optimizer) as w:
        for batch in batches(8):
            half = loss_of(model, batch) / 2
            optimizer.zero_grad()
            half.backward(retain_graph=True)
            (half + sum(p.square().sum() for p in model.parameters())).backward()
            optimizer.step()
    return w


@right
def two_terms_of_an_update_one_after_the_other(watch):
    """Whose sum is differentiated for another optimizer, or after the gradients were looked at."""
    model, other = Table(), Table()
    optimizers = [SGD(m.parameters(), 0.1) for m in (model, other)]
    with watch([model, other], optimizers) as w:
        for batch in batches(8):
            first, second = loss_of(model, batch), loss_of(other, batch)
            optimizers[0].zero_grad()
            first.backward(retain_graph=True)
            optimizers[0].step()
            optimizers[1].zero_grad()
            (first + second).backward()
            optimizers[1].step()
    return w


@wrong("clip-elsewhere")
def clipping_a_used_generator(watch):
    model = net()
    params = model.parameters()
    optimizer = SGD(params, 0.1)
    with watch(model, optimizer) as w:
        for batch in batches(6):
            optimizer.zero_grad()
            loss_of(model, batch).backward()
            clip_grad_norm_(params, 1.0)  # here
            optimizer.step()
    return w


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


@right
def backward_for_each_part(watch):
    model = net()
    optimizer = SGD(model.parameters(), 0.1)
    with watch(model, optimizer) as w:
        for batch in batches(6):
            optimizer.zero_grad()
            loss = loss_of(model, batch)
            for part in (model[0], model[2]):
                loss.backward(inputs=list(part.parameters()), retain_graph=True)
            optimizer.step()
    return w


@right
def halves_and_looked_at_before(watch):
    """Two halves of one loss; and a pass only to look at the gradient."""
    model = net()
    optimizer = SGD(model.parameters(), 0.1)
    with watch(model, optimizer) as w:
        for i, batch in enumerate(batches(6)):
            optimizer.zero_grad()
            loss = loss_of(model, batch)
            if i % 2:
                loss.backward(retain_graph=True)
                optimizer.zero_grad()
                loss.backward()
            else:
                (loss / 2).backward(retain_graph=True)
                (loss / 2).backward()
            optimizer.step()
    return w


@wrong("training-in-eval")
def left_in_eval(watch):
    model = dropping()
    optimizer = SGD(model.parameters(), 0.1)
    with watch(model, optimizer) as w:
        for _ in range(2):
            for batch in batches(4):
                optimizer.zero_grad()
                loss_of(model, batch).backward()
                optimizer.step()
            model.eval()  # here
            with torch.no_grad():
                loss_of(model, next(batches(1)))
    return w


@right
def never_in_training_mode(watch):
    model = dropping().eval()
    optimizer = SGD(model.parameters(), 0.1)
    with watch(model, optimizer) as w:
        for batch in batches(8):
            validated(model)
            optimizer.zero_grad()
            loss_of(model, batch).backward()
            optimizer.step()
    return w


@right
def nothing_depends_on_the_mode(watch):
    model = net()
    optimizer = SGD(model.parameters(), 0.1)
    with watch(model, optimizer) as w:
        for batch in batches(8):
            optimizer.zero_grad()
            loss_of(model, batch).backward()
            optimizer.step()
            validated(model)
    return w


@right
def labelled_in_eval_and_trained(watch):
    model = dropping()
    optimizer = SGD(model.parameters(), 0.1)
    with watch(model, optimizer) as w:
        for x, y in batches(8):
            optimizer.zero_grad()
            validated(model)
            sure = F.cross_entropy(model(x), y)
            model.train()
            (sure + F.cross_entropy(model(x), y)).backward()
            optimizer.step()
    return w


@right
def batch_statistics_are_fixed_from_an_epoch_on(watch):
    model = dropping()
    model.insert(1, nn.BatchNorm1d(16))
    optimizer = SGD(model.parameters(), 0.1)
    with watch(model, optimizer) as w:
        for epoch in range(3):
            model.train()
            if epoch:
                model[1].eval()
            for batch in batches(4):
                optimizer.zero_grad()
                loss_of(model, batch).backward()
                optimizer.step()
            validated(model)
    return w


@wrong("zero-grad-missing")
def zeroed_once_a_window_and_stepped_each_time(watch):
    model = net()
    optimizer = SGD(model.parameters(), 0.1)
    with watch(model, optimizer) as w:
        for i, batch in enumerate(batches(8)):
            if i % 4 == 0:
                optimizer.zero_grad()
            loss_of(model, batch).backward()
            optimizer.step()  # here
    return w


@wrong("weights-without-optimizer")
def a_layer_is_left_out(watch):
    model = net()
    optimizer = SGD(model[2].parameters(), 0.1)
    with watch(model, optimizer) as w:
        for batch in batches(24):
            model.zero_grad()
            loss_of(model, batch).backward()
            optimizer.step()  # here
    return w


@wrong("weights-without-optimizer")
def a_head_is_replaced_after_the_optimizer_is_made(watch):
    model = net()
    optimizer = SGD(model.parameters(), 0.1)
    model[2] = nn.Linear(16, 4)
    with watch(model, optimizer) as w:
        for batch in batches(24):
            optimizer.zero_grad()
            loss_of(model, batch).backward()
            optimizer.step()  # here
    return w


def test_weights_of_a_recurrent_layer_have_their_public_names(tmp_path):
    """It keeps them in a plain list too."""
    model, head = nn.GRU(8, 16), nn.Linear(16, 4)
    optimizer = SGD(head.parameters(), 0.1)
    with watched(tmp_path)([model, head], optimizer) as w:
        for x, y in batches(24):
            model.zero_grad()
            optimizer.zero_grad()
            F.cross_entropy(head(model(x)[0]), y).backward()
            optimizer.step()
    assert [f.detail for f in w.faults] == ["weight_ih_l0, weight_hh_l0, bias_ih_l0 and 1 more"]


class Several(nn.Module):
    """A network with layers in a list. kind: of the list."""

    def __init__(self, kind):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(8, 16), nn.Linear(16, 4)
        self.between = kind([nn.Linear(16, 16) for _ in range(2)])

    def forward(self, x):
        h = self.first(x)
        for layer in self.between:
            h = h + torch.tanh(layer(h))
        return self.last(h)


@wrong("weights-without-optimizer")
def layers_in_a_plain_list(watch):
    model = Several(list)
    optimizer = SGD(model.parameters(), 0.1)
    with watch(model, optimizer) as w:
        for batch in batches(24):
            optimizer.zero_grad()
            loss_of(model, batch).backward()
            optimizer.step()  # here
    return w


@right
def layers_in_a_list_that_are_known_frozen_or_evaluated(watch):
    model, hidden, frozen, fixed = Several(nn.ModuleList), Several(list), Several(list), Several(list)
    for layer in frozen.between:
        layer.requires_grad_(False)
    for layer in fixed.between:
        layer.eval()
    own = [p for layer in hidden.between for p in layer.parameters()]
    parts = nn.ModuleList([model, hidden, frozen, fixed])
    optimizer = SGD([*parts.parameters(), *own], 0.1)
    with watch(parts, optimizer) as w:
        for batch in batches(24):
            optimizer.zero_grad()
            sum(loss_of(part, batch) for part in parts).backward()
            optimizer.step()
    return w


class Uncertain(nn.Module):
    """Two losses weighted by what is learnt of their noise, and a temperature."""

    def __init__(self):
        super().__init__()
        self.noise, self.temperature = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.ones(()))

    def forward(self, out, batch):
        losses = torch.stack([F.cross_entropy(out / self.temperature, batch[1]), out.square().mean()])
        return (torch.exp(-self.noise) * losses + self.noise).sum()


@wrong("weights-without-optimizer")
def weights_of_a_loss_are_left_out(watch):
    model, criterion = net(), Uncertain()
    optimizer = SGD(model.parameters(), 0.1)
    with watch(model, optimizer) as w:
        for batch in batches(24):
            optimizer.zero_grad()
            criterion(model(batch[0]), batch).backward()
            optimizer.step()  # here
    return w


@wrong("weights-without-optimizer")
def a_temperature_is_left_out(watch):
    """It multiplies one side of a product."""
    model, classes, temperature = net(), torch.randn(4, 4), nn.Parameter(torch.zeros(()))
    optimizer = SGD(model.parameters(), 0.1)
    with watch(model, optimizer) as w:
        for x, y in batches(24):
            optimizer.zero_grad()
            F.cross_entropy(temperature.exp() * F.normalize(model(x), dim=1) @ classes, y).backward()
            optimizer.step()  # here
    return w


@right
def weights_of_a_loss_that_are_trained_or_a_probe(watch):
    """By the optimizer, by hand, and by another one; and the factor 1 of invariant risk minimisation."""
    model, held, moved, other = net(), Uncertain(), Uncertain(), Uncertain()
    optimizer, unknown = SGD([*model.parameters(), *held.parameters()], 0.1), SGD(other.parameters(), 0.1)
    probe = nn.Parameter(torch.ones(1))
    with watch(model, optimizer) as w:
        for batch in batches(24):
            optimizer.zero_grad()
            out = model(batch[0])
            loss = F.cross_entropy(probe * out, batch[1])
            (slope,) = torch.autograd.grad(loss, probe, create_graph=True)
            (loss + slope.square().sum() + sum(part(out, batch) for part in (held, moved, other))).backward()
            optimizer.step()
            unknown.step()
            with torch.no_grad():
                for p in moved.parameters():
                    p -= 0.01 * p.grad
    return w


@right
def a_fixed_judge_that_was_never_frozen(watch):
    """As that of a perceptual loss: its weights get gradients, and are meant to stay as they are."""
    model, judge = net(), nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4))
    judge.scale = nn.Parameter(torch.ones(1))
    optimizer = SGD(model.parameters(), 0.1)
    with watch(model, optimizer) as w:
        for x, y in batches(24):
            optimizer.zero_grad()
            (judge.scale * judge(model(x)) - F.one_hot(y, 4)).square().mean().backward()
            optimizer.step()
    return w


@wrong("step-without-gradient", optimizer=1)
def two_optimizers_of_one_network(watch):
    """The second should be the judge's."""
    maker, judge, first, _ = adversaries()
    second = Adam(maker.parameters(), 1e-3)
    with watch([maker, judge], [first, second]) as w:
        for x, _ in batches(24):
            first.zero_grad()
            made = maker(torch.randn(16, 4))
            F.softplus(-judge(made)).mean().backward()
            first.step()
            second.zero_grad()
            judged(judge, x, made.detach()).backward()
            second.step()  # here
    return w


@right
def two_optimizers_of_one_network_in_turn(watch):
    model = net()
    pair = Adam(model.parameters(), 1e-2), SGD(model.parameters(), 0.1)
    with watch(model, pair) as w:
        for i, batch in enumerate(batches(60)):
            for optimizer in pair:
                optimizer.zero_grad()
            loss_of(model, batch).backward()
            pair[i // 30].step()
    return w


@right
def weights_that_are_moved_otherwise(watch):
    """By hand, also through `.data`; by an optimizer that was not passed; and one that is made later."""
    model, other, late = net(), net(1), net(2)
    both = nn.ModuleList([model, other, late])
    both.offset, both.scale = nn.Parameter(torch.zeros(4)), nn.Parameter(torch.ones(4))
    optimizer, unknown = SGD(model.parameters(), 0.1), SGD(other.parameters(), 0.1)
    with watch(both, optimizer) as w:
        for i, (x, y) in enumerate(batches(28)):
            if i == 20:
                optimizer.add_param_group({"params": late.parameters()})
            both.zero_grad()
            F.cross_entropy(both.scale * (model(x) + other(x) + late(x)) + both.offset, y).backward()
            optimizer.step()
            unknown.step()
            both.offset.data -= 0.1 * both.offset.grad
            with torch.no_grad():
                both.scale -= 0.1 * both.scale.grad
    return w


@right
def parts_that_are_not_to_be_trained(watch):
    """A frozen trunk, a gradient from a probe before, and a whole network behind the loss, in eval()."""
    trunk, head, judge = net(), nn.Linear(4, 4), nn.Linear(4, 4)
    judge.eval()
    model = nn.Sequential(trunk.requires_grad_(False), head, nn.Linear(4, 4))
    optimizer = SGD(head.parameters(), 0.1)
    loss_of(model, next(batches(1))).backward()
    with watch([model, judge], optimizer) as w:
        for x, y in batches(24):
            optimizer.zero_grad()
            F.cross_entropy(judge(head(trunk(x))), y).backward()
            optimizer.step()
    return w


@wrong("requires-grad-of-module")
def frozen_by_an_attribute(watch):
    model = net()
    optimizer = SGD(model.parameters(), 0.1)
    for p in model[2].parameters():
        p.requires_grad = True
    model[0].requires_grad = False  # here
    with watch(model, optimizer) as w:
        for batch in batches(6):
            optimizer.zero_grad()
            loss_of(model, batch).backward()
            optimizer.step()
    return w


def unfreeze(part):
    part.requires_grad = True


@wrong("requires-grad-of-module")
def unfrozen_by_an_attribute_while_training(watch):
    model = net()
    model[0].requires_grad_(False)
    optimizer = SGD(model.parameters(), 0.1)
    with watch(model, optimizer) as w:
        for i, batch in enumerate(batches(6)):
            if i == 3:
                model[0].requires_grad = True  # here
            optimizer.zero_grad()
            loss_of(model, batch).backward()
            optimizer.step()
    return w


@wrong("requires-grad-of-module")
def unfrozen_by_an_attribute_elsewhere(watch):
    model = net()
    unfreeze(model[0].requires_grad_(False))
    optimizer = SGD(model.parameters(), 0.1)
    with watch(model, optimizer) as w:
        for batch in batches(6):
            optimizer.zero_grad()
            loss_of(model, batch).backward()
            optimizer.step()  # here
    return w


class Flagged(nn.Linear):
    """Has an attribute of this name for itself."""

    requires_grad: bool

    def forward(self, x):
        with torch.set_grad_enabled(self.requires_grad):
            return super().forward(x)


@right
def attributes_of_modules_that_mean_something(watch):
    model = net()
    model.append(Flagged(4, 4))
    model[3].requires_grad = False
    model[0].requires_grad = False
    model[0].requires_grad_(model[0].requires_grad)
    model.register_parameter("offset", nn.Parameter(torch.zeros(4)))
    with watch(model, SGD(model.parameters(), 0.1)) as w:
        for x, y in batches(6):
            w.loop.trackers[0].optimizer.zero_grad()
            F.cross_entropy(model[:3](x) + model.offset, y).backward()
            w.loop.trackers[0].optimizer.step()
        model[2].requires_grad = True
        assert model[2].requires_grad and not hasattr(model[1], "requires_grad")
        del model[2].requires_grad
        assert not hasattr(model[2], "requires_grad")
    assert "requires_grad" not in vars(nn.Module)
    return w


def actor_and_critic():
    torch.manual_seed(0)
    return net(), nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))


def chosen(actor, x):
    policy = torch.distributions.Categorical(logits=actor(x))
    action = policy.sample()
    return policy.log_prob(action), (action == x[:, :4].argmax(1)).float()


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


def test_a_model_that_is_replaced_is_named_from_its_update_on(tmp_path):
    w = model_is_replaced_on_the_way(watched(tmp_path))
    assert [f.update for f in w.faults] == [51]
    assert w.loop.outputs[0].final.verdict == "step-without-gradient"


def test_gradients_that_are_zeroed_away_are_no_broken_graph(tmp_path):
    w = a_loss_is_zeroed_away_by_the_next(watched(tmp_path))
    final = w.loop.outputs[0].final
    assert [f.update for f in w.faults] == [1]
    assert "broken_graph" not in {finding.code for finding in final.findings}


def test_a_step_that_is_missing_is_named_at_the_backward_pass(tmp_path):
    model = net()
    optimizers = [SGD(part.parameters(), 0.1) for part in (model[:2], model[2])]
    with watched(tmp_path)(model, optimizers) as w:
        for batch in batches(25):
            model.zero_grad()
            line = inspect.currentframe().f_lineno + 1
            loss_of(model, batch).backward()
            optimizers[1].step()
    assert [(f.name, f.optimizer, f.site[1]) for f in w.faults] == [("step-missing", 0, line)]


@pytest.mark.parametrize("right", [False, True])
def test_steps_without_any_backward_pass(right, tmp_path):
    model = net()
    optimizer = SGD(model.parameters(), 0.1)
    with watched(tmp_path)(model, optimizer) as w:
        for batch in batches(15):
            optimizer.zero_grad()
            loss_of(model, batch)
            with torch.no_grad():
                for p in model.parameters() if right else ():  # as evolution does
                    p.add_(torch.randn_like(p) * 0.01)
            optimizer.step()
    assert [f.name for f in w.faults] == ["step-without-gradient"] * (not right)


@pytest.mark.parametrize("in_training", [True, False])
def test_a_model_of_which_no_optimizer_holds_anything(in_training, tmp_path):
    model = net()
    model[2].train(in_training)
    optimizer = SGD(model[:2].parameters(), 0.1)
    with watched(tmp_path)([model[:2], model[2]], optimizer) as w:
        for batch in batches(25):
            model.zero_grad()
            loss_of(model, batch).backward()
            optimizer.step()
    assert [f.name for f in w.faults] == ["weights-without-optimizer"] * in_training


def watched(tmp_path, **more):
    return lambda *parts: gradlab.watch(*parts, folder=tmp_path, quiet=True, **more)


@pytest.mark.parametrize("name", WRONG)
def test_a_mistake_is_reported_at_its_line(name, tmp_path):
    code, optimizer, loop = WRONG[name]
    watch = loop(watched(tmp_path))
    assert not watch.broken
    assert [(fault.name, fault.site[1], fault.optimizer) for fault in watch.faults] == [(code, marked(loop), optimizer)]


@pytest.mark.parametrize("name", RIGHT)
def test_its_correct_twin_has_none(name, tmp_path):
    watch = RIGHT[name](watched(tmp_path))
    assert not watch.broken
    assert [fault.line for fault in watch.faults] == []
    assert all(output.num_updates for output in watch.loop.outputs)
