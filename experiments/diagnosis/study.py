"""Runs that no threshold was chosen by: other models, data, rates and seeds, with known faults and without any."""

import os
from pathlib import Path

from lab import Claim, Runs, Study, Sweep, check

HERE = str(Path(__file__).parent)
os.environ["PYTHONPATH"] = os.pathsep.join([HERE, *filter(None, [os.environ.get("PYTHONPATH")])])  # for cases.py
ANY = ["expect=any", "trainer.progress=none"]
MLP, LSTM, LM = ["model=sigmoid_mlp"], ["model=lstm"], ["model=transformer", "model.layers=2", "trainer.updates=150"]
SGD, ADAM = ["optimizer=sgd"], ["optimizer=adam"]

# name -> (verdicts that name the cause, what runs)
CASES: dict[str, tuple[tuple[str, ...], list[str]]] = {
    "rnn_on_text": (
        ("exploding",),
        [
            *LSTM,
            "model.cell=rnn",
            "model.nonlinearity=relu",
            "model.init=orthogonal",
            "model.gain=2",
            *SGD,
            "trainer.updates=200",
        ],
    ),
    "large_weights": (
        ("exploding",),
        [*MLP, "model.layers=12", "model.activation=relu", "model.init=too_large", *SGD, "data=synthetic"],
    ),
    "resnet_rate": (
        ("exploding", "diverged"),
        ["model=resnet", "model.norm=none", *SGD, "optimizer.lr=3", "trainer.updates=60"],
    ),
    "transformer_rate": (("exploding", "diverged"), [*LM, "model.norm=none", *SGD, "optimizer.lr=3", "seed=4"]),
    "tanh_depth": (
        ("vanishing",),
        [*MLP, "model.layers=40", "model.activation=tanh", *ADAM, "optimizer.lr=1e-4", "seed=5"],
    ),
    "sigmoid_depth": (
        ("vanishing",),
        [*MLP, "model.layers=14", "model.init=xavier", *SGD, "optimizer.lr=0.03", "data=synthetic", "seed=6"],
    ),
    "rnn_length": (
        ("vanishing",),
        [*LSTM, "model.cell=rnn", "data=adding", "data.length=80", *ADAM, "trainer.epochs=2", "seed=7"],
    ),
    "detached": (("broken_graph",), ["model=custom", "model.target=cases:Detached", "seed=8"]),
    "dying": (("dead_units",), ["model=custom", "model.target=cases:Dying", *SGD, "optimizer.lr=0.01", "seed=9"]),
    "saturated": (
        ("saturated_units",),
        ["model=custom", "model.target=cases:Saturated", *SGD, "optimizer.lr=1e-5", "seed=9"],
    ),
    "clipped_lstm": (
        ("overclipped",),
        [*LSTM, *SGD, "clip=norm", "clip.max_norm=1e-5", "trainer.updates=150", "seed=10"],
    ),
    "rate_of_nothing": (("stalled",), [*LM, "optimizer.lr=1e-9", "seed=11"]),
    "rate_too_high": (("diverged", "exploding"), [*MLP, "model.layers=2", *SGD, "optimizer.lr=60", "seed=12"]),
    "fp16_rate": (
        ("scale_collapse", "exploding", "overflow_fp16"),
        [*LM, "model.norm=none", "precision=fp16", *SGD, "optimizer.lr=3", "seed=13"],
    ),
    "fp16_tiny": (
        ("underflow_fp16",),
        [
            *LSTM,
            "data=adding",
            "data.length=10",
            "loss=mse",
            "loss.unit=1e-4",
            "precision=fp16",
            "precision.enabled=false",
            "trainer.epochs=2",
            "seed=14",
        ],
    ),
    "live_lock": (
        ("scale_livelock",),
        [*LM, "precision=fp16", "precision.init_scale=1e9", "+pitfall=live_lock", "seed=15"],
    ),
    "log_of_zero": (
        ("nan_loss",),
        [
            *MLP,
            "model.layers=2",
            "model.activation=relu",
            "loss=unstable",
            "loss.kind=log",
            *ADAM,
            "optimizer.lr=0.3",
            "seed=16",
        ],
    ),
    "root_of_zero": (
        ("nan_gradient",),
        [
            *MLP,
            "model.layers=1",
            "data=synthetic",
            "data.task=regression",
            "data.outputs=1",
            "loss=unstable",
            "loss.kind=sqrt",
            *ADAM,
            "optimizer.lr=0.001",
            "trainer.epochs=40",
            "data.noise=0.0",
            "seed=17",
        ],
    ),
    "broken_weights": (
        ("nan_parameter", "exploding"),
        [
            *MLP,
            "model.layers=12",
            "model.activation=relu",
            "model.init=too_large",
            *SGD,
            "+pitfall=no_monitoring",
            "seed=18",
        ],
    ),
    "frozen_lstm": (("stalled",), [*LSTM, "data=adding", "optimizer.lr=1e-9", "trainer.epochs=1", "seed=19"]),
    "short": (
        ("too_short",),
        [*MLP, "model.layers=1", *SGD, "optimizer.lr=5", "trainer.updates=30", "seed=20"],
    ),
    "healthy_mlp": (
        ("healthy",),
        [*MLP, "model.activation=gelu", *SGD, "optimizer.lr=0.05", "data=synthetic", "seed=21"],
    ),
    "healthy_tanh": (
        ("healthy",),
        [*MLP, "model.layers=6", "model.activation=tanh", "model.init=xavier", *ADAM, "seed=22"],
    ),
    "healthy_relu": (
        ("healthy",),
        [*MLP, "model.layers=8", "model.activation=relu", "model.init=he", "model.norm=layer", "clip=norm", "seed=23"],
    ),
    "healthy_regression": (
        ("healthy",),
        [
            *MLP,
            "model.activation=relu",
            "data=synthetic",
            "data.task=regression",
            *ADAM,
            "trainer.epochs=10",
            "seed=24",
        ],
    ),
    "healthy_gru": (
        ("healthy",),
        [*LSTM, "model.cell=gru", "data=digits", "clip=norm", "clip.max_norm=0.5", "seed=25"],
    ),
    "healthy_lstm": (("healthy",), [*LSTM, "model.width=48", "trainer.updates=200", "precision=bf16", "seed=26"]),
    "healthy_resnet": (("healthy",), ["model=resnet", "model.norm=group", "trainer.updates=60", "seed=27"]),
    "healthy_lm": (
        ("healthy",),
        [*LM, "precision=fp16", "clip=norm", "schedule=warmup_cosine", "schedule.warmup=20", "seed=28"],
    ),
    "healthy_images": (
        ("healthy",),
        ["model=transformer", "model.layers=2", "data=digits", "accumulation.steps=3", "seed=29"],
    ),
    "healthy_agc": (("healthy",), [*LM, "clip=agc", *ADAM, "seed=30"]),
    "healthy_sgd": (("healthy",), [*LM, *SGD, "optimizer.lr=0.1", "clip=zclip", "seed=31"]),
    "healthy_noise": (
        ("healthy",),
        [*MLP, "model.layers=2", "model.activation=relu", "noise=gaussian", "noise.eta=1e-4", "seed=32"],
    ),
    "healthy_custom": (
        ("healthy",),
        [
            *MLP,
            "model.layers=2",
            "model.activation=relu",
            "data=custom",
            "data.target=cases:noise",
            "clip=autoclip",
            "seed=33",
        ],
    ),
}


def wrong(runs: Runs, healthy: bool) -> list[str]:
    found = []
    for r in runs:
        verdicts, _ = CASES[r.sweep]
        if ("healthy" in verdicts) == healthy and r.verdict not in verdicts:
            found.append(f"{r.sweep} ({', '.join(verdicts)}): {r.verdict}")
    return found


def causes(runs: Runs):
    number, bad = sum("healthy" not in v for v, _ in CASES.values()), wrong(runs, False)
    return check(len(bad) <= number / 20, f"{number - len(bad)} of {number}" + "".join(f"; {b}" for b in bad))


def healthy(runs: Runs):
    number, bad = sum("healthy" in v for v, _ in CASES.values()), wrong(runs, True)
    return check(not bad, f"{number - len(bad)} of {number}" + "".join(f"; {b}" for b in bad))


STUDY = Study(
    title="is the verdict right where no threshold was chosen by the run?",
    about="""Runs of other models, data, rates and seeds than the experiments, each with one known fault or with
none. Where two names say the same cause (a rate far too high explodes or diverges) either counts. What sets of
blind cases measured is in [blind](blind.md).""",
    sweeps=[Sweep(name, [*arguments, *ANY]) for name, (_, arguments) in CASES.items()],
    by=(),
    shown=("rnn_on_text", "tanh_depth", "rate_too_high", "healthy_lm", "healthy_lstm"),
    claims=[
        Claim("the verdict names the cause in 19 of 20", "this project's own aim", causes),
        Claim("no healthy run is called unhealthy", "this project's own aim", healthy),
    ],
)
