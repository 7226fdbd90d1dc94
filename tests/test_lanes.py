"""Updates of many lanes at once against the same updates alone."""

import copy
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import composed

from gradlab import setup
from gradlab.clip import AdaptiveClip, AutoClip, Clip, NoClip, NormClip, PerLayerClip, ValueClip, ZClip
from gradlab.config import Config, to_config
from gradlab.gradients import measure, total_norm
from gradlab.noise import GaussianNoise
from gradlab.optimizer import SGD, Adam, AdamW, OptimizerOption
from gradlab.option import OPTIONS
from gradlab.precision import FP16, LossScale
from gradlab.schedule import Constant, Schedule, StepDecay, Warmup, WarmupCosine
from gradlab.sweep.stacking import Flat, chosen, stacked
from gradlab.sweep.update import Batch, LaneGradients, StackedUpdate, lane_norms
from gradlab.trainer import Trainer

CPU = torch.device("cpu")
SHAPES = [torch.Size(s) for s in ((4, 3), (4,), (2, 3, 3, 3), (), (0, 2), (5, 4))]
NAMES = ["a.weight", "a.bias", "b.weight", "b.temperature", "c.empty", "c.weight"]


def in_lanes(rows: list[list[torch.Tensor]]) -> LaneGradients:
    """Gradients of lanes, of random weights, from those of each lane."""
    weights, flat = Flat(len(rows), SHAPES, CPU), Flat(len(rows), SHAPES, CPU)
    torch.manual_seed(7)
    weights.matrix.normal_()
    for lane, row in enumerate(rows):
        flat.fill(lane, row)
    views = flat.cut(flat.matrix)
    norms = lane_norms(views)
    return LaneGradients(NAMES, weights.views, views, norms, total_norm(norms), flat.matrix)


CLIPS: dict[str, list[Clip]] = {
    "none": [NoClip()] * 3,
    "norm": [NormClip(0.1), NormClip(5.0), NormClip(1e9)],
    "norm, alike": [NormClip(0.5)] * 3,
    "value": [ValueClip(0.01), ValueClip(0.5), ValueClip(1e9)],
    "per_layer": [PerLayerClip(0.1), PerLayerClip(2.0), PerLayerClip(1e9)],
    "agc": [AdaptiveClip(0.01, 1e-3), AdaptiveClip(0.3, 1e-3), AdaptiveClip(1e9, 10.0)],
    "autoclip": [AutoClip(10.0, 4), AutoClip(50.0, 4), AutoClip(100.0, 4)],
    "autoclip, alike": [AutoClip(25.0, 3)] * 3,
    "zclip": [ZClip(0.5, 0.9, 2), ZClip(1.0, 0.5, 3), ZClip(2.5, 0.97, 4)],
}


@pytest.mark.parametrize("name", CLIPS)
def test_a_clip_of_lanes_does_to_each_what_its_own_does_alone(name: str) -> None:
    """Over eight updates, in whose third one lane's gradient is not finite and the update is not applied."""
    options, generator = CLIPS[name], torch.Generator().manual_seed(0)
    together = stacked(options, CPU)
    states = [option.init(CPU) for option in options]
    state = {k: torch.stack([s[k] for s in states]) for k in states[0]}
    for update in range(8):
        size = [0.1, 1.0, 10.0][update % 3]
        rows = [[size * torch.randn(s, generator=generator) for s in SHAPES] for _ in options]
        if update == 2:
            rows[1][0][0, 0] = torch.inf
        gradients = in_lanes(rows)
        weights = [view.clone() for view in gradients.params]
        clipped = together.clip_(gradients, state)
        for lane, (option, row) in enumerate(zip(options, rows, strict=True)):
            params = [w[lane].clone().requires_grad_() for w in weights]
            for p, g in zip(params, row, strict=True):
                p.grad = g.clone()
            alone = option.clip_(measure(NAMES, params), states[lane])
            if update == 2 and lane == 1:
                state = state | {k: torch.stack([v[0], state[k][1], v[2]]) for k, v in clipped.state.items()}
                continue
            states[lane] = alone.state
            assert clipped.coefficient[lane].item() == pytest.approx(alone.coefficient.item(), rel=1e-6)
            assert bool(clipped.acted[lane]) == bool(alone.acted)
            for p, rows_of in zip(params, gradients.tensors, strict=True):
                assert torch.allclose(rows_of[lane], p.grad, rtol=1e-5, atol=1e-9)
            for k, v in alone.state.items():
                assert torch.allclose(clipped.state[k][lane], v, rtol=1e-9, equal_nan=True)
        if update != 2:
            state = clipped.state


SCHEDULES: list[list[Schedule]] = [
    [Constant()] * 3,
    [Warmup(0), Warmup(1), Warmup(10)],
    [Warmup(5)] * 3,
    [WarmupCosine(0, 10, 0.1), WarmupCosine(3, 20, 0.0), WarmupCosine(10, 10, 1.0)],
    [StepDecay(3, 0.1), StepDecay(1, 0.5), StepDecay(100, 1.0)],
]


@pytest.mark.parametrize("options", SCHEDULES, ids=lambda options: f"{type(options[0]).__name__}")
def test_schedules_of_lanes(options: list[Schedule]) -> None:
    together = stacked(options, CPU)
    for first in range(25):
        updates = torch.tensor([first, max(first - 4, 0), 2 * first])  # lanes have skipped differently many
        factors = together.factor(updates)
        assert factors.dtype == torch.float64
        for lane, option in enumerate(options):
            assert factors[lane].item() == pytest.approx(option.factor(updates[lane]).item(), rel=1e-12)


OPTIMIZERS: dict[str, list[OptimizerOption]] = {
    "sgd": [SGD(lr=0.1, momentum=0.0), SGD(lr=0.01, momentum=0.9), SGD(lr=1.0, momentum=0.5)],
    "sgd, no momentum": [SGD(lr=0.1, momentum=0.0), SGD(lr=0.3, momentum=0.0), SGD(lr=0.2, momentum=0.0)],
    "sgd, decay": [SGD(lr=0.1, weight_decay=0.0), SGD(lr=0.01, weight_decay=0.1), SGD(lr=0.1, weight_decay=1.0)],
    "nesterov": [SGD(lr=0.1, nesterov=True), SGD(lr=0.2, momentum=0.5, nesterov=True), SGD(lr=0.1, nesterov=True)],
    "adam": [Adam(lr=0.1), Adam(lr=0.01, beta1=0.0, beta2=0.5), Adam(lr=0.3, beta1=0.5, beta2=0.0, eps=1e-3)],
    "adam, decay": [Adam(lr=0.1), Adam(lr=0.1, weight_decay=0.1), Adam(lr=0.3, weight_decay=1.0)],
    "adamw": [AdamW(lr=0.1), AdamW(lr=0.1, weight_decay=0.0), AdamW(lr=0.3, weight_decay=1.0, beta2=0.9)],
    "adamw, alike": [AdamW(lr=0.1)] * 3,
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_of_lanes_are_pytorchs(name: str) -> None:
    """Over eight updates with a moving rate; lane 2 begins two updates later, as one that has skipped them."""
    options, generator = OPTIMIZERS[name], torch.Generator().manual_seed(0)
    together = stacked(options, CPU)
    params = torch.randn(3, 6, generator=generator)
    first = params.clone()
    own = [torch.nn.Parameter(row.clone()) for row in params]
    optimizers = [replace(o, foreach=True).build([p]) for o, p in zip(options, own, strict=True)]
    moments = [torch.zeros_like(params) for _ in together.moments()]
    applied = torch.zeros(3, dtype=torch.int64)
    for update in range(8):
        grads = torch.randn(3, 6, generator=generator)
        grads[0, 0] = 0.0
        rates = torch.tensor([o.lr for o in options], dtype=torch.float64) / (1 + update)
        held = [t[2].clone() for t in (params, *moments)]
        for optimizer, p, g, lr in zip(optimizers, own, grads, rates.tolist(), strict=True):
            optimizer.param_groups[0]["lr"], p.grad = lr, g.clone()
        together.move_(params, grads.clone(), moments, rates, applied)
        for lane in range(3):
            if lane < 2 or update >= 2:
                optimizers[lane].step()
                applied[lane] += 1
        if update < 2:
            for tensor, before in zip((params, *moments), held, strict=True):
                tensor[2] = before
    moved = (params - first).norm(dim=1)
    for lane, p in enumerate(own):
        assert (params[lane] - p.detach()).norm() < 1e-6 * moved[lane]
        state = optimizers[lane].state[p]
        for key, rows in zip(together.moments(), moments, strict=True):
            if key in state:
                assert torch.allclose(rows[lane], state[key], rtol=1e-5, atol=1e-8), key


def test_a_loss_scale_of_lanes_moves_as_each_alone_and_stays_fp32() -> None:
    options = [
        FP16(init_scale=2.0**16, growth_interval=2),
        FP16(init_scale=4.0, growth_factor=3.0, backoff_factor=0.1, growth_interval=1),
        FP16(init_scale=2.0**126, growth_factor=1e3, growth_interval=1),  # a growth that would overflow is not taken
    ]
    alone = [LossScale(option, CPU) for option in options]
    together = LossScale(stacked([replace(o, init_scale=1.0) for o in options], CPU), CPU)
    together.scale = torch.stack([a.scale for a in alone])
    together.growth_tracker = torch.stack([a.growth_tracker for a in alone])
    for update in range(9):
        found = torch.tensor([float(update % n == 0) for n in (2, 3, 7)])
        together.update(found)
        for lane, scale in enumerate(alone):
            scale.update(found[lane])
            assert together.scale[lane].item() == pytest.approx(scale.scale.item(), rel=1e-6)
            assert together.growth_tracker[lane] == scale.growth_tracker
    assert together.scale.dtype == torch.float32 and together.growth_tracker.dtype == torch.int32


def test_what_differs_becomes_a_tensor_and_what_does_not_stays_a_number() -> None:
    options = [ZClip(2.0, 0.97, 25), ZClip(3.0, 0.97, 30)]
    made = stacked(options, CPU)
    assert made.z_max.tolist() == [2.0, 3.0] and made.z_max.dtype == torch.float64
    assert made.warmup.tolist() == [25, 30] and made.warmup.dtype == torch.int64
    assert made.decay == 0.97 and options[0] == ZClip(2.0, 0.97, 25)
    some = chosen(made, torch.tensor([1]))
    assert some.z_max.tolist() == [3.0] and some.decay == 0.97 and made.z_max.numel() == 2


def test_flat_keeps_each_lanes_tensors_apart() -> None:
    torch.manual_seed(0)
    rows = [[torch.randn(s) for s in SHAPES] for _ in range(3)]
    flat = Flat(3, SHAPES, CPU)
    for lane, row in enumerate(rows):
        flat.fill(lane, row)
    for lane, row in enumerate(rows):
        assert all(torch.equal(view[lane], t) for view, t in zip(flat.views, row, strict=True))
    flat.keep(torch.tensor([2, 0]))
    for lane, row in enumerate((rows[2], rows[0])):
        assert all(torch.equal(view[lane], t) for view, t in zip(flat.views, row, strict=True))
    flat.views[0][1] = 5.0  # a view writes to the matrix
    assert flat.matrix[1, :12].tolist() == [5.0] * 12 and flat.matrix[0, 0] != 5.0
