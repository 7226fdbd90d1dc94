"""Every model learns in every precision: it overfits one batch."""

from pathlib import Path

import pytest
import torch
from helpers import losses, sampled, trainer

QUICK = {
    "sigmoid_mlp": ("model.layers=2", "model.activation=tanh", "data.samples=16", "trainer.updates=40"),
    "transformer": ("model.layers=2", "model.width=32", "data.length=8", "data.samples=8", "trainer.updates=40"),
    "lstm": ("data=adding", "data.length=6", "data.samples=16", "data.test_samples=0", "trainer.updates=60"),
    "custom": ("model.target=nets:Tiny", "data.samples=16", "trainer.updates=40"),
    "resnet": ("data.samples=4", "trainer.updates=6", "optimizer.lr=1e-3"),
}
SLOW = {
    "sigmoid_mlp": [
        ("model.norm=batch",),
        ("model.norm=layer", "model.residual=true"),
        ("model.activation_checkpointing=true",),
    ],
    "transformer": [("model.norm=none",), ("model.norm=post",), ("model.activation_checkpointing=true",)],
    "lstm": [
        ("model.cell=gru",),
        ("model.cell=rnn", "model.nonlinearity=relu"),
        ("model.layers=2", "model.dropout=0.1"),
    ],
    "resnet": [(norm, "trainer.updates=12") for norm in ("model.norm=group", "model.norm=none", "model.depth=34")],
}
VARIANTS = [(model, variant) for model, variants in SLOW.items() for variant in variants]
PRECISIONS = ("fp32", "bf16", "fp16")


def overfits(folder: Path, model: str, precision: str, *more: str) -> None:
    """One full batch an epoch, so that every update sees the same one."""
    samples = next(o.removeprefix("data.samples=") for o in QUICK[model] if o.startswith("data.samples="))
    batch = (f"data.batch_size={samples}", "trainer.epochs=1000", "trainer.evaluate_every=0", "optimizer.lr=1e-2")
    run = trainer(folder, f"model={model}", f"precision={precision}", *batch, *QUICK[model], *more)
    outcome = run.run()
    found = losses(folder)
    assert outcome.status == "completed" and outcome.applied == run.planned
    assert found[-1] < 0.5 * found[0], found
    for p in run.module.parameters():
        assert p.dtype is torch.float32 and torch.isfinite(p).all(), "weights stay fp32 whatever the precision"


@pytest.mark.parametrize("precision", sampled(("fp16", "bf16", "fp32"), 3))
@pytest.mark.parametrize("model", QUICK)
def test_every_model_overfits_a_batch_in_every_precision(tmp_path: Path, model: str, precision: str) -> None:
    overfits(tmp_path, model, precision)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["sigmoid_mlp", "transformer", "lstm", "custom"])
def test_native_fp16_products_train_too(tmp_path: Path, model: str) -> None:
    overfits(tmp_path, model, "fp16", "precision.cpu_gemm=native")


@pytest.mark.slow
@pytest.mark.parametrize("n", range(len(VARIANTS)), ids=str)
def test_every_variant_overfits_a_batch(tmp_path: Path, n: int) -> None:
    model, variant = VARIANTS[n]
    overfits(tmp_path, model, PRECISIONS[n % 3], *variant)


@pytest.mark.slow
def test_a_compiled_model_trains(tmp_path: Path) -> None:
    overfits(tmp_path, "transformer", "fp32", "trainer.compile=true")
