"""Training and evaluation mode, and windows: each mistake at its line, and nothing in its correct twin."""

import pytest
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD
from watched_loops import batches, loss_of, net
from watched_twins import Twins, dropping, validated

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
