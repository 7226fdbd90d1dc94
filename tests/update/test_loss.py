"""Losses: sums and counts that agree with PyTorch's means, in fp32 whatever the outputs are."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
import torch
import torch.nn.functional as F

from gradlab.base.option import Invalid
from gradlab.data.base import IGNORE
from gradlab.data.custom import CustomData
from gradlab.data.spec import Spec
from gradlab.update.custom_loss import CustomLoss
from gradlab.update.loss import AutoLoss, BinaryCrossEntropy, CrossEntropy, Loss, MeanSquaredError

CLASSES, TOKENS = Spec("vectors", (3,), "classes", 5), Spec("tokens", (7,), "tokens", 11, 11)
VALUES = Spec("vectors", (3,), "values", 2)


def tokens(ignored: int = IGNORE) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(0)
    targets = torch.randint(11, (4, 7), generator=g)
    targets[0, 2:], targets[3, :6] = ignored, ignored
    return torch.randn(4, 7, 11, generator=g), targets


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("ignored", [IGNORE, 3])
def test_cross_entropy_of_tokens_is_pytorchs(smoothing: float, ignored: int) -> None:
    outputs, targets = tokens(ignored)
    loss, count = CrossEntropy(ignore_index=ignored, label_smoothing=smoothing)(outputs, targets)
    wanted = F.cross_entropy(outputs.transpose(1, 2), targets, ignore_index=ignored, label_smoothing=smoothing)
    torch.testing.assert_close(loss / count, wanted)
    assert count == (targets != ignored).sum() and loss.shape == count.shape == ()


def test_padding_never_counts() -> None:
    outputs, targets = tokens()
    targets[1, 0] = 3
    loss, count = CrossEntropy(ignore_index=3)(outputs, targets)
    kept = (targets != IGNORE) & (targets != 3)
    torch.testing.assert_close(loss, F.cross_entropy(outputs[kept], targets[kept], reduction="sum"))
    assert count == kept.sum() == CrossEntropy(ignore_index=3).count(targets)


def test_cross_entropy_of_classes_is_pytorchs() -> None:
    outputs, targets = torch.randn(6, 5), torch.tensor([0, 1, 2, 3, 4, 0])
    loss, count = CrossEntropy()(outputs, targets)
    torch.testing.assert_close(loss / count, F.cross_entropy(outputs, targets))


@pytest.mark.parametrize("shape", [(4, 11, 6, 5), (4, 11, 7), (3, 5, 5, 5)])
def test_cross_entropy_of_pixels_is_pytorchs(shape: tuple[int, ...]) -> None:
    """(B, C, H, W) as PyTorch has them, and (B, H, W, C): of a square picture of as many classes, the former."""
    outputs, targets = torch.randn(shape), torch.randint(shape[1], shape[:1] + shape[2:])
    targets[0] = IGNORE
    wanted = F.cross_entropy(outputs, targets)
    for given in (outputs, outputs.movedim(1, -1))[: 1 if shape[1] == shape[2] else 2]:
        loss, count = CrossEntropy()(given, targets)
        torch.testing.assert_close(loss / count, wanted)
        found = CrossEntropy().correct(given, targets)
        assert found is not None and found[0] == ((outputs.argmax(1) == targets) & (targets != IGNORE)).sum()


def test_mse_and_bce_are_pytorchs() -> None:
    outputs, targets = torch.randn(6, 2), torch.rand(6, 2)
    loss, count = MeanSquaredError()(outputs, targets)
    torch.testing.assert_close(loss / count, F.mse_loss(outputs, targets))
    loss, count = MeanSquaredError(unit=0.1)(outputs, targets)
    torch.testing.assert_close(loss / count, F.mse_loss(outputs * 0.1, targets * 0.1))
    loss, count = BinaryCrossEntropy()(outputs, targets)
    torch.testing.assert_close(loss / count, F.binary_cross_entropy_with_logits(outputs, targets))


LOSSES = [(CrossEntropy(), *tokens()), (CrossEntropy(label_smoothing=0.2), *tokens()),
          (MeanSquaredError(), torch.randn(4, 2), torch.randn(4, 2)),
          (BinaryCrossEntropy(), torch.randn(4, 2), torch.rand(4, 2))]  # fmt: skip


@pytest.mark.parametrize(("loss", "outputs", "targets"), LOSSES)
def test_unequal_parts_add_up_to_the_whole(loss: Loss, outputs: torch.Tensor, targets: torch.Tensor) -> None:
    total, count = loss(outputs, targets)
    parts = [loss(o, t) for o, t in zip(outputs.split([1, 3]), targets.split([1, 3]), strict=True)]
    torch.testing.assert_close(parts[0][0] + parts[1][0], total)
    assert parts[0][1] + parts[1][1] == count == loss.count(targets)
    assert count.dtype == torch.int64 and count.shape == ()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("loss", "outputs", "targets"), LOSSES)
def test_half_outputs_are_summed_in_fp32(
    loss: Loss, outputs: torch.Tensor, targets: torch.Tensor, dtype: torch.dtype
) -> None:
    half = outputs.to(dtype).repeat(5000, *[1] * (outputs.dim() - 1)).requires_grad_()
    many = targets.repeat(5000, *[1] * (targets.dim() - 1))
    total, _ = loss(half, many)
    once, _ = loss(outputs.to(dtype).float(), targets)
    assert total.dtype == torch.float32 and total.isfinite()  # fp16 ends at 65504
    torch.testing.assert_close(total, once * 5000, rtol=1e-4, atol=0.0)
    total.backward()
    assert half.grad is not None and half.grad.dtype == dtype


@pytest.mark.parametrize(("loss", "outputs", "targets"), LOSSES)
def test_an_empty_micro_batch_has_neither_sum_nor_count(
    loss: Loss, outputs: torch.Tensor, targets: torch.Tensor
) -> None:
    total, count = loss(outputs[:0].requires_grad_(), targets[:0])
    assert total == 0 and count == 0
    total.backward()


def test_a_batch_of_padding_alone_is_zero_and_not_nan() -> None:
    outputs, targets = tokens()
    total, count = CrossEntropy()(outputs, torch.full_like(targets, IGNORE))
    assert total == 0 and count == 0


def test_infinity_is_not_hidden() -> None:
    outputs = torch.tensor([[math.inf, 0.0]])
    assert not CrossEntropy()(outputs, torch.tensor([1]))[0].isfinite()
    assert not MeanSquaredError()(outputs, torch.zeros(1, 2))[0].isfinite()


def test_correct_counts_what_counts() -> None:
    outputs, targets = tokens()
    right = outputs.argmax(-1)
    answers = torch.where(targets == IGNORE, IGNORE, right)
    answers[1, 0] = (answers[1, 0] + 1) % 11
    found = CrossEntropy().correct(outputs, answers)
    assert found is not None
    correct, count = found
    assert count == (targets != IGNORE).sum() and correct == count - 1
    assert MeanSquaredError().correct(torch.randn(3, 2), torch.randn(3, 2)) is None


@pytest.mark.parametrize(
    ("spec", "wanted"), [(CLASSES, CrossEntropy), (TOKENS, CrossEntropy), (VALUES, MeanSquaredError)]
)
def test_auto_fits_the_data(spec: Spec, wanted: type[Loss]) -> None:
    assert type(AutoLoss().resolve(spec)) is wanted


@pytest.mark.parametrize(
    ("loss", "spec", "message"),
    [
        (CrossEntropy(), VALUES, "=cross_entropy: needs classes or tokens, but the data provides values"),
        (MeanSquaredError(), CLASSES, "=mse: needs values, but the data provides classes"),
        (BinaryCrossEntropy(), TOKENS, "=bce: needs values, but the data provides tokens"),
    ],
)
def test_a_loss_that_does_not_fit_the_data(loss: Loss, spec: Spec, message: str) -> None:
    with pytest.raises(Invalid) as caught:
        loss.resolve(spec)
    assert str(caught.value) == message


@pytest.mark.parametrize("loss", [MeanSquaredError(), BinaryCrossEntropy()])
def test_shapes_are_never_broadcast(loss: Loss) -> None:
    with pytest.raises(Invalid, match=r"needs outputs of shape \(6, 1\), but the model returns \(6,\)"):
        loss(torch.zeros(6), torch.zeros(6, 1))


@pytest.mark.parametrize("option", [MeanSquaredError, BinaryCrossEntropy, AutoLoss])
def test_where_the_data_have_one_value_a_sample_a_model_may_return_it_alone(option: type[Loss]) -> None:
    loss, outputs, targets = option().resolve(replace(VALUES, single=True)), torch.randn(6), torch.rand(6, 1)
    of_both = [loss(shaped, targets) for shaped in (outputs, outputs.unsqueeze(1))]
    assert of_both[0] == of_both[1] == option().resolve(VALUES)(outputs.unsqueeze(1), targets)
    with pytest.raises(Invalid, match=r"needs outputs of shape \(6,\) or \(6, 1\), but the model returns \(6, 2\)"):
        loss(torch.zeros(6, 2), targets)


def test_cross_entropy_names_the_shape_it_needs() -> None:
    with pytest.raises(Invalid, match=r"needs outputs of shape \(6, 7, C\), but the model returns \(6, 5\)"):
        CrossEntropy()(torch.zeros(6, 5), torch.zeros(6, 7, dtype=torch.int64))


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"losses_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(
        "def each(outputs, targets, power=2): return (outputs - targets).abs().pow(power).mean(1)\n"
        "def mean(outputs, targets): return each(outputs, targets).mean()\n"
        "def whole(outputs, targets): return each(outputs, targets).sum()\n"
        "def spread(outputs, targets): return outputs.std()\n"
        "def nothing(outputs, targets): pass\n"
        "def number(outputs, targets): return 1.0\n"
        "three = 3\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


def test_custom_losses_of_samples_and_means(module: str) -> None:
    outputs, targets = torch.randn(6, 2), torch.randn(6, 2)
    for name in ("each", "mean"):
        loss = CustomLoss(target=f"{module}:{name}").resolve(VALUES)
        total, count = loss(outputs, targets)
        assert count == 6 == loss.count(targets)
        torch.testing.assert_close(total / count, F.mse_loss(outputs, targets))
        assert loss.correct(outputs, targets) is None
    cubic, _ = CustomLoss(target=f"{module}:each", kwargs={"power": 3}).resolve(VALUES)(outputs, targets)
    torch.testing.assert_close(cubic, (outputs - targets).abs().pow(3).mean(1).sum())
    total, _ = CustomLoss(target=f"{module}:mean").resolve(VALUES)(outputs.half(), targets.half())
    assert total.dtype == torch.float32


@pytest.mark.parametrize("name", ["each", "mean", "whole", "spread"])
def test_a_sum_in_place_of_a_mean_is_seen_in_two_samples(module: str, name: str) -> None:
    outputs = torch.randn(2, 2)
    loss = CustomLoss(target=f"{module}:{name}").resolve(VALUES)
    loss.tried(torch.nn.Identity(), outputs, outputs, torch.randn(2, 2))
    assert loss.summed == (name == "whole")


@pytest.mark.parametrize("shape", [(4,), (4, 1), (4, 2)])
def test_a_loss_of_ones_own_gets_targets_as_the_data_have_them(
    shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One number a sample, (N,), or a row of one, (N, 1); gradlab's own losses take a row of either."""
    seen: list[tuple[int, ...]] = []
    own = ModuleType("as_given")
    own.data = lambda: (torch.ones(4, 3), torch.ones(shape))  # type: ignore[attr-defined]
    own.loss = lambda outputs, targets: seen.append(tuple(targets.shape)) or outputs.mean()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "as_given", own)
    splits = CustomData(target="as_given:data").load(torch.device("cpu"))
    inputs, targets = splits.train.batch(torch.arange(4))
    CustomLoss(target="as_given:loss").resolve(splits.spec)(inputs, targets)
    assert seen == [shape] and targets.dim() == 2


@pytest.mark.parametrize("alike", [True, False])
def test_a_mean_over_all_pairs_is_refused(alike: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Outputs of (N, 1) less targets of (N,) are (N, N): the best answer is the targets' mean."""
    own = ModuleType("all_pairs")
    own.data = lambda: (torch.ones(4, 3), torch.arange(4.0))  # type: ignore[attr-defined]
    own.loss = lambda outputs, targets: (outputs - targets).square().mean()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "all_pairs", own)
    splits = CustomData(target="all_pairs:data").load(torch.device("cpu"))
    inputs, targets = splits.train.batch(torch.arange(2))
    loss, outputs = CustomLoss(target="all_pairs:loss").resolve(splits.spec), torch.randn(2, 1)
    if alike:
        loss.tried(torch.nn.Identity(), inputs, outputs[:, 0], targets)
        assert loss.exact
    else:
        with pytest.raises(Invalid, match=r"outputs of shape \(2, 1\) and targets of \(2,\), and broadcasts them"):
            loss.tried(torch.nn.Identity(), inputs, outputs, targets)


def test_wrong_custom_losses_are_refused(module: str) -> None:
    for name, gives in (("number", "float"), ("nothing", "NoneType")):
        loss = CustomLoss(target=f"{module}:{name}").resolve(VALUES)
        with pytest.raises(Invalid, match=rf"must return a tensor, a pair .* or a mapping .* but returned {gives}"):
            loss(torch.zeros(6, 2), torch.zeros(6, 2))
    with pytest.raises(Invalid, match="must name a function, but is int"):
        CustomLoss(target=f"{module}:three").resolve(VALUES)
    with pytest.raises(Invalid, match="there is no module no_such_module"):
        CustomLoss(target="no_such_module:f").resolve(VALUES)
    with pytest.raises(Invalid, match="must be of the form"):
        CustomLoss(target="nothing")


def test_bad_smoothing_is_refused() -> None:
    for bad in (-0.1, 1.0, math.nan):
        with pytest.raises(Invalid, match=r"^label_smoothing="):
            CrossEntropy(label_smoothing=bad)


def test_the_best_constant_answer_is_what_its_minimum_says() -> None:
    """Against the loss itself, at the answer that minimises it and around it."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(5, (200,), generator=generator).clamp(max=3)
    labels[::7] = -100
    share = torch.bincount(labels[labels >= 0]).double() / (labels >= 0).sum()
    values = torch.randn(200, 3, generator=generator).double() + 4
    wanted = torch.rand(200, 3, generator=generator).double()
    for loss, answer, targets in (
        (CrossEntropy(), share.log(), labels),
        (MeanSquaredError(unit=0.1), values.mean(0), values),
        (BinaryCrossEntropy(), wanted.mean(0).logit(), wanted),
    ):
        found = loss.constant(targets.split(64))

        def at(constant: torch.Tensor, loss: Loss = loss, targets: torch.Tensor = targets) -> float:
            total, count = loss(constant.expand(200, -1), targets)
            return (total / count).item()

        assert found == pytest.approx(at(answer), rel=1e-6)
        assert all(at(answer + 0.1 * torch.randn(answer.shape, generator=generator)) > found for _ in range(5))
