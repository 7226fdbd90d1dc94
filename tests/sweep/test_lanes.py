"""Updates of many lanes at once against the same updates alone."""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import composed
from test_vectorized_jobs import described

from gradlab.base.option import OPTIONS
from gradlab.config.schema import Config, to_config
from gradlab.measure.record import Record, totals
from gradlab.sweep.vectorized import sharing
from gradlab.sweep.vectorized.lane_gradients import LaneGradients, lane_norms
from gradlab.sweep.vectorized.lane_records import LaneRecord
from gradlab.sweep.vectorized.lane_update import Batch, StackedUpdate
from gradlab.sweep.vectorized.lane_values import FlatTensors, select_lanes, stack_options
from gradlab.train import build_data
from gradlab.train.trainer import Trainer
from gradlab.update.adam import Adam, AdamW
from gradlab.update.clip import AdaptiveClip, AutoClip, Clip, NoClip, NormClip, PerLayerClip, ValueClip, ZClip
from gradlab.update.gradients import measure, total_norm
from gradlab.update.noise import GaussianNoise
from gradlab.update.optimizer import OptimizerOption
from gradlab.update.precision import FP16, LossScale
from gradlab.update.schedule import (
    Constant,
    InverseSqrt,
    OneCycle,
    Restarts,
    Schedule,
    StepDecay,
    Warmup,
    WarmupCosine,
    WarmupStableDecay,
)
from gradlab.update.sgd import SGD
from gradlab.update.step import Update

CPU = torch.device("cpu")
SHAPES = [torch.Size(s) for s in ((4, 3), (4,), (2, 3, 3, 3), (), (0, 2), (5, 4))]
NAMES = ["a.weight", "a.bias", "b.weight", "b.temperature", "c.empty", "c.weight"]


def in_lanes(rows: list[list[torch.Tensor]]) -> LaneGradients:
    """Gradients of lanes, of random weights, from those of each lane."""
    weights, flat = FlatTensors(len(rows), SHAPES, CPU), FlatTensors(len(rows), SHAPES, CPU)
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
    "norm 1": [NormClip(bound, 1.0) for bound in (0.1, 2.0, 100.0)],
    "norm inf": [NormClip(bound, math.inf) for bound in (0.01, 0.5, 100.0)],
    "autoclip": [AutoClip(10.0, 4), AutoClip(50.0, 4), AutoClip(100.0, 4)],
    "autoclip, alike": [AutoClip(25.0, 3)] * 3,
    "zclip": [ZClip(0.5, 0.9, 2), ZClip(1.0, 0.5, 3), ZClip(2.5, 0.97, 4)],
}


@pytest.mark.parametrize("name", CLIPS)
def test_a_clip_of_lanes_does_to_each_what_its_own_does_alone(name: str) -> None:
    """Over eight updates, in whose third one lane's gradient is not finite and the update is not applied."""
    options, generator = CLIPS[name], torch.Generator().manual_seed(0)
    together = stack_options(options, CPU)
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
    [WarmupStableDecay(4, 21, 0.1, 0.3), WarmupStableDecay(7, 37, 0.0, 0.3), WarmupStableDecay(0, 50, 0.0, 1.0)],
    [InverseSqrt(4), InverseSqrt(0), InverseSqrt(9)],
    [Restarts(5, 2, 0.1), Restarts(5, 2, 0.3), Restarts(5, 2, 1.0)],
    [OneCycle(updates=20), OneCycle(updates=33, min_factor=0.5), OneCycle(updates=50, start_factor=1.0)],
]


@pytest.mark.parametrize("options", SCHEDULES, ids=lambda options: f"{type(options[0]).__name__}")
def test_schedules_of_lanes(options: list[Schedule]) -> None:
    together = stack_options(options, CPU)
    for first in range(45):
        updates = torch.tensor([2 * first, max(first - 4, 0), first])  # lanes have skipped differently many
        factors = together.factor(updates)
        assert factors.dtype == torch.float64
        for lane, option in enumerate(options):
            assert factors[lane].item() == option.factor(updates[lane]).item()


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
    together = stack_options(options, CPU)
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
    together = LossScale(stack_options([replace(o, init_scale=1.0) for o in options], CPU), CPU)
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
    made = stack_options(options, CPU)
    assert made.z_max.tolist() == [2.0, 3.0] and made.z_max.dtype == torch.float64
    assert made.warmup.tolist() == [25, 30] and made.warmup.dtype == torch.int64
    assert made.decay == 0.97 and options[0] == ZClip(2.0, 0.97, 25)
    some = select_lanes(made, torch.tensor([1]))
    assert some.z_max.tolist() == [3.0] and some.decay == 0.97 and made.z_max.numel() == 2


def test_flat_keeps_each_lanes_tensors_apart() -> None:
    torch.manual_seed(0)
    rows = [[torch.randn(s) for s in SHAPES] for _ in range(3)]
    flat = FlatTensors(3, SHAPES, CPU)
    for lane, row in enumerate(rows):
        flat.fill(lane, row)
    for lane, row in enumerate(rows):
        assert all(torch.equal(view[lane], t) for view, t in zip(flat.views, row, strict=True))
    flat.keep(torch.tensor([2, 0]))
    for lane, row in enumerate((rows[2], rows[0])):
        assert all(torch.equal(view[lane], t) for view, t in zip(flat.views, row, strict=True))
    flat.views[0][1] = 5.0  # a view writes to the matrix
    assert flat.matrix[1, :12].tolist() == [5.0] * 12 and flat.matrix[0, 0] != 5.0


# Whole updates

RECURRENT = ("model=lstm", "model.width=8", "model.layers=2", "data=adding", "data.length=8", "data.batch_size=4")
MODELS: dict[str, tuple[str, ...]] = {
    "transformer": (
        *("model=transformer", "model.layers=1", "model.width=16", "model.heads=2", "data.length=12"),
        *("data.variable_length=true", "data.samples=100", "data.test_samples=8", "data.batch_size=4"),
    ),
    "tied transformer": (
        *("model=transformer", "model.layers=1", "model.width=16", "model.tie_embeddings=true", "model.norm=none"),
        *("data.length=12", "data.samples=100", "data.test_samples=8", "data.batch_size=4"),
    ),
    "lstm": RECURRENT,
    "gru": (*RECURRENT, "model.cell=gru"),
    "rnn": (*RECURRENT, "model.cell=rnn"),
    "mlp, batch norm": ("model=sigmoid_mlp", "model.norm=batch", "data.batch_size=8"),
    "mlp, layer norm": ("model=sigmoid_mlp", "model.norm=layer", "model.layers=6", "data.batch_size=8"),
    "custom": ("model=custom", "model.target=nets:Odd", "data=digits", "data.batch_size=8"),
    "two cells": (
        *("model=custom", "model.target=nets:TwoCells", "data=adding", "data.length=12", "data.batch_size=4"),
    ),
    "resnet, batch norm": ("model=resnet", "data.batch_size=8"),
    "resnet, group norm": ("model=resnet", "model.norm=group", "data.batch_size=4"),
}
SMALL = [name for name in MODELS if name not in ("resnet, batch norm", "resnet, group norm", "two cells")]
RATES = {"sgd": 0.05, "adam": 0.002, "adamw": 0.002}
THRESHOLDS = {"norm": 0.5, "value": 0.01, "per_layer": 0.2, "agc": 0.05}
PRECISIONS = ("fp32", "bf16", "fp16")


@cache
def prepared(model: str) -> tuple[Config, Any]:
    config = to_config(composed("accumulation.steps=2", *MODELS[model]))
    return config, build_data.load_data(config, CPU)


def options_of(optimizer: str, clip: str, precision: str, lane: int) -> dict[str, Any]:
    """What lanes differ in: the rate, the threshold, and more where there is more."""
    factor = (1.0, 3.0, 0.3)[lane]
    o: Any = {"lr": RATES[optimizer] * factor, "weight_decay": 0.01 * lane}
    o |= {"momentum": 0.9 - 0.2 * lane} if optimizer == "sgd" else {"eps": 1e-3 * factor, "beta1": 0.9 - 0.1 * lane}
    c: Any = {}
    if clip in THRESHOLDS:
        field = {"value": "max_value", "agc": "factor"}.get(clip, "max_norm")
        c[field] = THRESHOLDS[clip] * factor
    elif clip == "autoclip":
        c = {"percentile": 20.0 * factor, "history": 3}
    elif clip == "zclip":
        c = {"warmup": 2 + lane, "z_max": 0.5 * factor}
    p: Any = {"init_scale": 2.0 ** (7 + lane), "growth_interval": 1 + lane} if precision == "fp16" else {}
    made = {"optimizer": (optimizer, o), "clip": (clip, c), "precision": (precision, p)}
    return {group: OPTIONS[group, name](**fields) for group, (name, fields) in made.items()}


def trainers(model: str, changes: Sequence[dict[str, Any]]) -> list[Trainer]:
    config, data = prepared(model)
    configs = [replace(config, **change) for change in changes]
    return [Trainer(c, Path("unused"), say=lambda text: None, data=data) for c in configs]


def stack(runs: list[Trainer]) -> StackedUpdate:
    used = [n for n in runs[0].update.names if not n.startswith("unused")]
    return StackedUpdate([run.update for run in runs], [run.config for run in runs], used)


def window(runs: list[Trainer], cursor: int) -> tuple[list[Any], list[Batch]]:
    """Each run's micro-batches, and those of all as lanes."""
    own = [run.batches(0, cursor, 2)[0] for run in runs]
    if len({run.config.seed for run in runs}) == 1:
        return own, [Batch(b.inputs, b.targets, False) for b in own[0]]
    together = [[torch.stack(t) for t in zip(*((b.inputs, b.targets) for b in part))] for part in zip(*own)]
    return own, [Batch(x, y, True) for x, y in together]


def cursors(model: str, updates: int) -> list[int]:
    """Windows of two micro-batches; the second is an epoch's remainder, of one and a half."""
    config, data = prepared(model)
    size = config.data.batch_size
    return [0, len(data[0].train) - size - size // 2, *(2 * size * i for i in range(1, updates - 1))][:updates]


def weights(run: Trainer) -> torch.Tensor:
    return torch.cat([p.detach().double().flatten() for p in run.module.parameters()])


def check_stats(together: Any, alone: list[Any], precision: str) -> None:
    """What an update measures of each lane."""
    for lane, wanted in enumerate(alone):
        for field in set(wanted._fields) - {"terms"}:  # a loss of several is run one by one
            value = getattr(together, field).double().expand(len(alone))[lane].item()
            other = getattr(wanted, field).double().item()
            exact = field in ("scale", "next_scale", "skipped", "applied")
            rel = 1e-12 if field == "lr" else 1e-3 if precision == "fp32" else 0.2
            if field != "clip_acted":  # which may hang on a hair's breadth
                assert value == (other if exact else pytest.approx(other, rel=rel)), (field, lane)


def distances(model: str, changes: Sequence[dict[str, Any]], updates: int = 2) -> list[tuple[float, float]]:
    """Of each lane: how far it ends from the same run alone, and that one from itself in fp32, in units of its way."""
    precision = type(changes[0]["precision"]).__name__.lower()
    full = [change | {"precision": OPTIONS["precision", "fp32"]()} for change in changes]
    alone, lanes = trainers(model, changes), trainers(model, changes)
    exact = trainers(model, full) if precision != "fp32" else []
    together = stack(lanes)
    begun = [weights(run) for run in alone]
    for cursor in cursors(model, updates):
        own, shared = window(alone, cursor)
        stats = together(shared)
        check_stats(stats, [run.update(batches) for run, batches in zip(alone, own, strict=True)], precision)
        for run, batches in zip(exact, own):
            run.update(batches)
    found = []
    for lane, (run, first) in enumerate(zip(alone, begun, strict=True)):
        together.restore(lane, lanes[lane].update)
        way = (weights(run) - first).norm().item()
        assert way > 0
        ends = [weights(lanes[lane]), *([weights(exact[lane])] if exact else [weights(run)])]
        found.append(tuple((end - weights(run)).norm().item() / way for end in ends))
        for a, b in zip(lanes[lane].module.buffers(), run.module.buffers(), strict=True):
            a, b = a.double(), b.double()
            assert (a - b).norm() <= (1e-3 if precision == "fp32" else 0.05) * b.norm()
    return found


def same_updates(model: str, optimizer: str, clip: str, precision: str) -> None:
    """Of lanes that differ in everything that they may, under one seed and another."""
    seeds = (0, 0, 1) if model in SMALL else (0, 1)
    changes = [options_of(optimizer, clip, precision, lane) | {"seed": seed} for lane, seed in enumerate(seeds)]
    updates = 5 if clip in ("autoclip", "zclip") and model in SMALL else 2
    for apart, rounding in distances(model, changes, updates):
        if precision == "fp32":
            assert apart < (2e-5 if model in SMALL else 1e-2)
        else:
            assert apart < 2 * rounding + 1e-5, (apart, rounding)


CLIP_NAMES = ("none", "norm", "value", "per_layer", "agc", "autoclip", "zclip")
DIAGONAL = [(m, list(RATES)[i % 3], CLIP_NAMES[i % 7], PRECISIONS[(i + i // 3) % 3]) for i, m in enumerate(SMALL)]


@pytest.mark.parametrize(("model", "optimizer", "clip", "precision"), DIAGONAL)
def test_updates_of_lanes_are_those_of_the_runs_alone(model: str, optimizer: str, clip: str, precision: str) -> None:
    same_updates(model, optimizer, clip, precision)


@pytest.mark.slow
def test_updates_of_lanes_of_resnet() -> None:
    same_updates("resnet, batch norm", "sgd", "norm", "fp32")


@pytest.mark.slow
@pytest.mark.parametrize("c", range(7))
@pytest.mark.parametrize("m", range(len(SMALL)))
def test_updates_of_lanes_in_every_pair(m: int, c: int) -> None:
    """Every model, optimizer, clip and precision with every other."""
    same_updates(SMALL[m], list(RATES)[(m + c) % 3], CLIP_NAMES[c], PRECISIONS[(m + 2 * c) % 3])


@pytest.mark.slow
@pytest.mark.parametrize("c", range(7))
def test_updates_of_lanes_of_resnet_under_every_clip(c: int) -> None:
    """And with every optimizer, in every precision and with both norms."""
    o = c % 3
    norm = ("batch", "group")[(o + c) % 2]
    same_updates(f"resnet, {norm} norm", list(RATES)[o], CLIP_NAMES[c], PRECISIONS[(o + c) % 3])


def test_noise_of_lanes_is_drawn_as_alone() -> None:
    """By the seed and the update alone, whatever its size in a lane; a lane may have none."""
    base = options_of("sgd", "norm", "fp32", 0)
    noises = [GaussianNoise(eta=0.01), GaussianNoise(eta=0.3, gamma=0.1), GaussianNoise(eta=0.0)]
    changes = [base | {"noise": n, "seed": s} for n, s in zip(noises, (0, 1, 0), strict=True)]
    assert max(apart for apart, _ in distances("custom", changes, 4)) < 1e-5
    silent = [c | {"noise": GaussianNoise(eta=0.0)} for c in changes]
    assert max(apart for apart, _ in distances("custom", silent)) < 1e-5


@pytest.mark.parametrize("clip", ["autoclip", "zclip"])
@pytest.mark.parametrize("optimizer", RATES)
@pytest.mark.parametrize("precision", ["fp16", "fp32"])
def test_a_lane_whose_update_is_skipped_stays_put_and_the_others_move(
    precision: str, optimizer: str, clip: str
) -> None:
    """Weights, moments, what the clip remembers, buffers and the count; the loss scale backs off in that lane alone."""
    options = options_of(optimizer, clip, precision, 0)
    changes = [options | {"seed": seed} for seed in (0, 1, 0)]
    if precision == "fp32":
        changes = [c | {"precision": OPTIONS["precision", "fp32"](nonfinite="skip")} for c in changes]
    lanes, undisturbed = trainers("custom", changes), trainers("custom", changes)
    together, alone = stack(lanes), undisturbed[2].update
    together.weights.matrix = together.weights.matrix.detach().clone()

    def state() -> dict[str, torch.Tensor]:
        every = {"weights": together.weights.matrix, "applied": together.applied, **together.clip_state}
        every |= {f"moment {i}": m.matrix for i, m in enumerate(together.moments)} | together.buffers
        if together.precision.loss_scale:
            every["growth"] = together.precision.loss_scale.growth_tracker
        return {k: v.detach().clone() for k, v in every.items()}

    for update, cursor in enumerate((0, 16, 32, 48)):
        own, shared = window(lanes, cursor)
        if update in (1, 2):  # a pixel of lane 1 that no number is
            inputs = shared[0].inputs.clone()
            inputs[1, 0] = torch.nan
            shared[0] = shared[0]._replace(inputs=inputs)
        before, scale = state(), together.precision.scale.clone()
        stats = together(shared)
        alone(own[2])
        after = state()
        skipped = update in (1, 2)
        assert stats.skipped.tolist() == [0, float(skipped), 0]
        for k, then in before.items():
            for lane in range(3):
                moved = not torch.equal(then[lane].nan_to_num(7), after[k][lane].nan_to_num(7))
                first = k == "variance" and not update  # of one norm it is zero
                still = k in together.kept or first or (lane == 1 and skipped)
                assert moved != still or k == "growth", (k, lane)
        if precision == "fp16":
            factor = (together.precision.scale / scale).tolist()
            assert factor == [2.0, 0.5 if skipped else 2.0, 2.0]
    together.restore(2, lanes[2].update)
    assert (weights(lanes[2]) - weights(undisturbed[2])).norm() < 1e-3 * weights(lanes[2]).norm()


@pytest.mark.parametrize("precision", ["fp16", "fp32"])
def test_a_lane_whose_window_holds_no_target_makes_no_update(precision: str) -> None:
    changes = [options_of("sgd", "autoclip", precision, 0) | {"seed": seed} for seed in (0, 1, 0)]
    lanes, undisturbed = trainers("custom", changes), trainers("custom", changes)
    together, apart = stack(lanes), stack(undisturbed)
    for cursor in (0, 16, 32):
        _, shared = window(lanes, cursor)
        if cursor == 16:
            before = [t.detach().clone() for t in (together.weights.matrix, together.precision.scale)]
            empty = [b._replace(targets=b.targets.index_fill(0, torch.tensor([1]), -100)) for b in shared]
            stats = together(empty)
            assert stats.empty.tolist() == [False, True, False] and stats.skipped.tolist() == [0, 1, 0]
            assert stats.loss.isnan().tolist() == [False, True, False] and stats.applied.tolist() == [2, 1, 2]
            for then, now in zip(before, (together.weights.matrix, together.precision.scale), strict=True):
                assert torch.equal(then[1], now[1])
            stats = apart(shared)
            assert not stats.empty.any()
        else:
            for one in (together, apart):
                one(shared)
    assert torch.equal(together.weights.matrix[[0, 2]], apart.weights.matrix[[0, 2]])


def test_a_lane_that_has_halted_never_moves_again() -> None:
    changes = [options_of("adam", "norm", "fp32", 0) | {"seed": seed} for seed in (0, 1)]
    lanes = trainers("custom", changes)
    together = stack(lanes)
    _, shared = window(lanes, 0)
    good = list(shared)
    inputs = shared[0].inputs.clone()
    inputs[1, 0] = torch.inf
    before = together.weights.matrix.detach().clone()
    together([shared[0]._replace(inputs=inputs), *shared[1:]])
    stats = together(good)
    moved = (together.weights.matrix.detach() - before).norm(dim=1)
    assert stats.skipped.tolist() == [0, 1] and stats.applied.tolist() == [2, 0]
    assert moved[0] > 0 and moved[1] == 0


@pytest.mark.parametrize("optimizer", RATES)
def test_what_is_handed_back_is_what_the_update_alone_would_hold(optimizer: str) -> None:
    """Every name, shape and dtype of its state; with what the lane held of each."""
    changes = [options_of(optimizer, "autoclip", "fp16", lane) | {"seed": lane} for lane in range(3)]
    changes[2] |= {"optimizer": replace(changes[2]["optimizer"], **({"momentum": 0.0} if optimizer == "sgd" else {}))}
    alone, lanes = trainers("custom", changes), trainers("custom", changes)
    together = stack(lanes)
    for cursor in (0, 16):
        own, shared = window(alone, cursor)
        together(shared)
        for run, batches in zip(alone, own, strict=True):
            run.update(batches)
    for lane, run in enumerate(alone):
        together.restore(lane, lanes[lane].update)
        held, wanted = lanes[lane].update.state_dict(), run.update.state_dict()
        assert described(held) == described(wanted)
        for i, state in wanted["optimizer"]["state"].items():
            for k, v in state.items():
                assert torch.allclose(held["optimizer"]["state"][i][k], v, rtol=0.05, atol=1e-3), k
        assert torch.equal(held["precision"]["scale"], wanted["precision"]["scale"])
        assert held["applied"] == wanted["applied"] == 2 and held["attempts"] == wanted["attempts"]


def test_a_seed_gives_a_lane_the_weights_and_the_samples_that_it_gives_alone() -> None:
    changes = [options_of("sgd", "norm", "fp32", 0) | {"seed": seed} for seed in (3, 4)]
    alone, lanes = trainers("lstm", changes), trainers("lstm", changes)
    together = stack(lanes)
    for lane, run in enumerate(alone):
        for name, view in zip(together.names, together.weights.views, strict=True):
            assert torch.equal(view[lane], dict(run.module.named_parameters())[name])
    assert not torch.equal(together.weights.matrix[0], together.weights.matrix[1])


@pytest.mark.parametrize("model", ["custom", "two cells", "lstm", "transformer"])
def test_what_is_recorded_of_every_layer_is_what_the_run_alone_records(model: str) -> None:
    """Norms of gradients, weights and steps, of parameters without a gradient too; and ratios in time."""
    changes = [options_of("sgd", "norm", "fp32", lane) | {"seed": lane} for lane in range(3)]
    alone, lanes = trainers(model, changes), trainers(model, changes)
    used = [n for n in alone[0].update.names if not n.startswith(("unused", "never"))]
    together = StackedUpdate([run.update for run in lanes], [run.config for run in lanes], used)
    names, recurrent = alone[0].update.names, alone[0].observed.recurrent
    for cursor, steps in ((0, True), (16, False), (24, True)):
        own, shared = window(alone, cursor)
        record = LaneRecord(together, names, steps, recurrent)
        together(shared, record)
        for lane, (run, layers) in enumerate(zip(alone, record.rows(), strict=True)):
            wanted = Record(run.observed, steps=steps)
            run.update(own[lane], wanted)
            columns = wanted.unpack(wanted.pack().tolist())
            assert layers.keys() == columns.keys() and ("time/ratio" in layers) == (steps and bool(recurrent))
            for key, values in columns.items():
                got, expected = ([-1.0 if v is None else v for v in row] for row in (layers[key], values))
                assert got == pytest.approx(expected, rel=1e-3, abs=1e-7, nan_ok=True), key
            assert totals(layers) == pytest.approx(totals(columns), rel=1e-4)


def test_rows_part_where_a_gradient_passes_a_threshold_and_only_there() -> None:
    rows = [[(1.0, 0), (2.0, 3), (2.0, 5), (9.0, 1)], [(4.0, 2)], [(1.0, 4), (3.0, 6)]]
    parted, origin = sharing.split(rows, [2.0, 100.0, math.nan])
    assert parted == [[(2.0, 3), (2.0, 5), (9.0, 1)], [(4.0, 2)], [(1.0, 4), (3.0, 6)], [(1.0, 0)]]
    assert origin == [0, 1, 2, 0]
    parted, origin = sharing.split(rows, [100.0, 1.0, 2.0])  # all of the first act: the last has the row
    assert parted == [[(9.0, 1)], [(4.0, 2)], [(3.0, 6)], [(1.0, 0)], [(2.0, 3)], [(2.0, 5)], [(1.0, 4)]]
    assert origin == [0, 1, 2, 0, 0, 0, 2]


@pytest.mark.parametrize("clip", ["norm", "per_layer"])
def test_lanes_that_share_a_row_are_the_runs_alone_and_share_it_while_they_can(clip: str) -> None:
    """Three bounds above every norm, and one that every gradient passes."""
    base = options_of("sgd", clip, "fp32", 0)
    changes = [base | {"clip": OPTIONS["clip", clip](max_norm=bound)} for bound in (1e6, 2e6, 1e-3, 1e6)]
    model = next(iter(SMALL))
    runs, alone = trainers(model, changes), trainers(model, changes)
    configs = [run.config for run in runs]
    rows = sharing.rows(configs)
    assert sorted(lane for row in rows for _, lane in row) == [0, 1, 2, 3] and len(rows) == 1
    together = StackedUpdate([run.update for run in runs], configs, None, rows)
    for cursor in cursors(model, 4):
        own, batches = window(alone, cursor)
        together(batches)  # type: ignore[arg-type]
        for run, micro_batches in zip(alone, own):
            run.update(micro_batches)
    assert together.lanes == 2 and len(together.row_of) == 4
    for lane, run in enumerate(alone):
        together.restore(together.row_of[lane], runs[lane].update)
        assert (weights(runs[lane]) - weights(run)).norm() < 1e-5 * weights(run).norm()
    together.without({0, 1})
    assert together.lanes == 2 and sorted(together.row_of) == [2, 3]
    together.without({3})
    assert together.lanes == 1 and sorted(together.row_of) == [2]


@pytest.mark.parametrize("seeds", [(0, 0, 0), (0, 1, 2)], ids=["shared samples", "own samples"])
@pytest.mark.parametrize("model", ["custom", "two cells", "mlp, batch norm", "transformer"])
def test_rows_go_through_the_model_in_parts_as_they_do_together(model: str, seeds: tuple[int, ...]) -> None:
    """Two rows and one: weights, what is measured, what is recorded in time, and buffers."""
    changes = [options_of("sgd", "norm", "fp32", lane) | {"seed": seed} for lane, seed in enumerate(seeds)]
    ends = []
    for width in (3, 2):
        runs = trainers(model, changes)
        used = [n for n in runs[0].update.names if not n.startswith(("unused", "never"))]
        together = StackedUpdate([run.update for run in runs], [run.config for run in runs], used)
        together.width = width
        made: list[Any] = []
        for cursor in (0, 16):
            record = LaneRecord(together, runs[0].update.names, True, runs[0].observed.recurrent)
            stats = together(window(runs, cursor)[1], record)
            made += [stats.loss, stats.grad_norm, *together.through_time.values()]
        assert bool(together.through_time) == (model == "two cells")
        ends.append([*made, together.weights.matrix, *together.buffers.values()])
    for a, b in zip(*ends, strict=True):
        assert a.shape == b.shape and torch.allclose(a, b, rtol=1e-4, atol=1e-6)


def test_lanes_inherit_the_order_of_an_update_and_what_decides_in_it() -> None:
    """A change of `Update` is one of lanes too: only what a lane does otherwise may be overridden."""
    shared = ("__call__", "accumulate", "found_inf", "clip_", "lr", "update_scale", "commit")
    assert [name for name in shared if getattr(StackedUpdate, name) is not getattr(Update, name)] == []
