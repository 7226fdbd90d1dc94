"""Weights that stay as they were drawn: copies that make targets, rates far too low, groups that are frozen."""

import copy
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import Adam
from watched_loops import batches, loss_of, marked
from watched_twins import Twins, watched

from gradlab.watch import uses_in_text
from gradlab.watch.call_site import USER
from gradlab.watch.tracking.initial_weights import is_normal, is_uniform

TWINS = Twins()
right = TWINS.right


def wide(out=4):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, out))


def pretrained(model):
    optimizer = Adam(model.parameters(), 0.01)
    for batch in batches(30, seed=5):
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        optimizer.step()
    return model


def taught(watch, model, noise=0.1, anchor=False):
    fixed = copy.deepcopy(model).requires_grad_(False)
    fixed.eval()
    optimizer = Adam(model.parameters(), 1e-3)
    with watch(model, optimizer) as w:
        for x, y in batches(104):
            with torch.no_grad():
                wanted = fixed(x).softmax(1)  # here
            out = model(x) if anchor else model(x + noise * torch.randn_like(x))
            optimizer.zero_grad()
            (F.cross_entropy(out, y) + F.mse_loss(out.softmax(1), wanted)).backward()
            optimizer.step()
    return w


def copied(watch, model, every):
    teacher = copy.deepcopy(model)
    optimizer = Adam(model.parameters(), 1e-3)
    with watch(model, optimizer) as w:
        for i, (x, y) in enumerate(batches(104)):
            with torch.no_grad():
                wanted = teacher(x).softmax(1)
            out = model(x + 0.1 * torch.randn_like(x))
            optimizer.zero_grad()
            (F.cross_entropy(out, y) + F.mse_loss(out.softmax(1), wanted)).backward()
            optimizer.step()
            if i % every == every - 1:
                teacher.load_state_dict(model.state_dict())
    return w


def test_a_teacher_that_stays_as_it_was_drawn(tmp_path):
    watch = taught(watched(tmp_path), wide())
    assert [(f.name, f.site[1]) for f in watch.faults] == [("target-never-updated", marked(taught))]
    assert watch.loop.own_targets.makers == {0}, "its loss need not fall: a copy makes the targets"


def rebound(watch, model):
    late = copy.deepcopy(model).requires_grad_(False)
    optimizer = Adam(model.parameters(), 1e-3)
    with watch(model, optimizer) as w:
        for x, y in batches(104):
            with torch.no_grad():
                wanted = late(x).softmax(1)
            out = model(x + 0.1 * torch.randn_like(x))
            optimizer.zero_grad()
            (F.cross_entropy(out, y) + F.mse_loss(out.softmax(1), wanted)).backward()
            optimizer.step()
            with torch.no_grad():
                for old, new in zip(late.parameters(), model.parameters(), strict=True):
                    old = 0.1 * new + torch.mul(old, 0.9)  # here
    return w


def test_a_teacher_of_which_only_names_are_given_to_an_average(tmp_path):
    watch = rebound(watched(tmp_path), wide())
    assert [(f.name, f.site[1]) for f in watch.faults] == [("target-never-updated", marked(rebound))]


def chosen_by_the_trained_one(watch, model, in_loss):
    """As in double Q-learning: the trained network is shown what the other one is, to choose an action alone."""
    target = copy.deepcopy(model).requires_grad_(False)
    optimizer = Adam(model.parameters(), 1e-3)
    with watch(model, optimizer) as w:
        for x, y in batches(104):
            seen = model(x)
            wanted = target(x).gather(1, seen.argmax(1, keepdim=True))  # here
            q = model(x + 0.1 * torch.randn_like(x)).gather(1, y[:, None])
            optimizer.zero_grad()
            (F.smooth_l1_loss(q, wanted) + (seen.square().mean() if in_loss else 0)).backward()
            optimizer.step()
    return w


@pytest.mark.parametrize("in_loss", [False, True])
def test_a_target_network_whose_action_the_trained_one_chooses(in_loss, tmp_path):
    watch = chosen_by_the_trained_one(watched(tmp_path), wide(), in_loss)
    found = [("target-never-updated", marked(chosen_by_the_trained_one))]
    assert [(f.name, f.site[1]) for f in watch.faults] == found * (not in_loss)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.head = nn.GRU(4, 16, batch_first=True), nn.Linear(16, 4)

    def forward(self, x):
        return self.head(self.cell(x.unflatten(1, (2, 4)))[1][0])


@right
def a_recurrent_reference(watch):
    model = Recurrent()
    reference = copy.deepcopy(model).requires_grad_(False)
    optimizer = Adam(model.parameters(), 1e-3)
    with watch(model, optimizer) as w:
        for x, y in batches(104):
            with torch.no_grad():
                before = reference(x).log_softmax(1)
            out = model(x)
            optimizer.zero_grad()
            kept = F.kl_div(out.log_softmax(1), before, log_target=True, reduction="batchmean")
            (F.cross_entropy(out, y) + 0.1 * kept).backward()
            optimizer.step()
    return w


PAIR = """
import torch
from torch.nn import functional as F

class Pair:
    def __init__(self, make):
        self.online, self.late = make(), make()
        self.late.load_state_dict(self.online.state_dict())

    @torch.no_grad()
    def follow(self):
        for old, new in zip(self.late.parameters(), self.online.parameters()):
            {follow}

    def update(self, i, x, y, optimizer):
        with torch.no_grad():
            wanted = self.late(x).softmax(1)  # here
        out = self.online(x + 0.1 * torch.randn_like(x))
        optimizer.zero_grad()
        (F.cross_entropy(out, y) + F.mse_loss(out.softmax(1), wanted)).backward()
        optimizer.step()
        {then}
"""
MOVERS = """
class Kind:
    def move(self, to, of, i):
        "Move the one to the other."

class Late(Kind):
    def move(self, to, of, i):
        if i > 1000:
            to.load_state_dict(of.state_dict())
"""
PAIRS = {
    "moves it in a function": ("old.lerp_(new, 0.1)", "self.follow()", False),
    "is not called": ("old.lerp_(new, 0.1)", "", True),
    "may be called": ("old.lerp_(new, 0.1)", "self.follow() if i > 1000 else None", False),
    "changes a copy": ("old = old.detach().clone().mul_(0.9).add_(0.1 * new)", "self.follow()", True),
    "binds its name in a function": ("old = old.mul(0.9).add(new, alpha=0.1)", "self.follow()", True),
    "is a method that another class has": ("Late().move(self.late, self.online, 0)", "self.follow()", False),
    "passes it on": ("old = torch.lerp(old, new, blend(old, i))", "self.follow() if i > 1000 else None", False),
}


@pytest.mark.parametrize("how", PAIRS)
def test_a_network_that_begins_with_the_weights_that_it_is_to_follow(how, tmp_path, monkeypatch):
    follow, then, wrong = PAIRS[how]
    program = tmp_path / "train.py"
    program.write_text(PAIR.format(follow=follow, then=then) + MOVERS)
    names = {"__name__": "train"}
    monkeypatch.setattr(uses_in_text, "ORIGINS", {str(program): USER})  # and not the files of other tests
    exec(compile(program.read_text(), str(program), "exec"), names)
    pair = names["Pair"](wide)
    optimizer = Adam(pair.online.parameters(), 1e-3)
    with watched(tmp_path)(pair.online, optimizer) as watch:
        for i, (x, y) in enumerate(batches(104)):
            pair.update(i, x, y, optimizer)
    assert not watch.broken
    here = follow if follow.startswith("old = ") else "# here"
    line = next(i for i, each in enumerate(program.read_text().split("\n"), 1) if each.endswith(here))
    assert [(f.name, f.site[1]) for f in watch.faults] == [("target-never-updated", line)] * wrong


@right
def a_teacher_that_is_an_average(watch):
    model = wide()
    moved = copy.deepcopy(model).requires_grad_(False)
    optimizer = Adam(model.parameters(), 1e-3)
    with watch(model, optimizer) as w:
        for i, (x, _) in enumerate(batches(104)):
            wanted = moved(x).softmax(1)
            optimizer.zero_grad()
            F.mse_loss(model(x + 0.1 * torch.randn_like(x)).softmax(1), wanted).backward()
            optimizer.step()
            for old, new in zip(moved.parameters(), model.parameters(), strict=True):
                old.data = torch.lerp(old, new, 0.1 * (i > 1000))
    return w


@right
def a_teacher_that_is_copied_late(watch):
    return copied(watch, wide(), every=60)


@right
def a_teacher_that_is_to_be_copied(watch):
    return copied(watch, wide(), every=1000)


@right
def a_teacher_that_was_trained_before(watch):
    return taught(watch, pretrained(wide()))


@right
def a_teacher_of_the_same_inputs(watch):
    return taught(watch, wide(), anchor=True)


def rates(watch, model, slow, between=0.02):
    model.append(nn.Linear(4, 4))
    slowest, next_one = {"params": model[0].parameters(), "lr": slow}, {"params": model[3].parameters(), "lr": between}
    optimizer = Adam([slowest, next_one, {"params": model[2].parameters()}], 0.01)  # here
    with watch(model, optimizer) as w:
        for batch in batches(104):
            optimizer.zero_grad()
            loss_of(model, batch).backward()
            optimizer.step()
    return w


@pytest.mark.parametrize("slow", [1e-5, 1e-3])
def test_a_group_whose_rate_is_far_below_that_of_another(slow, tmp_path):
    found = [(f.name, f.site[1]) for f in rates(watched(tmp_path), wide(), slow).faults]
    assert found == [("learning-rate-far-lower", marked(rates))] * (slow == 1e-5)


@right
def rates_that_fall_from_layer_to_layer(watch):
    return rates(watch, wide(), 1e-5, between=3e-4)


def rates_of_tokens(watch, first=1.0, slow=1e-5, learnt=0.0, writes=0):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(16, 16), nn.Flatten(), nn.Linear(128, 4))
    table = model[0].weight.data.mul_(first)
    table += learnt * torch.randn(16, 2) @ torch.randn(2, 16)
    with torch.no_grad():
        for _ in range(writes):
            model[0].weight += 0.0
    optimizer = Adam([{"params": model[0].parameters(), "lr": slow}, {"params": model[2].parameters()}], 0.01)  # here
    with watch(model, optimizer) as w:
        for x, y in batches(104):
            optimizer.zero_grad()
            loss_of(model, ((4 * x).long().clamp(-8, 7) + 8, y)).backward()
            optimizer.step()
    return w


@pytest.mark.parametrize("first", [1.0, 0.2])
def test_embeddings_whose_rate_is_far_below_that_of_the_rest(first, tmp_path):
    found = [(f.name, f.site[1]) for f in rates_of_tokens(watched(tmp_path), first).faults]
    assert found == [("learning-rate-far-lower", marked(rates_of_tokens))]


@right
def embeddings_with_a_usual_rate(watch):
    return rates_of_tokens(watch, slow=1e-3)


@right
def embeddings_of_another_training(watch):
    return rates_of_tokens(watch, first=0.2, learnt=0.3)


@right
def embeddings_that_were_trained_for_a_while(watch):
    return rates_of_tokens(watch, writes=20)


RATES = {"items": 1e-2, "users": 2e-7}


def test_a_rate_is_named_where_it_is_written(tmp_path):
    torch.manual_seed(1)
    users, items = nn.Embedding(64, 32), nn.Embedding(64, 32)
    optimizer = Adam([{"params": users.parameters(), "lr": RATES["users"]}, {"params": items.parameters()}], 1e-2)
    with watched(tmp_path)(nn.ModuleList([users, items]), optimizer) as watch:
        for _ in range(104):
            optimizer.zero_grad()
            (users.weight * items.weight).sum(1).sub(1).square().mean().backward()
            optimizer.step()
    lines = Path(__file__).read_text().split("\n")
    assert [(f.name, lines[f.site[1] - 1][:5]) for f in watch.faults] == [("learning-rate-far-lower", "RATES")]


@right
def a_pretrained_part_with_a_small_rate(watch):
    return rates(watch, pretrained(wide()), 1e-5)


def frozen(watch, model, groups=True, until=0):
    model[0].requires_grad_(False)
    parts = [{"params": model[0].parameters(), "lr": 0.003}, {"params": model[2].parameters()}]
    optimizer = Adam(parts if groups else model.parameters(), 0.01)
    with watch(model, optimizer) as w:
        for i, batch in enumerate(batches(48)):
            if until and i == until:
                model[0].requires_grad_(True)
            optimizer.zero_grad()
            loss_of(model, batch).backward()
            optimizer.step()
    return w


@right
def random_features(watch):
    return frozen(watch, wide(), groups=False)


@right
def a_pretrained_group_that_is_frozen(watch):
    return frozen(watch, pretrained(wide()))


@right
def a_group_that_is_unfrozen_late(watch):
    return frozen(watch, wide(), until=40)


@right
def a_group_that_is_to_be_unfrozen(watch):
    return frozen(watch, wide(), until=1000)


@right
def a_group_whose_turn_has_not_come(watch):
    """Another one was unfrozen in the meantime."""
    torch.manual_seed(0)
    layers = [nn.Linear(8, 32), nn.Linear(32, 32), nn.Linear(32, 4)]
    model = nn.Sequential(*layers)
    model[:2].requires_grad_(False)
    optimizer = Adam([{"params": layer.parameters()} for layer in layers], 0.01)
    with watch(model, optimizer) as w:
        for i, batch in enumerate(batches(48)):
            if i == 20:
                model[1].requires_grad_(True)
            optimizer.zero_grad()
            loss_of(model, batch).backward()
            optimizer.step()
    return w


def hardly_trained(watch):
    model = wide()
    optimizer = Adam(model.parameters(), 1e-6)  # here
    with watch(model, optimizer) as w:
        for batch in batches(104):
            optimizer.zero_grad()
            loss_of(model, batch).backward()
            optimizer.step()
    return w


def test_a_rate_that_is_too_low_for_all_is_named_where_the_optimizer_is_made(tmp_path):
    final = hardly_trained(watched(tmp_path)).loop.outputs[0].final
    assert (final.verdict, final.findings[0].evidence["line"]) == ("not_learning", marked(hardly_trained))
    assert final.findings[0].causes[0] == "the learning rate is too low"
    assert "where 0.0001 to 0.01 is usual" in final.sentence


@pytest.mark.parametrize("name", TWINS.of_right_loops)
def test_a_correct_loop_has_no_mistakes(name, tmp_path):
    TWINS.check_right_loop(name, tmp_path)


def test_training_takes_weights_out_of_their_first_distribution():
    layers = [nn.Linear(16, 64), nn.Conv2d(4, 16, 3), nn.GRU(8, 16)]
    assert all(is_uniform(p) for layer in layers for p in layer.parameters() if p.dim() > 1)
    assert not any(is_uniform(p) for p in (torch.randn(64, 64), torch.zeros(64, 64), torch.eye(32)))
    assert is_normal(torch.randn(64, 64)) and is_normal(nn.Embedding(20, 8).weight)
    assert is_normal(0.1 * torch.randn(64, 16)) and not is_normal(torch.randn(64, 1) @ torch.randn(1, 16))
    assert not any(map(is_normal, (1 + torch.randn(64, 64), torch.zeros(64, 64), layers[0].weight)))
    model = wide()
    assert is_uniform(model[0].weight) and not is_uniform(pretrained(model)[0].weight)
