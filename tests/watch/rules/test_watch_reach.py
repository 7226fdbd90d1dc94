"""What losses reach, and what steps move: each mistake at its line, and nothing in its correct twin."""

import copy
import inspect

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD, Adam
from watched_loops import batches, loss_of, net
from watched_twins import Twins, watched

pytestmark = pytest.mark.filterwarnings("ignore:.parameters. is an empty generator")
TWINS = Twins()
wrong, right = TWINS.wrong, TWINS.right


@wrong("step-without-gradient")
def optimizer_of_an_older_model(watch):
    model = net()
    optimizer, model = SGD(model.parameters(), 0.1), copy.deepcopy(model)  # here
    with watch(model, optimizer) as w:
        for batch in batches(6):
            optimizer.zero_grad()
            loss_of(model, batch).backward()
            optimizer.step()
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


def test_a_model_that_is_replaced_is_named_from_its_update_on(tmp_path):
    w = model_is_replaced_on_the_way(watched(tmp_path))
    assert [f.update for f in w.faults] == [51]
    assert w.loop.outputs[0].final.verdict == "step-without-gradient"


def test_gradients_that_are_zeroed_away_are_no_broken_graph(tmp_path):
    w = a_loss_is_zeroed_away_by_the_next(watched(tmp_path))
    final = w.loop.outputs[0].final
    assert [f.update for f in w.faults] == [1]
    assert "broken_graph" not in {finding.code for finding in final.findings}


@pytest.mark.parametrize("beside", [True, False])
def test_a_step_that_is_missing_is_named_beside_the_other_or_at_the_backward_pass(beside, tmp_path):
    model, other = net(), net()
    parts = (model[:2], model[2]) if beside else (model, other)
    optimizers = [SGD(part.parameters(), 0.1) for part in parts]
    with watched(tmp_path)([model, other], optimizers) as w:
        for batch in batches(25):
            model.zero_grad()
            line = inspect.currentframe().f_lineno + 1
            loss_of(model, batch).backward()
            if not beside:
                other.zero_grad()
                loss_of(other, batch).backward()
            optimizers[1].step()
    line += 4 * beside
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


@pytest.mark.parametrize("name", TWINS.of_mistakes)
def test_a_mistake_is_reported_at_its_line(name, tmp_path):
    TWINS.check_mistake(name, tmp_path)


@pytest.mark.parametrize("name", TWINS.of_right_loops)
def test_its_correct_twin_has_none(name, tmp_path):
    TWINS.check_right_loop(name, tmp_path)
