"""A loss that rises with its own targets is a warning; one that rises against fixed targets is critical."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import gradlab
from gradlab.watch.events import Seen
from gradlab.watch.graphs.loss_graph import target_size
from gradlab.watch.graphs.reversals import Reversals

UPDATES = 320


def squares(out, goal):
    return (out - goal).square().mean()


def value_net():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
    return net, copy.deepcopy(net), torch.optim.Adam(net.parameters(), 1.5e-2)


def learn_values(folder, loss_of, acts):
    """One reward a step, episodes of 33 steps: values and the noise of the targets grow from nothing."""
    net, target, optimizer = value_net()
    with gradlab.watch(net, optimizer, folder=folder, quiet=True) as watch:
        for i in range(UPDATES):
            if acts:
                with torch.no_grad():
                    net(torch.randn(1, 8))
            goes_on = (torch.rand(32, 1) < 0.97).float()
            goal = 1 + goes_on * target(torch.randn(32, 8)).detach()
            optimizer.zero_grad()
            loss_of(net(torch.randn(32, 8)), goal).backward()
            optimizer.step()
            if i % 6 == 5:
                target.load_state_dict(net.state_dict())
    return watch.loop.outputs[0].final


@pytest.mark.parametrize("loss_of, acts, seen", [(F.mse_loss, False, "its targets went"), (squares, True, "also runs")])
def test_a_loss_that_rises_with_its_targets_is_a_warning(loss_of, acts, seen, tmp_path):
    found = learn_values(tmp_path, loss_of, acts)
    assert found.verdict == "diverged"
    assert seen in found.sentence
    assert not found.unhealthy


@pytest.mark.parametrize("evaluates", [False, True])
def test_against_fixed_targets_it_is_critical(evaluates, tmp_path):
    net, _, _ = value_net()
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    with gradlab.watch(net, optimizer, folder=tmp_path, quiet=True) as watch:
        for i in range(UPDATES):
            if evaluates and i % 20 == 0:  # not in eval(), though it should be
                with torch.no_grad():
                    net(torch.randn(1, 8))
            x = torch.randn(32, 8)
            optimizer.param_groups[0]["lr"] *= 1.04
            optimizer.zero_grad()
            F.mse_loss(net(x), x[:, :1]).backward()
            optimizer.step()
    found = watch.loop.outputs[0].final.findings
    assert "critical" in [each.severity for each in found if each.code == "diverged"]


@pytest.mark.parametrize("loss_of", [F.mse_loss, F.smooth_l1_loss])
@pytest.mark.parametrize("learns", [True, False])
def test_a_loss_that_rises_less_than_its_targets_is_healthy(loss_of, learns, tmp_path):
    """A curriculum: each stage has targets and noise twice as large. Where nothing is learnt, it does not hide that."""
    net, _, _ = value_net()
    optimizer = torch.optim.Adam(net.parameters(), 3e-2 if learns else 1e-5)
    with gradlab.watch(net, optimizer, folder=tmp_path, quiet=True) as watch:
        for i in range(UPDATES):
            x = torch.randn(32, 8)
            goal = 2 ** (i // 80) * (6 + 0.3 * x[:, :1] + torch.randn(32, 1))
            optimizer.zero_grad()
            loss_of(net(x), goal).backward()
            optimizer.step()
    assert (watch.loop.outputs[0].final.verdict == "healthy") == learns


def test_a_loss_of_a_model_that_makes_its_targets_need_not_fall(tmp_path):
    """Noise is all that there is to learn, and the model chooses what comes next; one that never runs alone may be
    told that it does not learn."""
    verdicts = []
    for acts in (True, False):
        net, _, optimizer = value_net()
        with gradlab.watch(net, optimizer, folder=tmp_path / str(acts), quiet=True) as watch:
            for i in range(UPDATES):
                if acts and i % 2:
                    with torch.no_grad():
                        net(torch.randn(1, 8))
                optimizer.zero_grad()
                F.mse_loss(net(torch.randn(32, 8)), torch.randn(32, 1)).backward()
                optimizer.step()
        verdicts.append(watch.loop.outputs[0].final.verdict)
    assert verdicts == ["healthy", "not_learning"]


def test_targets_are_found_below_weights_and_sums():
    out, goal = torch.randn(4, 1, requires_grad=True), torch.full((4, 1), 3.0)
    weighted = (torch.rand(4, 1) * F.smooth_l1_loss(out, goal, reduction="none")).mean()
    for loss in (F.mse_loss(out, goal), weighted, out.square().mean() + F.huber_loss(out, goal) / 2):
        assert target_size(loss) == 9
    assert target_size(F.cross_entropy(out.view(1, 4), torch.tensor([1]))) is None


@pytest.mark.parametrize("is_policy", [True, False])
def test_the_level_of_a_policy_loss_says_nothing(is_policy, tmp_path):
    torch.manual_seed(0)
    net = nn.Linear(8, 3)
    optimizer = torch.optim.SGD(net.parameters(), 1e-3)
    with gradlab.watch(net, optimizer, folder=tmp_path, quiet=True) as watch:
        for i in range(120):
            policy = torch.distributions.Categorical(logits=net(torch.randn(64, 8)))
            action = policy.sample()
            advantage = 0.1 + i / 60 + (action - 1.0) * is_policy
            optimizer.zero_grad()
            (-(policy.log_prob(action) * advantage).mean()).backward()
            optimizer.step()
    final = watch.loop.outputs[0].final
    assert final.verdict == ("healthy" if is_policy else "diverged")
    assert ("is that of a policy" in final.sentence, "another optimizer" in str(final)) == (is_policy, False)


class Turned(torch.autograd.Function):
    """The same numbers, and a multiple of their gradient; at first none."""

    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return ctx.factor * gradient, None


G = torch.arange(1.0, 33.0)
HUGE = G[:1].expand(1 << 22, 1 << 18)
ONE_OF_MANY = torch.eye(32)[3]


@pytest.mark.parametrize(
    ("passed", "given", "reverses"),
    [
        ((-G.view(4, 8),), (G,), True),
        (((-G[:1]).expand_as(HUGE),), (HUGE,), True),
        ((HUGE,), (G,), False),
        ((-G[0],), (G[0],), False),
        ((-ONE_OF_MANY,), (ONE_OF_MANY,), False),
        ((G, -G), (G,), False),
        ((-G, G.new_zeros(32)), (G,), False),
    ],
)
def test_all_that_a_function_passes_on_is_turned_round(passed, given, reverses):
    reversals = Reversals(Seen())
    reversals.compare(Turned, passed, given)
    assert reversals.seen.reverses == reverses


@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_a_gradient_that_is_turned_round_is_seen(sign, tmp_path):
    body, head, judge = nn.Linear(8, 4), nn.Linear(4, 1), nn.Linear(4, 1)
    optimizer = torch.optim.SGD([p for part in (body, head, judge) for p in part.parameters()], 0.01)
    with gradlab.watch([body, head, judge], optimizer, folder=tmp_path, quiet=True) as watch:
        for i in range(20):
            hidden = body(torch.randn(16, 8))
            optimizer.zero_grad()
            (head(hidden).square().mean() + judge(Turned.apply(hidden, sign * i)).square().mean()).backward()
            optimizer.step()
    assert not watch.broken and watch.loop.seen.reverses == (sign < 0)


@pytest.mark.parametrize("own", [True, False])
def test_a_loss_against_its_own_outputs_may_stay_where_it_is(own, tmp_path):
    """Codes that cannot foretell their targets: these are outputs of the network, or noise of the same size."""
    torch.manual_seed(0)
    net, codes = nn.Linear(4, 8), nn.Parameter(torch.zeros(8))
    optimizer = torch.optim.Adam([*net.parameters(), codes], 1e-2)
    with gradlab.watch(net, optimizer, folder=tmp_path, quiet=True) as watch:
        for _ in range(UPDATES):
            made = net(torch.randn(64, 4))
            goal = made.detach() / made.detach().std() if own else torch.randn(64, 8)
            optimizer.zero_grad()
            (F.mse_loss(codes.expand(64, 8), goal) + 1e-4 * made.square().mean()).backward()
            optimizer.step()
    assert watch.loop.outputs[0].final.verdict == ("healthy" if own else "not_learning")
