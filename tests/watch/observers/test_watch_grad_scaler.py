"""Loss scales and precision: needless, missing, updated too often, or not passed to the watch."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import clip_grad_norm_
from watched_loops import batches, half_loss, loss_of, marked, net, run

import gradlab
from gradlab.watch.graphs.graph_dtypes import graph_dtypes


def reported(watch):
    assert not watch.broken
    return [(fault.code, fault.site[1], fault.update) for fault in watch.faults]


def scaled_outside(model, optimizer, scaler, schedule):
    for x, y in batches(4):
        optimizer.zero_grad()
        out = model(x)  # here
        scaler.scale(F.cross_entropy(out, y)).backward()
        scaler.step(optimizer)
        scaler.update()


def scaled_bf16(model, optimizer, scaler, schedule):
    for batch in batches(4):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = loss_of(model, batch)
        scaler.scale(loss).backward()  # here
        scaler.step(optimizer)
        scaler.update()


def by_hand(model, clipped=0.0, unscaled="", again=False, scaled=False):
    """Clips to a bound, divides by the scale, or multiplies the loss by it, without a call of the scaler's."""
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)
    for i, batch in enumerate(batches(12)):
        loss = scaler.scale(half_loss(model, batch) / 2)
        loss = loss * scaler.get_scale() if again else loss  # again
        loss.backward()
        if unscaled == "each" or (unscaled and i % 2):
            for p in model.parameters():
                p.grad.div_(scaler.get_scale())  # each
        if i % 2 == 0:
            continue
        norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
        factor = clipped * (scaler.get_scale() if scaled else 1) / norm
        if clipped:
            for p in model.parameters():
                p.grad *= factor  # clipped
        optimizer.step() if unscaled else scaler.step(optimizer)
        scaler.update() if not unscaled else None
        optimizer.zero_grad()


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({"clipped": 0.1}, "clip-before-unscale"),
        ({"clipped": 0.1, "scaled": True}, None),
        ({"unscaled": "each"}, "unscale-every-micro-batch"),
        ({"unscaled": "once"}, None),
        ({"again": True}, "loss-scaled-twice"),
        ({}, None),
    ],
)
def test_what_is_done_by_hand_with_scaled_gradients(given, name, tmp_path):
    model = net()
    with gradlab.watch(model, folder=tmp_path, quiet=True) as watch:
        by_hand(model, **given)
    assert not watch.broken
    found = {f.name for f in watch.faults} & {"clip-before-unscale", "unscale-every-micro-batch", "loss-scaled-twice"}
    assert found == ({name} if name else set())


def unscaled_and_updated_each(model, optimizer, scaler, schedule):
    """PyTorch does not raise: update() resets the record that the gradient was unscaled."""
    for i, batch in enumerate(batches(4)):
        scaler.scale(half_loss(model, batch) / 2).backward()
        scaler.unscale_(optimizer)  # here
        if i % 2:
            scaler.step(optimizer)
            optimizer.zero_grad()
        scaler.update()


def skipped_without_zeroing(model, optimizer, scaler, schedule):
    scaler.load_state_dict(scaler.state_dict() | {"scale": 2.0**40})
    for batch in batches(4):
        scaler.scale(half_loss(model, batch)).backward()
        scaler.unscale_(optimizer)
        if not torch.isfinite(clip_grad_norm_(model.parameters(), 1.0)):
            continue  # here
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()


def a_penalty_is_not_scaled(model, optimizer, scaler, schedule):
    for batch in batches(4):
        optimizer.zero_grad()
        scaler.scale(half_loss(model, batch)).backward()
        (1e-3 * model[0].weight.square().sum()).backward()  # here
        scaler.step(optimizer)
        scaler.update()


@pytest.mark.parametrize(
    "loop, codes",
    [
        (a_penalty_is_not_scaled, ["GL207"]),
        (scaled_outside, ["GL208"]),
        (scaled_bf16, ["GL211"]),
        (unscaled_and_updated_each, ["GL203", "GL213"]),
    ],
)
def test_a_mistake_is_reported(loop, codes, tmp_path):
    watch = run(loop, tmp_path)
    assert [fault.code for fault in watch.faults] == codes
    assert reported(watch)[0] == (codes[0], marked(loop), 1)


def shared_scaler(update_each, folder):
    """One network steps at each pass, the other once in four."""
    one, two = net(), net()
    first, second = torch.optim.SGD(one.parameters(), 0.1), torch.optim.SGD(two.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=1)
    with gradlab.watch([one, two], [first, second], scaler=scaler, folder=folder, quiet=True) as watch:
        for i, batch in enumerate(batches(16)):
            if update_each or i % 4 == 3:
                first.zero_grad()
                scaler.scale(half_loss(one, batch)).backward()
                scaler.step(first)
            scaler.scale(half_loss(two, batch) / 4).backward()
            if i % 4 == 3:
                scaler.step(second)
                second.zero_grad()
            if update_each or i % 4 == 3:
                scaler.update()  # here
    return watch


@pytest.mark.parametrize("update_each", [True, False])
def test_a_scaler_that_is_updated_in_the_window_of_another_optimizer(update_each, tmp_path):
    watch = shared_scaler(update_each, tmp_path)
    assert not watch.broken
    assert [(f.code, f.site[1]) for f in watch.faults] == [("GL213", marked(shared_scaler))] * update_each


def test_a_check_that_skips_without_zeroing(tmp_path):
    watches = []
    with pytest.raises(RuntimeError, match="already been called"):
        run(lambda *parts: skipped_without_zeroing(*parts), tmp_path, watches=watches)
    assert reported(watches[0]) == [("GL206", marked(skipped_without_zeroing), 1)]


def guarded_step(model, optimizer, scaler, schedule):
    scaler.load_state_dict(scaler.state_dict() | {"scale": 2.0**40})
    for batch in batches(4):
        optimizer.zero_grad()
        scaler.scale(half_loss(model, batch)).backward()
        finite = all(p.grad.isfinite().all() for p in model.parameters())
        if len(batch) > 5:
            continue_with_others(batch)
        if finite:  # here
            scaler.step(optimizer)
            scaler.update()


def continue_with_others(batch):
    raise AssertionError


def forward_and_backward(model, scaler, batch):
    scaler.scale(half_loss(model, batch)).backward()


def backward_in_a_helper(model, optimizer, scaler, schedule):
    scaler.load_state_dict(scaler.state_dict() | {"scale": 2.0**40})
    for batch in batches(4):
        optimizer.zero_grad()  # here
        forward_and_backward(model, scaler, batch)
        if not all(p.grad.isfinite().all() for p in model.parameters()):
            continue
        scaler.step(optimizer)
        scaler.update()


@pytest.mark.parametrize("loop", [guarded_step, backward_in_a_helper])
def test_a_check_is_named_where_it_skips(loop, tmp_path):
    assert reported(run(loop, tmp_path))[0] == ("GL206", marked(loop), 1)


class AutocastInside(nn.Module):
    """Enters autocast in its own forward pass."""

    def __init__(self, dtype):
        super().__init__()
        self.net, self.dtype = net(), dtype

    def forward(self, x):
        with torch.autocast("cpu", dtype=self.dtype):
            return self.net(x)


def fp16_inside(model, optimizer):
    for batch in batches(4):
        optimizer.zero_grad()
        loss_of(model, batch).backward()  # here
        optimizer.step()


def scaled_inside(model, optimizer, scaler):
    for batch in batches(4):
        optimizer.zero_grad()
        scaler.scale(loss_of(model, batch)).backward()
        scaler.step(optimizer)
        scaler.update()


def test_autocast_inside_the_model(tmp_path):
    for dtype, code in ((torch.float16, ["GL210"]), (torch.bfloat16, [])):
        model = AutocastInside(dtype)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with gradlab.watch(model, optimizer, folder=tmp_path / "a", quiet=True) as watch:
            fp16_inside(model, optimizer)
        assert [fault.code for fault in watch.faults] == code
    model = AutocastInside(torch.float16)
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cpu", init_scale=2.0**8)
    with gradlab.watch(model, optimizer, scaler, folder=tmp_path / "b", quiet=True) as watch:
        scaled_inside(model, optimizer, scaler)
    assert watch.faults == []


def test_the_types_of_an_opaque_graph_are_unknown():
    x = torch.randn(4, 8, requires_grad=True)
    whole = torch.utils.checkpoint.checkpoint(lambda v: v * 2, x, use_reentrant=True)
    assert graph_dtypes([whole.sum()]) is None
    assert graph_dtypes([(x.half() * 2).float().sum()]) == {torch.float16, torch.float32}


def test_a_scaler_that_was_not_passed_to_the_watch(tmp_path):
    model = net()
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cpu", init_scale=2.0**8)
    with gradlab.watch(model, optimizer, folder=tmp_path, quiet=True) as watch:
        for batch in batches(4):
            optimizer.zero_grad()
            scaler.scale(half_loss(model, batch)).backward()
            clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
    assert [fault.code for fault in watch.faults] == ["GL201"]


def zeroed_before_step(model, optimizer, scaler, schedule):
    for batch in batches(4):
        scaler.scale(half_loss(model, batch)).backward()
        optimizer.zero_grad()  # here
        scaler.step(optimizer)
        scaler.update()


def test_an_error_of_pytorch_is_explained(tmp_path):
    watches = []
    with pytest.raises(AssertionError, match="No inf checks"):
        run(zeroed_before_step, tmp_path, watches=watches)
    assert reported(watches[0]) == [("GL103", marked(zeroed_before_step), 1)]


def two_tensors(model, scaler, batch):
    torch.autograd.backward(scaler.scale([half_loss(model, batch), half_loss(model, batch)]))


def stacked(model, scaler, batch):
    torch.stack([scaler.scale(half_loss(model, batch)), scaler.scale(half_loss(model, batch))]).sum().backward()


def scaled_within(model, scaler, batch):
    torch.logsumexp(scaler.scale(half_loss(model, batch)).reshape(1), 0).backward()


def scaled_by_hand(model, scaler, batch):
    scaler.scale(half_loss(model, batch)).backward()
    (scaler.get_scale() * half_loss(model, batch)).backward()


def in_two_parts(model, scaler, batch):
    """Of a scaled loss the second part is not; its gradient is."""
    with torch.autocast("cpu", dtype=torch.float16):
        hidden = model[0](batch[0])
    cut = hidden.detach().requires_grad_()
    scaler.scale(half_loss(model[1:], (cut, batch[1]))).backward()
    hidden.backward(cut.grad)


def scaled_afterwards(model, scaler, batch):
    scaler.scale(half_loss(model, batch)).backward(inputs=list(model[0].parameters()))
    scale = scaler.get_scale()
    half_loss(model, batch).backward(inputs=list(model[2].parameters()))
    for p in model[2].parameters():
        p.grad *= scale


@pytest.mark.parametrize(
    "backward", [two_tensors, stacked, scaled_within, scaled_by_hand, in_two_parts, scaled_afterwards]
)
def test_a_loss_may_be_scaled_in_other_ways(backward, tmp_path):
    model = net()
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cpu", init_scale=2.0**8)
    with gradlab.watch(model, optimizer, scaler, folder=tmp_path, quiet=True) as watch:
        for batch in batches(4):
            optimizer.zero_grad()
            backward(model, scaler, batch)
            scaler.step(optimizer)
            scaler.update()
    assert not watch.broken
    assert watch.faults == []


def undivided(gradient, scale):
    return gradient.square().sum()


def one_sided(gradient, scale):
    return 10 * (gradient.norm(2, 1) - 1).relu().mean()


PENALTIES = {
    "get_scale": lambda g, scale: (g / scale).square().sum(),
    "inverse": lambda g, scale: (g * (1 / scale)).norm(2, 1).sub(1).square().mean(),
    "with_the_samples": lambda g, scale: (g * (16 / scale)).square().sum(),
    "norm": lambda g, scale: (g.flatten().norm() / scale).square(),
    "direction": lambda g, scale: F.normalize(g, dim=1)[:, 0].mean(),
    "squares": lambda g, scale: g.square().sum() / scale**2,
    "inverse_squares": lambda g, scale: (1 / scale) ** 2 * g.pow(2).sum(),
    "lengths": lambda g, scale: (g * g.square().sum(1, keepdim=True).rsqrt() - 1).square().mean(),
    "layer_norm": lambda g, scale: F.layer_norm(g, (8,)).square().mean(),
    "samples": lambda g, scale: (128 / scale * g).square().sum(),
}


@pytest.mark.parametrize("kind", ["undivided", "one_sided", *PENALTIES])
def test_a_penalty_of_the_gradients_of_a_scaled_loss(kind, tmp_path):
    model = net()
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.01), torch.amp.GradScaler("cpu", init_scale=2.0**10)
    penalty = {"undivided": undivided, "one_sided": one_sided}.get(kind) or PENALTIES[kind]

    def loop():
        for x, y in batches(4):
            x.requires_grad_()
            loss = half_loss(model, (x, y))
            (g,) = torch.autograd.grad(scaler.scale(loss), x, create_graph=True)  # here
            scaler.scale(loss + 0.5 * penalty(g, scaler.get_scale())).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()

    with gradlab.watch(model, optimizer, scaler, folder=tmp_path, quiet=True) as watch:
        loop()
    assert not watch.broken
    found = [(fault.name, fault.site[1]) for fault in watch.faults]
    assert found == ([("loss-scaled-twice", marked(loop))] if kind not in PENALTIES else [])


def of_the_norm(scaled, g):
    return scaled + 0.1 * g.norm()


def of_a_product(scaled, g):
    return scaled + (g * torch.ones_like(g)).sum()


def of_a_product_alone(scaled, g):
    return (g * torch.ones_like(g)).sum()


@pytest.mark.parametrize("total", [of_the_norm, of_a_product, of_a_product_alone, "given"])
def test_what_grows_as_the_scale_is_scaled(total, tmp_path):
    """The last one divides by the scale in the gradient that it begins with."""
    model = net()
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.01), torch.amp.GradScaler("cpu", init_scale=2.0**10)
    with gradlab.watch(model, optimizer, scaler, folder=tmp_path, quiet=True) as watch:
        for x, y in batches(4):
            optimizer.zero_grad()
            scaled = scaler.scale(loss := half_loss(model, (x.requires_grad_(), y)))
            if total == "given":
                (g,) = torch.autograd.grad(scaled, x, 1 / scaler._scale, create_graph=True)
                scaler.scale(loss + g.square().sum()).backward()
            else:
                total(scaled, *torch.autograd.grad(scaled, x, create_graph=True)).backward()
            scaler.step(optimizer)
            scaler.update()
    assert not watch.broken
    assert not watch.faults
