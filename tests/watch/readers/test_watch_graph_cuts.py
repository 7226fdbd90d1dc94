"""Where the graph between weights and a loss ends: found at its line, and following it leaves the training as it is."""

import contextlib
import inspect

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import Adam
from watched_loops import batches, marked, net

import gradlab


def watched(tmp_path):
    return lambda *parts: gradlab.watch(*parts, folder=tmp_path, quiet=True)


ENDS = {
    "detach": lambda h: h.detach(),
    "data": lambda h: h.data,
    "numpy": lambda h: torch.from_numpy(h.detach().numpy()),
    "numbers": lambda h: torch.tensor(h.tolist()),
    "index": lambda h: F.one_hot(h.argmax(1), h.shape[1]).float(),
    "comparison": lambda h: (h > 0).float(),
    "rounded": lambda h: h.round(),
}


@pytest.mark.parametrize("end", [*ENDS, "no_grad"])
@pytest.mark.parametrize("several", [False, True])
def test_where_a_graph_ends_is_found(end, several, tmp_path):
    model = net()
    first, last = model[:2], model[2]
    optimizers = [Adam(part.parameters(), 1e-2) for part in (first, last)] if several else [Adam(model.parameters())]
    with watched(tmp_path)([first, last], optimizers) as w:
        for x, y in batches(25):
            model.zero_grad()
            if end == "no_grad":
                line = inspect.currentframe().f_lineno + 1
                with torch.no_grad():
                    hidden = first(x)
            else:
                line = inspect.currentframe().f_lineno + 1
                hidden = ENDS[end](first(x))
            hidden.mean().item()  # looked at
            F.cross_entropy(last(hidden), y).backward()
            for optimizer in optimizers:
                optimizer.step()
    assert not w.broken
    assert {f.name for f in w.faults} <= {"graph-cut", "step-without-gradient"}
    assert {f.site[1] for f in w.faults} == {line if end == "no_grad" else inspect.getsourcelines(ENDS[end])[1]}


def codebook(model, x):
    """Straight-through, as in a VQ-VAE: it goes around the index."""
    hidden = model[:2](x)
    rounded = hidden.round()
    return model[2](hidden + (rounded - hidden).detach())


def test_a_gradient_that_goes_around_is_no_cut(tmp_path):
    model, average = net(), net(1)
    optimizer = Adam([*model.parameters(), *average.parameters()], 1e-2)
    with watched(tmp_path)([model, average], optimizer) as w:
        for x, y in batches(60):
            optimizer.zero_grad()
            loss = F.cross_entropy(codebook(model, x), y)
            (loss + F.mse_loss(model(x), average(x).detach())).backward()
            optimizer.step()
            for p, q in zip(average.parameters(), model.parameters(), strict=True):
                p.data = 0.9 * p.data + 0.1 * q.data
    assert not w.faults
    assert w.loop.outputs[0].final.verdict == "healthy"


def test_weights_that_a_later_loss_trains_are_not_cut_off(tmp_path):
    """As by soft actor-critic's temperature, whose step comes first here; weights of a dead feature never move."""
    torch.manual_seed(0)
    model, dead, temperature = nn.Linear(4, 1), nn.Linear(4, 1, bias=False), nn.Parameter(torch.zeros(()))
    optimizers = [Adam([*model.parameters(), *dead.parameters()], 1e-2), Adam([temperature], 1e-2)]
    with watched(tmp_path)([model, dead], optimizers) as w:
        for _ in range(60):
            x = torch.randn(32, 4)
            made = model(x) + dead(torch.zeros_like(x))
            optimizers[1].zero_grad()
            (temperature * (made.detach().abs().mean() - 1.0)).backward()
            optimizers[1].step()
            optimizers[0].zero_grad()
            F.mse_loss(made, x.sum(1, keepdim=True)).backward()
            optimizers[0].step()
    assert not w.faults
    assert [output.final.verdict for output in w.loop.outputs] == ["healthy", "healthy"]


def test_following_leaves_no_mode_and_the_same_weights(tmp_path):
    weights = []
    for watch in (watched(tmp_path), None):
        model = net()
        model.insert(2, nn.Dropout(0.2))
        optimizer = Adam(model.parameters(), 1e-2)
        with watch(model, optimizer) if watch else contextlib.nullcontext():
            for x, y in batches(3):
                optimizer.zero_grad()
                with torch.device("meta"):  # a mode of the loop's own
                    torch.empty(2)
                F.cross_entropy(model[2:](model[:2](x).detach()), y).backward()
                optimizer.step()
        assert not torch.overrides._get_current_function_mode_stack()
        weights.append(model.state_dict())
    assert all(torch.equal(a, b) for a, b in zip(*(each.values() for each in weights), strict=True))


@torch.no_grad()
def features(first, x):
    return first(x)


def test_a_function_without_gradients_is_named_itself(tmp_path):
    model = net()
    optimizer = Adam(model.parameters(), 1e-2)
    with watched(tmp_path)(model, optimizer) as w:
        for x, y in batches(25):
            optimizer.zero_grad()
            F.cross_entropy(model[2](features(model[:2], x)), y).backward()
            optimizer.step()
    assert [(f.name, f.site[1]) for f in w.faults] == [("graph-cut", inspect.getsourcelines(features)[1])]


def test_of_an_index_and_a_value_the_value_is_named(tmp_path):
    codes, model = nn.Embedding(16, 8), net()
    optimizer = Adam([*model.parameters(), *codes.parameters()], 1e-2)
    with watched(tmp_path)([model, codes], optimizer) as w:
        for x, y in batches(25):
            optimizer.zero_grad()
            chosen = codes(torch.cdist(x, codes.weight).argmin(1))
            line = inspect.currentframe().f_lineno + 1
            passed = x + (chosen - x).detach()
            F.cross_entropy(model(passed), y).backward()
            optimizer.step()
    assert [(f.name, f.site[1], f.update) for f in w.faults] == [("graph-cut", line, None)]


def test_a_loss_that_rises_by_a_part_that_is_a_number_is_not_said_to_diverge(tmp_path):
    model, other = net(), nn.Linear(8, 1)
    optimizer = Adam([*model.parameters(), *other.parameters()], 1e-2)
    with watched(tmp_path)([model, other], optimizer) as w:
        for i, (x, y) in enumerate(batches(60)):
            optimizer.zero_grad()
            (F.cross_entropy(model(x), y) + i * other(x).square().mean().item()).backward()
            optimizer.step()
    final = w.loop.outputs[0].final
    (found,) = [each for each in final.findings if each.code == "diverged"]
    assert found.severity == "warning" and found.causes[0] == "a term of the loss that nothing trains"
    assert final.verdict == "broken_graph"


def quantised(first, table, x):
    """The codes are to follow the states, and their loss is computed of what has lost their graph."""
    hidden = first(x)
    with torch.no_grad():
        chosen = torch.cdist(hidden, table).argmin(1)
    codes = table[chosen]
    codes = hidden + (codes - hidden).detach()  # here
    return codes, F.mse_loss(codes, hidden.detach())


def test_a_value_that_only_chooses_is_not_where_the_graph_ends(tmp_path):
    model, table = net(), nn.Parameter(torch.randn(8, 16))
    optimizer = Adam([*model.parameters(), table], 1e-3)
    with watched(tmp_path)(model, optimizer) as w:
        for x, y in batches(25):
            optimizer.zero_grad()
            codes, commitment = quantised(model[:2], table, x)
            (F.cross_entropy(model[2](codes), y) + commitment).backward()
            optimizer.step()
    assert [(f.name, f.site[1]) for f in w.faults] == [("graph-cut", marked(quantised))]


def against(maker, judge, first, second, x):
    """One network against another: the detach of the first loss is right, that of the second is not."""
    made, one, zero = maker(x), torch.ones(len(x), 1), torch.zeros(len(x), 1)
    loss = F.binary_cross_entropy_with_logits(judge(x), one)
    loss = loss + F.binary_cross_entropy_with_logits(judge(made.detach()), zero)
    first.zero_grad()
    loss.backward()
    first.step()
    second.zero_grad()
    F.binary_cross_entropy_with_logits(judge(made.detach()), one).backward()  # here
    second.step()


@pytest.mark.parametrize("judge_first", [False, True])
def test_the_graph_of_a_network_ends_in_its_own_loss(judge_first, tmp_path):
    maker, judge = nn.Linear(8, 8), nn.Linear(8, 1)
    first, second = Adam(judge.parameters(), 1e-3), Adam(maker.parameters(), 1e-3)
    with watched(tmp_path)([maker, judge], [first, second] if judge_first else [second, first]) as w:
        for x, _ in batches(25):
            against(maker, judge, first, second, x)
    assert {f.site[1] for f in w.faults} == {marked(against)}
