"""Weights that no optimizer holds, or two do: each mistake at its line, and nothing in its correct twin."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD, Adam
from watched_loops import batches, loss_of, net
from watched_twins import Twins, adversaries, judged, watched

import gradlab

pytestmark = pytest.mark.filterwarnings("ignore:.parameters. is an empty generator")
TWINS = Twins()
wrong, right = TWINS.wrong, TWINS.right


@wrong("weights-without-optimizer")
def a_head_is_replaced_after_the_optimizer_is_made(watch):
    model = net()
    optimizer = SGD(model.parameters(), 0.1)  # here
    model[2] = nn.Linear(16, 4)
    with watch(model, optimizer) as w:
        for batch in batches(24):
            optimizer.zero_grad()
            loss_of(model, batch).backward()
            optimizer.step()
    return w


@wrong("weights-without-optimizer")
def a_head_is_replaced_while_the_loop_runs(watch):
    model = net()
    optimizer = SGD(model.parameters(), 0.1)  # here
    with watch(model, optimizer) as w:
        for i, batch in enumerate(batches(80)):
            if i == 10:
                model[2] = nn.Linear(16, 4)
            optimizer.zero_grad()
            loss_of(model, batch).backward()
            optimizer.step()
    return w


@right
def a_head_is_replaced_and_held_later(watch):
    model = net()
    optimizer = SGD(model.parameters(), 0.1)
    with watch(model, optimizer) as w:
        for i, batch in enumerate(batches(80)):
            if i == 10:
                model[2] = nn.Linear(16, 4)
            if i == 60:
                optimizer.add_param_group({"params": model[2].parameters()})
            optimizer.zero_grad()
            loss_of(model, batch).backward()
            optimizer.step()
    return w


def test_what_is_judged_of_the_whole_run_has_no_update(tmp_path, capsys):
    watch = a_head_is_replaced_after_the_optimizer_is_made(lambda *given: gradlab.watch(*given, folder=tmp_path))
    ((fault, final),) = [(fault, watch.loop.outputs[0].final) for fault in watch.faults]
    assert fault.update is None and next(f for f in final.findings if f.code == fault.name).began is None
    assert f"    {fault.kind.fix}" in watch.report().split("\n") and "at update" not in capsys.readouterr().err


@pytest.mark.parametrize("left", [False, True])
def test_a_gradient_that_nothing_adds_to_may_stay_where_others_are_zeroed(left, tmp_path):
    """As that of a head that was replaced after the optimizer was made; where one is added to, it is named."""
    model, old = net(), nn.Linear(16, 4)
    optimizer = SGD([*model.parameters(), *old.parameters()], 0.01)
    for p in optimizer.param_groups[0]["params"]:
        p.grad = torch.zeros_like(p)
    with watched(tmp_path)(model, optimizer) as w:
        for x, y in batches(12):
            (model[:2] if left else model).zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
    found = [(f.name, f.update, f.detail) for f in w.faults]
    assert found == ([("zero-grad-missing", 2, "those of 2.weight, 2.bias")] if left else [])
    assert len(w.loop.trackers[0].accumulated) == (12 if left else 1)


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
    names = "weight_ih_l0, weight_hh_l0, bias_ih_l0 and 1 more"
    assert [f.detail.partition(";")[0] for f in w.faults] == [f"the optimizer does not hold {names}"]


KEPT = """
class Training:
    def __init__(self, model):
        self.optimizer = SGD(model[2].parameters(), 0.1)

    def run(self, model, watch):
        with watch(model, self.optimizer) as w:
            self.loop(model)
        return w

    def loop(self, model):
        for batch in batches(24):
            model.zero_grad()
            loss_of(model, batch).backward()
            self.optimizer.step()
"""


@pytest.mark.parametrize("more", ["", "def other(p): return SGD(p, 0.2)"])
def test_an_optimizer_that_an_object_keeps_is_named_where_it_is_made(more, tmp_path):
    path, names = tmp_path / "kept.py", {"SGD": SGD, "batches": batches, "loss_of": loss_of}
    path.write_text(KEPT + more)
    exec(compile(KEPT + more, str(path), "exec"), names)
    model = net()
    w = names["Training"](model).run(model, watched(tmp_path / "out"))
    assert [(f.name, f.site[0].co_filename, f.site[1]) for f in w.faults] == [
        ("weights-without-optimizer", str(path), 4)
    ]


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
    class Listed(Several):
        def __init__(self):
            super().__init__(nn.ModuleList)
            layers = list(self.between)
            del self.between
            self.between = layers  # here

    model = Listed()
    optimizer = SGD(model.parameters(), 0.1)
    with watch(model, optimizer) as w:
        for batch in batches(24):
            optimizer.zero_grad()
            loss_of(model, batch).backward()
            optimizer.step()
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
    optimizer = SGD(model.parameters(), 0.1)  # here
    with watch(model, optimizer) as w:
        for batch in batches(24):
            optimizer.zero_grad()
            criterion(model(batch[0]), batch).backward()
            optimizer.step()
    return w


@wrong("weights-without-optimizer")
def a_temperature_is_left_out(watch):
    """It multiplies one side of a product."""
    model, classes, temperature = net(), torch.randn(4, 4), nn.Parameter(torch.zeros(()))
    optimizer = SGD(model.parameters(), 0.1)  # here
    with watch(model, optimizer) as w:
        for x, y in batches(24):
            optimizer.zero_grad()
            F.cross_entropy(temperature.exp() * F.normalize(model(x), dim=1) @ classes, y).backward()
            optimizer.step()
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


@wrong("requires-grad-of-module")
def frozen_by_an_attribute_at_first(watch):
    model = net()
    optimizer = SGD(model.parameters(), 0.1)
    with watch(model, optimizer) as w:
        for i, batch in enumerate(batches(30)):
            model[0].requires_grad = i >= 26  # here
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


@pytest.mark.parametrize("name", TWINS.of_mistakes)
def test_a_mistake_is_reported_at_its_line(name, tmp_path):
    TWINS.check_mistake(name, tmp_path)


@pytest.mark.parametrize("name", TWINS.of_right_loops)
def test_its_correct_twin_has_none(name, tmp_path):
    TWINS.check_right_loop(name, tmp_path)
