"""Training and evaluation mode, and windows: each mistake at its line, and nothing in its correct twin."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD
from watched_loops import batches, loss_of, net
from watched_twins import Twins, dropping, validated, watched

pytestmark = pytest.mark.filterwarnings("ignore:.parameters. is an empty generator")
TWINS = Twins()
wrong, right = TWINS.wrong, TWINS.right


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


def evaluated_first(model):
    model.eval()
    with torch.no_grad():
        return loss_of(model, next(batches(1)))


@pytest.mark.parametrize("how", ["left", "back", "here"])
def test_a_model_that_is_evaluated_before_it_is_trained(how, tmp_path):
    """Where the function that sets the mode trains too, it may be meant for all that it does."""
    model = dropping()
    optimizer = SGD(model.parameters(), 0.1)
    with watched(tmp_path)(model, optimizer) as w:
        if how == "here":
            model.eval()
            with torch.no_grad():
                loss_of(model, next(batches(1)))
        else:
            evaluated_first(model)
        if how == "back":
            model.train()
        for batch in batches(8):
            optimizer.zero_grad()
            loss_of(model, batch).backward()
            optimizer.step()
    line = evaluated_first.__code__.co_firstlineno + 1
    assert [(f.name, f.site[1], f.update) for f in w.faults] == [("training-in-eval", line, 1)] * (how == "left")


def measured(model):
    model.eval()  # also with a graph, as where no_grad() is forgotten
    return loss_of(model, next(batches(1))).item()


def tuned(model, optimizer):
    model.eval()
    for batch in batches(4):
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        optimizer.step()


@pytest.mark.parametrize("how", ["measured", "tuned"])
def test_a_function_that_leaves_a_model_in_eval(how, tmp_path):
    """Where it trains in eval(), that may be meant for what comes after it too."""
    model = dropping()
    optimizer = SGD(model.parameters(), 0.1)
    with watched(tmp_path)(model, optimizer) as w:
        for epoch in range(2):
            for batch in batches(5):
                optimizer.zero_grad()
                loss_of(model, batch).backward()
                optimizer.step()
            if not epoch:
                measured(model) if how == "measured" else tuned(model, optimizer)
    line = measured.__code__.co_firstlineno + 1
    assert [(f.name, f.site[1]) for f in w.faults] == [("training-in-eval", line)] * (how == "measured")


@wrong("training-in-eval")
def never_in_training_mode_and_without_statistics(watch):
    model = dropping()
    model.insert(1, nn.BatchNorm1d(16))
    optimizer = SGD(model.parameters(), 0.1)
    with watch(model, optimizer) as w:
        for _ in range(3):
            model.eval()  # here
            with torch.no_grad():
                loss_of(model, next(batches(1)))
            for batch in batches(8):
                optimizer.zero_grad()
                loss_of(model, batch).backward()
                optimizer.step()
    return w


@right
def statistics_of_an_earlier_training(watch):
    model = dropping()
    model.insert(1, nn.BatchNorm1d(16))
    model(next(batches(1))[0])
    model.eval()
    optimizer = SGD(model.parameters(), 0.1)
    with watch(model, optimizer) as w:
        for batch in batches(24):
            optimizer.zero_grad()
            loss_of(model, batch).backward()
            optimizer.step()
    return w


@right
def an_affine_layer_beside_training_mode(watch):
    model = dropping()
    model.insert(1, nn.BatchNorm1d(16).eval())
    optimizer = SGD(model.parameters(), 0.1)
    with watch(model, optimizer) as w:
        for batch in batches(24):
            optimizer.zero_grad()
            loss_of(model, batch).backward()
            optimizer.step()
    return w


class StaysInEval(nn.Sequential):
    def train(self, mode=True):
        return super().train(False)


def probed(model):
    """The shape of features that only a new head is trained on."""
    model[0].requires_grad_(False)
    model.eval()
    with torch.no_grad():
        assert model(torch.zeros(1, 8)).shape == (1, 4)


def set_again(model):
    validated(model)
    model.train(False)


def set_part_by_part(model):
    validated(model)
    model[0].train()
    model[2].eval()


def told_to_train(model):
    validated(model)
    model.train()


def set_up(model):
    model.eval()


def set_up_and_tried(model):
    """The mode is set by another function than the one that evaluates."""
    set_up(model)
    with torch.no_grad():
        loss_of(model, next(batches(1)))


@pytest.mark.parametrize("prepare", [probed, set_again, set_part_by_part, told_to_train, set_up_and_tried])
def test_a_mode_that_is_set_before_training_may_be_meant(prepare, tmp_path):
    kind = nn.Sequential if prepare is set_up_and_tried else StaysInEval
    model = kind(*dropping()).requires_grad_()
    nn.Sequential.train(model, True)
    with watched(tmp_path)(model) as w:
        prepare(model)
        optimizer = SGD([p for p in model.parameters() if p.requires_grad], 0.1)
        for batch in batches(8):
            optimizer.zero_grad()
            loss_of(model, batch).backward()
            optimizer.step()
    assert w.faults == []


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
    optimizer = SGD(model[2].parameters(), 0.1)  # here
    with watch(model, optimizer) as w:
        for batch in batches(24):
            model.zero_grad()
            loss_of(model, batch).backward()
            optimizer.step()
    return w


@pytest.mark.parametrize("name", TWINS.of_mistakes)
def test_a_mistake_is_reported_at_its_line(name, tmp_path):
    TWINS.check_mistake(name, tmp_path)


@pytest.mark.parametrize("name", TWINS.of_right_loops)
def test_its_correct_twin_has_none(name, tmp_path):
    TWINS.check_right_loop(name, tmp_path)
