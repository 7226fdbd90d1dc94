"""What each pitfall does to the gradient and to the weights, against plain PyTorch that makes the same mistake."""

import copy
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from forked import Commands
from helpers import composed, differences, load, of_the_run, sampled, trainer, updates, weights

from gradlab.base.errors import explain
from gradlab.base.option import OPTIONS, Invalid
from gradlab.config.schema import options
from gradlab.data.order import epoch_order, window
from gradlab.pitfalls.impact import compare
from gradlab.pitfalls.stepping import scheduler_steps
from gradlab.train.trainer import Trainer
from gradlab.update.clip import NormClip
from gradlab.update.step import Update

TINY = ("model=custom", "model.target=nets:Tiny", "data.batch_size=8", "data.samples=96", "trainer.evaluate_every=0")
"""Epochs of 12 micro-batches."""
FOUR = (*TINY, "accumulation.steps=4", "trainer.epochs=1")
"""3 windows of 4."""
FIVE = (*TINY, "accumulation.steps=5", "trainer.epochs=1")
"""Windows of 5, 5 and 2."""
SGD = ("optimizer=sgd", "optimizer.momentum=0")
CLIPS = ("clip=norm", "clip.max_norm=0.05")
"""Far below the norm of an untrained network's gradient, which is about 1."""
FP16 = ("precision=fp16", "precision.cpu_gemm=native")
UNEQUAL = (
    *("model=transformer", "model.layers=1", "model.width=16", "data.length=16", "data.variable_length=true"),
    *("data.samples=24", "data.batch_size=2", "accumulation.steps=4", "trainer.epochs=1", "trainer.evaluate_every=0"),
)
"""Micro-batches of 2 to 32 tokens."""
RANKS = {name for name in options("pitfall") if "sync" in name}
"""Those that need several ranks; what they do is measured in pitfall_ranks.py."""
EACH: dict[str, tuple[str, ...]] = {
    "no_clip": (*FOUR, *CLIPS),
    "unscaled_accumulation": FOUR,
    "clip_after_step": (*FOUR, *CLIPS),
    "clip_before_unscale": (*FOUR, *CLIPS, *FP16),
    "missing_zero_grad": FOUR,
    "value_clip": (*FOUR, *CLIPS, "+pitfall.max_value=0.01"),
    "needless_clip": (*FOUR, "+pitfall.max_norm=0.1"),
    "no_monitoring": FOUR,
    "clip_too_tight": FOUR,
    "clip_before_backward": (*FOUR, *CLIPS),
    "gradients_scaled_by_hand": FOUR,
    "zero_grad_in_window": FOUR,
    "clip_each_micro_batch": (*FOUR, *CLIPS),
    "unscale_twice": (*FOUR, *FP16),
    "step_past_scaler": (*FOUR, *FP16, "precision.init_scale=1e30"),
    "mean_of_means": UNEQUAL,
    "remainder_underscaled": FIVE,
    "schedule_per_micro_batch": (*FIVE, "schedule=warmup", "schedule.warmup=10"),
    "live_lock": (*FOUR, *FP16, "precision.init_scale=1e30"),
}
"""Where each of the others acts."""


def fallen(folder: Path, name: str | None, *overrides: str, every: int = 1) -> Trainer:
    """A trainer with that pitfall, or with none, ready to run."""
    chosen = [f"+pitfall={name}", f"pitfall.measure_every={every}"] if name else []
    return trainer(
        folder, *chosen, *(o.replace("+pitfall.", "pitfall.") for o in overrides if name or "pitfall" not in o)
    )


def gradient(module: torch.nn.Module) -> torch.Tensor:
    return torch.cat([p.grad.flatten() for p in module.parameters() if p.grad is not None])


def plain_gradients(begun: Trainer, index: int = 0) -> list[torch.Tensor]:
    """The gradient of each micro-batch's own mean, in float64: window `index` of the first epoch."""
    module, steps = copy.deepcopy(begun.module).double(), begun.config.accumulation.steps_at(0, 8, 1)
    found = []
    for batch in begun.batches(0, index * steps * begun.config.data.batch_size, steps)[0]:
        module.zero_grad()
        F.cross_entropy(module(batch.inputs.double()), batch.targets).backward()
        found.append(gradient(module))
    return found


def moved_by_one_update(begun: Trainer) -> torch.Tensor:
    """What the weights move by in the first update, over -lr: under plain SGD the gradient that was used."""
    before = weights(begun.module)
    begun.one_update()
    return (before - weights(begun.module)).double() / begun.config.optimizer.lr


def ratio(wrong: torch.Tensor, right: torch.Tensor) -> float:
    return (wrong.norm() / right.norm()).item()


def close(a: torch.Tensor, b: torch.Tensor, relative: float = 1e-4) -> bool:
    """Equal up to rounding: a weight near 1 is rounded by 6e-8, over a rate of 0.1."""
    return (a - b).norm().item() <= relative * b.norm().item()


def means(g: list[torch.Tensor]) -> torch.Tensor:
    return sum(g) / len(g)  # type: ignore[return-value]


def divided_in_the_loop(g: list[torch.Tensor]) -> torch.Tensor:
    total = torch.zeros_like(g[0])
    for one in g:
        total = (total + one) / len(g)
    return total


def clipped_in_the_loop(g: list[torch.Tensor]) -> torch.Tensor:
    total = torch.zeros_like(g[0])
    for one in g:
        total = total + one / len(g)
        total = total * min(1, 0.05 / total.norm().item())
    return total


WRONG: dict[str, Callable[[list[torch.Tensor]], torch.Tensor]] = {
    "no_clip": means,
    "unscaled_accumulation": lambda g: 4 * means(g),
    "clip_after_step": means,
    "value_clip": lambda g: means(g).clamp(-0.01, 0.01),
    "needless_clip": lambda g: means(g) * 0.1 / means(g).norm(),
    "clip_too_tight": lambda g: means(g) * 0.01 / means(g).norm(),
    "clip_before_backward": means,
    "gradients_scaled_by_hand": divided_in_the_loop,
    "zero_grad_in_window": lambda g: g[-1] / len(g),
    "clip_each_micro_batch": clipped_in_the_loop,
}
"""The mistakes that show in the gradient of any one update, by hand."""


@pytest.mark.parametrize("name", WRONG)
def test_the_gradient_that_the_optimizer_uses(tmp_path: Path, name: str) -> None:
    """Computed from the micro-batches' own gradients; the measured ratios are those of the two computations."""
    begun = fallen(tmp_path, name, *EACH[name], *SGD)
    g = plain_gradients(begun)
    clips = isinstance(begun.config.clip, NormClip)
    right = means(g) * min(1, 0.05 / means(g).norm().item()) if clips else means(g)
    wrong = WRONG[name](g)
    assert not close(wrong, right, 0.01), "the mistake makes a difference"
    assert close(moved_by_one_update(fallen(tmp_path, None, *EACH[name], *SGD)), right)
    assert close(moved_by_one_update(begun), wrong)
    measured = {k: v[0] for k, v in begun.impact.seen.items()}
    cosine = (wrong @ right / wrong.norm() / right.norm()).item()
    for kind in ("grad", "update"):
        assert measured[f"pitfall/{kind}_ratio"] == pytest.approx(ratio(wrong, right), rel=1e-4)
        assert measured[f"pitfall/{kind}_cosine"] == pytest.approx(cosine, abs=1e-6)
    assert measured["pitfall/distance"] == pytest.approx(ratio(wrong - right, right), rel=1e-4, abs=1e-6)


def test_sums_of_known_mistakes() -> None:
    """The figures that follow from the arithmetic alone."""
    g = list(torch.eye(4, dtype=torch.float64))
    assert divided_in_the_loop(g).tolist() == [4.0**-4, 4.0**-3, 4.0**-2, 4.0**-1], "n^-(n - i) of the right 1 / n"
    same = compare([torch.tensor([3.0, 4.0])], [torch.tensor([3.0, 4.0])])
    assert same == (1.0, pytest.approx(1.0), 0.0)
    turned = compare([torch.tensor([0.0]), torch.tensor([2.0])], [torch.tensor([1.0]), torch.tensor([0.0])])
    assert turned == (2.0, 0.0, pytest.approx(math.sqrt(5)))
    nothing = torch.zeros(1)
    assert compare([torch.ones(1)], [nothing]).ratio == math.inf and math.isnan(compare([nothing], [nothing]).ratio)


@pytest.mark.parametrize(
    ("optimizer", "expected"),
    [(SGD, 4.0), (("optimizer=adam",), 1.0), (("optimizer=adamw",), 1.0)],
    ids=["sgd", "adam", "adamw"],
)
def test_unscaled_accumulation_is_a_larger_rate_for_sgd_and_nothing_for_adam(
    tmp_path: Path, optimizer: tuple[str, ...], expected: float
) -> None:
    fallen(tmp_path, "unscaled_accumulation", *FOUR, *optimizer, "trainer.epochs=2").run()
    lines = updates(tmp_path)
    assert len(lines) == 6
    for line in lines[:1]:
        assert line["pitfall/grad_ratio"] == pytest.approx(4.0, rel=1e-6)
        assert line["pitfall/update_ratio"] == pytest.approx(expected, rel=0.01)
    assert lines[-1]["pitfall/update_ratio"] == pytest.approx(expected if expected == 4 else 1, rel=0.5)


def test_clip_after_step_clips_gradients_already_used(tmp_path: Path) -> None:
    """The real clipping runs, and afterwards the gradients have its norm; clip_before_backward does not change them."""
    left = {}
    for name in ("clip_after_step", "clip_before_backward"):
        begun = fallen(tmp_path, name, *FOUR, *CLIPS, *SGD, every=0)
        clear = begun.update.zero_grad
        norms = left[name] = []

        def look(begun: Trainer = begun, norms: list = norms, clear: Callable[[], None] = clear) -> None:
            norms.append(gradient(begun.module).norm().item())
            clear()

        begun.update.zero_grad = look  # type: ignore[method-assign]
        begun.run()
    assert left["clip_after_step"] == pytest.approx([0.05] * 3, rel=1e-5)
    assert all(norm > 0.1 for norm in left["clip_before_backward"])


def test_clip_before_backward_finds_no_gradient(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real clipping runs before the next forward pass, and there is nothing for it to clip."""
    seen: list[int] = []
    clip_ = NormClip.clip_
    monkeypatch.setattr(NormClip, "clip_", lambda self, g, state: seen.append(len(g.tensors)) or clip_(self, g, state))
    fallen(tmp_path, "clip_before_backward", *FOUR, *CLIPS, every=0).run()
    assert seen == [0, 0]


def plain_run(
    begun: Trainer, optimizer: torch.optim.Optimizer, module: torch.nn.Module, scale: float, mistake: str
) -> None:
    """The loop of the recipes with torch's own scaler, and the mistake in it."""
    scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    for k in range(3):
        optimizer.zero_grad()
        batches, _ = begun.batches(0, k * 32, 4)
        for x, y, _ in batches:
            with torch.autocast("cpu", torch.float16):
                loss = F.cross_entropy(module(x).float(), y, reduction="sum") / 32
            scaler.scale(loss).backward()
        if mistake == "unscale_twice":
            scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(module.parameters(), 0.05)
        if mistake == "unscale_twice":
            for p in module.parameters():
                p.grad /= scale
        scaler.step(optimizer)
        scaler.update()


@pytest.mark.parametrize("kind", ["sgd", "adam"])
@pytest.mark.parametrize("name", ["clip_before_unscale", "unscale_twice"])
def test_trajectories_with_a_loss_scale_are_those_of_the_recipe_with_the_mistake(
    tmp_path: Path, name: str, kind: str
) -> None:
    """The effective threshold is max_norm / scale, not max_norm * scale: SGD nearly stops, Adam hardly changes."""
    scale = 2.0**12
    precision = (*FP16, f"precision.init_scale={scale}", "optimizer.lr=0.01")
    chosen = SGD if kind == "sgd" else ("optimizer=adam",)
    begun = fallen(tmp_path, name, *FOUR, *CLIPS, *precision, *chosen)
    module = copy.deepcopy(begun.module)
    make = torch.optim.SGD if kind == "sgd" else torch.optim.Adam
    plain_run(begun, make(module.parameters(), lr=0.01), module, scale, name)
    before = weights(begun.module)
    begun.run()
    moved, expected = weights(begun.module) - before, weights(module) - before
    assert begun.outcome.applied == 3 and expected.norm() > 0
    assert close(moved, expected, 0.02)
    seen = begun.impact.seen
    assert seen["pitfall/grad_ratio"] == pytest.approx([1 / scale] * 3, rel=1e-3)
    if kind == "sgd":
        assert all(r < 2 / scale for r in seen["pitfall/update_ratio"]), "steps shrink by the scale"
        assert moved.norm() < 1.1 * 3 * 0.01 * 0.05 / scale
    else:
        assert all(r > 0.3 for r in seen["pitfall/update_ratio"]), "Adam cancels a constant factor, but for eps"


def test_clip_before_unscale_logs_the_scaled_norm(tmp_path: Path) -> None:
    fallen(tmp_path / "wrong", "clip_before_unscale", *FOUR, *CLIPS, *FP16, *SGD).run()
    fallen(tmp_path / "right", None, *FOUR, *CLIPS, *FP16, *SGD).run()
    wrong, right = updates(tmp_path / "wrong")[0], updates(tmp_path / "right")[0]
    assert wrong["grad/norm"] == pytest.approx(right["grad/norm"] * 65536, rel=1e-3)


def test_clipping_each_micro_batch_means_true_gradients_under_a_loss_scale(tmp_path: Path) -> None:
    begun = fallen(tmp_path, "clip_each_micro_batch", *FOUR, *CLIPS, *FP16, *SGD)
    wrong = clipped_in_the_loop(plain_gradients(begun))
    assert close(moved_by_one_update(begun), wrong, 0.01)


def test_missing_zero_grad_sums_all_gradients_so_far(tmp_path: Path) -> None:
    begun = fallen(tmp_path, "missing_zero_grad", *FOUR, *SGD)
    module = copy.deepcopy(begun.module)
    optimizer = torch.optim.SGD(module.parameters(), lr=begun.config.optimizer.lr)
    for k in range(3):
        batches, _ = begun.batches(0, k * 32, 4)
        sum(F.cross_entropy(module(x), y) / 4 for x, y, _ in batches).backward()
        optimizer.step()
    begun.run()
    assert torch.allclose(weights(begun.module), weights(module), atol=1e-6)
    ratios = begun.impact.seen["pitfall/grad_ratio"]
    assert ratios[0] == 1.0 and ratios[1] > 1.5 and ratios[2] > ratios[1], "sums of similar gradients grow"


def test_a_mean_of_means_weighs_tokens_unequally(tmp_path: Path) -> None:
    """Against both means in float64: the exact one over tokens, and the one over micro-batches."""
    begun = fallen(tmp_path, "mean_of_means", *UNEQUAL, *SGD)
    module = copy.deepcopy(begun.module).double()
    batches, _ = begun.batches(0, 0, 4)
    counts = [int((b.targets != -100).sum()) for b in batches]
    assert max(counts) > 1.5 * min(counts)
    sums = []
    for b in batches:
        module.zero_grad()
        F.cross_entropy(module(b.inputs).flatten(0, -2), b.targets.flatten(), reduction="sum").backward()
        sums.append(gradient(module))
    exact = sum(sums) / sum(counts)
    of_means = sum(s / c for s, c in zip(sums, counts, strict=True)) / 4
    assert close(moved_by_one_update(fallen(tmp_path, None, *UNEQUAL, *SGD)), exact, 1e-3)
    assert close(moved_by_one_update(begun), of_means, 1e-3)
    apart = begun.impact.seen["pitfall/distance"][0]
    assert apart == pytest.approx(ratio(of_means - exact, exact), rel=1e-2) and apart > 0.02


def test_the_remainder_alone_is_underscaled(tmp_path: Path) -> None:
    fallen(tmp_path, "remainder_underscaled", *FIVE, *SGD).run()
    ratios = [line["pitfall/grad_ratio"] for line in updates(tmp_path)]
    assert ratios == pytest.approx([1.0, 1.0, 2 / 5], rel=1e-6)


@pytest.mark.filterwarnings("ignore:Detected call of")  # it is what the mistake looks like to torch
def test_a_schedule_per_micro_batch_is_a_plain_scheduler_in_the_inner_loop(tmp_path: Path) -> None:
    fallen(tmp_path, "schedule_per_micro_batch", *EACH["schedule_per_micro_batch"], *SGD, "trainer.epochs=2").run()
    fallen(tmp_path / "right", None, *EACH["schedule_per_micro_batch"], *SGD, "trainer.epochs=2").run()
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 10))
    rates = []
    for _ in range(2):
        for i in range(12):
            if (i + 1) % 5 == 0 or i == 11:
                rates.append(optimizer.param_groups[0]["lr"])
                optimizer.step()
            scheduler.step()
    lines = updates(tmp_path)
    assert [line["lr"] for line in lines] == pytest.approx(rates)
    right = [line["lr"] for line in updates(tmp_path / "right")]
    assert right == pytest.approx([0.1 * (k + 1) / 10 for k in range(6)])
    apart = [r["pitfall/update_ratio"] for r in lines]
    assert apart == pytest.approx([a / b for a, b in zip(rates, right, strict=True)], rel=1e-3)


@pytest.mark.parametrize(("steps", "micro_batches"), [(1, 5), (4, 12), (5, 12), (7, 3)])
def test_scheduler_steps_count_every_micro_batch(steps: int, micro_batches: int) -> None:
    done, attempts = 0, 0
    for _ in range(3):
        for i in range(micro_batches):
            if (i + 1) % steps == 0 or i + 1 == micro_batches:
                assert scheduler_steps(attempts, steps, micro_batches) == done
                attempts += 1
            done += 1


LARGE = (*TINY, *FP16, *SGD, "optimizer.lr=0.01", f"precision.init_scale={2.0**30}", "trainer.epochs=2")
"""A scale whose gradients overflow at first; 24 updates."""


def test_live_lock_keeps_the_scale_and_always_skips(tmp_path: Path) -> None:
    for name in ("live_lock", None):
        fallen(tmp_path / str(name), name, *LARGE).run()
    wrong, right = updates(tmp_path / "live_lock"), updates(tmp_path / "None")
    assert [line["update/skipped"] for line in wrong] == [True] * 24
    assert {line["amp/scale"] for line in wrong} == {2.0**30}
    assert wrong[0]["pitfall/scale_ratio"] == 2.0, "the right way halves it"
    assert right[0]["update/skipped"] and right[-1]["update"] > 6 and right[-1]["amp/scale"] < 2.0**28, "it recovers"


def test_step_past_scaler_applies_what_overflowed(tmp_path: Path) -> None:
    wrong, right = (fallen(tmp_path / str(name), name, *LARGE) for name in ("step_past_scaler", None))
    wrong.one_update()
    right.one_update()
    assert not torch.isfinite(weights(wrong.module)).all() and torch.isfinite(weights(right.module)).all()
    assert wrong.update.precision.scale.item() == right.update.precision.scale.item() == 2.0**29, "it backs off"
    assert not math.isfinite(wrong.impact.seen["pitfall/distance"][0])


def test_without_a_check_of_the_gradients_a_nan_reaches_the_weights(tmp_path: Path) -> None:
    nan = (*TINY, "model.target=nets:NaNAt", "+model.kwargs.at=4", "trainer.epochs=1")
    wrong, right = (fallen(tmp_path / str(name), name, *nan, every=0) for name in ("no_monitoring", None))
    wrong.run()
    right.run()
    assert torch.isfinite(weights(right.module)).all() and right.outcome.status == "failed"
    assert torch.isnan(weights(wrong.module)).all() and wrong.outcome.status == "completed"
    assert wrong.outcome.applied == 12 and math.isnan(updates(tmp_path / "no_monitoring")[-1]["train/loss"])


@pytest.mark.parametrize("name", sampled(EACH, 3))
def test_measuring_changes_nothing(tmp_path: Path, name: str) -> None:
    """With it and without, the run ends bitwise the same: weights, optimizer, scale, buffers, random state."""
    harder = ("model.dropout=0.2",) if name == "mean_of_means" else ("+model.kwargs.dropout=0.2",)
    rest = ("noise=gaussian", "optimizer=adamw")
    for every in (0, 1):
        fallen(tmp_path / str(every), name, *EACH[name], *harder, *rest, every=every).run()
    states = [of_the_run(load(tmp_path / str(every))) for every in (0, 1)]
    assert differences(*states) == []
    silent, measured = (updates(tmp_path / str(every)) for every in (0, 1))
    assert all("pitfall/distance" in line for line in measured)
    rest = [{k: v for k, v in line.items() if not k.startswith("pitfall/")} for line in measured]
    assert differences(silent, rest) == []


@pytest.mark.parametrize("every", [1, 3])
def test_measuring_restores_batch_norm_and_the_history_of_norms(tmp_path: Path, every: int) -> None:
    normed = (
        *("model=sigmoid_mlp", "model.layers=2", "model.norm=batch", "data.samples=32", "data.batch_size=4"),
        *("accumulation.steps=2", "clip=autoclip", "clip.history=5", "optimizer=sgd"),
        *("trainer.epochs=1", "trainer.evaluate_every=0"),
    )
    for folder, often in (("0", 0), ("n", every)):
        fallen(tmp_path / folder, "no_clip", *normed, every=often).run()
    assert differences(*[of_the_run(load(tmp_path / folder)) for folder in ("0", "n")]) == []
    assert ["pitfall/distance" in line for line in updates(tmp_path / "n")] == [k % every == 0 for k in range(4)]


def test_a_correct_update_that_halts_does_not_halt_the_run(tmp_path: Path) -> None:
    """The model's third forward pass, of the second correct update, returns NaN; the wrong update is finite."""
    nan = (*TINY, *SGD, "model.target=nets:NaNAt", "+model.kwargs.at=3", "trainer.epochs=1")
    begun = fallen(tmp_path, "needless_clip", *nan)
    begun.run()
    assert begun.outcome.status == "completed" and begun.outcome.applied == 12
    assert [line["pitfall/grad_ratio"] for line in updates(tmp_path)][1] == math.inf, "only one of the two stepped"


@pytest.mark.parametrize("in_kernel", [False, True])
def test_a_skipped_update_used_no_gradient(tmp_path: Path, in_kernel: bool) -> None:
    begun = fallen(tmp_path, "live_lock", *LARGE)
    begun.update.in_kernel = in_kernel
    tried = begun.impact.tried(begun.batches(0, 0, 1)[0])
    assert tried.stats.skipped and len(tried.used) == len(tried.moved) == 4
    assert not any(t.any() for t in (*tried.used, *tried.moved))


def test_without_a_pitfall_the_update_is_the_shipped_one(tmp_path: Path) -> None:
    begun = fallen(tmp_path, None, *FOUR)
    assert begun.impact is None and not vars(begun.update).keys() & vars(Update).keys()
    assert (
        not begun.update.optimizer._optimizer_step_pre_hooks and not begun.update.optimizer._optimizer_step_post_hooks
    )
    begun.run()
    assert not any(k.startswith("pitfall") for line in updates(tmp_path) for k in line)


def test_every_pitfall_is_tried_here_or_on_two_ranks() -> None:
    assert set(EACH) | RANKS == set(options("pitfall")) and not set(EACH) & RANKS


@pytest.mark.parametrize("name", EACH)
def test_each_replaces_one_function(tmp_path: Path, name: str) -> None:
    plain, wrong = (vars(fallen(tmp_path, one, *EACH[name]).update).keys() for one in (None, name))
    assert wrong - plain == wrong & vars(Update).keys() == {OPTIONS["pitfall", name].replaces}  # type: ignore


IDLE = {
    "unscaled_accumulation": ((), "accumulation.steps > 1"),
    "mean_of_means": (("accumulation.steps=4", "loss.reduction=sum"), "loss.reduction=mean"),
    "remainder_underscaled": (FOUR, "an epoch whose micro-batches accumulation.steps does not divide"),
    "schedule_per_micro_batch": (FOUR, "a rate that moves, such as schedule=warmup"),
    "clip_before_unscale": (CLIPS, "a loss scale: precision=fp16"),
    "live_lock": (("precision=fp16", "precision.enabled=false"), "a loss scale: precision=fp16"),
    "clip_after_step": ((), "a clip other than none, such as clip=norm"),
    "needless_clip": (CLIPS, "clip=none, which is right there"),
    "no_sync_off_by_one": (FOUR, "several ranks: torchrun --nproc-per-node=2 -m gradlab ..."),
}


@pytest.mark.parametrize("name", IDLE)
def test_a_pitfall_without_effect_is_refused(tmp_path: Path, name: str) -> None:
    overrides, text = IDLE[name]
    with pytest.raises(Invalid) as error:
        fallen(tmp_path, name, *(overrides if set(TINY) <= set(overrides) else (*TINY, *overrides)))
    assert str(error.value) == f"pitfall={name}: needs {text}"


def test_a_typo_in_a_name_is_one_line() -> None:
    with pytest.raises(Exception) as error:
        composed("+pitfall=unscaled_acumulation")
    told = explain(error.value) or ""
    meant = "pitfall=unscaled_acumulation: did you mean unscaled_accumulation? It must be one of clip_after_step, "
    assert told.startswith(meant) and "\n" not in told


def test_a_field_without_a_pitfall_is_one_line() -> None:
    with pytest.raises(Exception) as error:
        composed("pitfall.measure_every=1")
    assert (explain(error.value) or "").startswith(
        "pitfall.measure_every: its group has no option chosen; choose one first"
    )


def test_thresholds_are_checked() -> None:
    for name, field in (("value_clip", "max_value"), ("clip_too_tight", "max_norm"), ("no_clip", "measure_every")):
        with pytest.raises(Invalid, match=field):
            OPTIONS["pitfall", name](**{field: -1})


@pytest.fixture(scope="module")
def two(gradlab: Commands, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], list[dict[str, Any]]]:
    """Every pitfall of DDP, in one launch of two ranks; what each rank left."""
    folder = tmp_path_factory.mktemp("two")
    ended = gradlab.torchrun(2, str(Path(__file__).parent / "pitfall_ranks.py"), cwd=folder)
    assert ended.code == 0, ended.err
    found = [torch.load(folder / f"pitfalls.{rank}.pt", weights_only=False) for rank in range(2)]
    return lambda name: [rank[name] for rank in found]


def plain_ranks(begun: Trainer, moved: torch.Tensor, k: int) -> list[list[torch.Tensor]]:
    """From the weights at window k, the mean gradient of each micro-batch of 4 of each of two ranks, in float64."""
    module, order = copy.deepcopy(begun.module).double(), epoch_order(48, begun.config.seed, 0)
    torch.nn.utils.vector_to_parameters(moved.double(), module.parameters())
    found = []
    for rank in range(2):
        found.append([])
        for index in window(order, k * 32, 4, 4, rank, 2)[0]:
            x, y = begun.data.train.batch(index)
            module.zero_grad()
            F.cross_entropy(module(x.double()), y).backward()
            found[-1].append(gradient(module))
    return found


@pytest.mark.slow
@pytest.mark.distributed
class TestRanks:
    """Two ranks, windows of 4 and of 2 micro-batches; lr 0.1, plain SGD."""

    def test_reductions_are_wasted_and_nothing_else_changes(self, two: Any) -> None:
        shipped = two("none")
        for name in ("ddp_sync_every_micro_batch", "no_sync_around_backward_only"):
            for rank, right in zip(two(name), shipped, strict=True):
                assert rank["all_reduces"] == [4, 2] and rank["right_all_reduces"] == [1, 1]
                assert torch.allclose(rank["weights"][-1], right["weights"][-1], atol=1e-7)
                assert rank["distance"] == pytest.approx([0, 0], abs=1e-5)

    @pytest.mark.parametrize(
        ("name", "all_reduces"), [("no_sync_off_by_one", [1, 1]), ("remainder_unsynchronised", [1, 0])]
    )
    def test_ranks_step_on_gradients_of_their_own(
        self, tmp_path: Path, two: Any, name: str, all_reduces: list[int]
    ) -> None:
        """Each rank's step against its own micro-batches' plain gradients."""
        begun = trainer(tmp_path, *TINY, "data.samples=48")
        ranks = two(name)
        for r, rank in enumerate(ranks):
            assert rank["all_reduces"] == all_reduces
            for k, n in enumerate((4, 2)):
                g = plain_ranks(begun, rank["weights"][k], k)
                own, everyone = sum(g[r]) / n, sum(map(sum, g)) / (2 * n)
                if name == "no_sync_off_by_one":
                    # The reduced micro-batch is the other rank's too, from that rank's weights.
                    other = plain_ranks(begun, ranks[1 - r]["weights"][k], k)[1 - r]
                    expected = ((g[r][0] + other[0]) / 2 + sum(g[r][1:])) / n
                else:
                    expected = own if n == 2 else everyone
                moved = (rank["weights"][k] - rank["weights"][k + 1]).double() / 0.1
                assert close(moved, expected, 1e-3)
        parted = [not torch.equal(a, b) for a, b in zip(*(rank["weights"] for rank in ranks), strict=True)]
        assert parted == ([False, True, True] if name == "no_sync_off_by_one" else [False, False, True])

    def test_mistakes_of_accumulation_are_the_same_on_two_ranks(self, two: Any) -> None:
        for rank in two("unscaled_accumulation"):
            assert rank["grad_ratio"] == pytest.approx([4, 2], rel=1e-5)
        for rank in two("missing_zero_grad"):
            assert rank["grad_ratio"][0] == 1.0 and rank["grad_ratio"][1] > 1.5

    def test_measuring_changes_nothing(self, two: Any) -> None:
        for name in ("none", *sorted(RANKS), "unscaled_accumulation", "missing_zero_grad"):
            for rank in two(name):
                assert torch.equal(rank["weights"][-1], rank["unmeasured"]), name
