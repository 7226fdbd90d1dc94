"""Losses that are passed twice, and sums that hold their graphs: each mistake at its line, none in its twin."""

import pytest
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_
from torch.optim import SGD
from watched_loops import batches, loss_of, net
from watched_twins import Twins, dropping, watched

pytestmark = pytest.mark.filterwarnings("ignore:.parameters. is an empty generator")
TWINS = Twins()
wrong, right = TWINS.wrong, TWINS.right


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


@pytest.mark.parametrize("name", TWINS.of_mistakes)
def test_a_mistake_is_reported_at_its_line(name, tmp_path):
    TWINS.check_mistake(name, tmp_path)


@pytest.mark.parametrize("name", TWINS.of_right_loops)
def test_its_correct_twin_has_none(name, tmp_path):
    TWINS.check_right_loop(name, tmp_path)


def test_what_takes_some_updates_to_notice_is_said_of_the_first_of_them(tmp_path):
    w = left_in_eval(watched(tmp_path))
    assert [f.update for f in w.faults] == [5]
    assert "first seen at update 5; call model.train()" in w.report()
