"""The run: against a plain PyTorch loop over its epochs, and what it does when updates are skipped or cannot go on."""

import copy
import json
import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import nets
import pytest
import torch
import torch.nn.functional as F
from helpers import differences, load, losses, metrics, of_the_run, trainer, updates, weights

from gradlab.base.json_lines import read_lines
from gradlab.base.option import Invalid
from gradlab.data.order import epoch_order
from gradlab.train import build
from gradlab.train.sink import FunctionSink

TINY = ("model=custom", "model.target=nets:Tiny", "optimizer=sgd", "trainer.evaluate_every=0")
SEVEN = ("data.samples=52", "data.batch_size=8")  # 7 micro-batches, the last of 4 samples
WINDOWS = {
    "accumulation.steps=3": [24, 24, 4, 24, 24, 4],
    "accumulation=target,accumulation.global_batch_size=24": [24, 24, 4, 24, 24, 4],
    "accumulation.steps=1": [8, 8, 8, 8, 8, 8, 4] * 2,
    "accumulation.steps=10": [52, 52],
    # 1 + 3 * min(update, 4) // 4 micro-batches: 1, 1, 2, 3 of the first epoch, then always 4
    "accumulation=ramp,accumulation.start=1,accumulation.end=4,accumulation.updates=4": [8, 8, 16, 20, 32, 20],
}


@pytest.mark.parametrize("accumulation", WINDOWS, ids=["fixed", "target", "1", "more_than_all", "ramp"])
def test_every_epoch_is_a_plain_loop_over_windows_with_its_remainder(tmp_path: Path, accumulation: str) -> None:
    run = trainer(tmp_path, *TINY, *SEVEN, *accumulation.split(","), "trainer.epochs=2", "seed=3")
    reference = copy.deepcopy(run.module)
    seen: list[torch.Tensor] = []
    run.module.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    outcome = run.run()

    data, sizes, expected, position = run.data.train, WINDOWS[accumulation], [], 0
    optimizer = torch.optim.SGD(reference.parameters(), lr=0.1, momentum=0.9)
    order = torch.cat([epoch_order(52, 3, epoch) for epoch in range(2)])
    for size in sizes:
        x, y = data.batch(order[position : position + size])
        optimizer.zero_grad()
        loss = F.cross_entropy(reference(x), y)
        loss.backward()
        optimizer.step()
        expected.append(loss.item())
        position += size
    assert position == len(order) and outcome.attempts == outcome.applied == len(sizes)
    assert torch.equal(torch.cat(seen), data.batch(order)[0]), "each sample once an epoch, in its order"
    assert max(len(x) for x in seen) == 8 and sorted({len(x) for x in seen}) == [4, 8]
    assert losses(tmp_path) == pytest.approx(expected, rel=1e-5)
    assert weights(run.module).numpy() == pytest.approx(weights(reference).numpy(), abs=1e-6)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_window_without_targets_is_logged_as_skipped_and_ends_nothing(tmp_path: Path, precision: str) -> None:
    """Not as a loss of 0, nor as a failure: fp32 does not stop, and what follows is the run without that window."""
    data = ("data.samples=40", "data.batch_size=8", f"precision={precision}", "trainer.epochs=1", "schedule=warmup")
    runs = [trainer(tmp_path / name, *TINY, *data) for name in ("with", "without")]
    order = epoch_order(40, 0, 0)
    runs[0].data.train.targets[order[8:16]] = -100
    runs[1].order_of = 0, torch.cat([order[:8], order[16:]])
    runs[1].samples = 32
    for run in runs:
        assert run.run().status == "completed"
    lines = updates(tmp_path / "with")
    empty = [
        (line["attempt"], line["update"], line["update/skipped"], math.isnan(float(line["train/loss"])))
        for line in lines
    ]
    assert empty == [
        (1, 1, False, False),
        (2, 1, True, True),
        (3, 2, False, False),
        (4, 3, False, False),
        (5, 4, False, False),
    ]
    assert [line.get("update/empty") for line in lines] == [None, True, None, None, None]
    assert runs[0].outcome.first_failed_attempt is None and not (tmp_path / "with" / "crash.pt").exists()
    assert torch.equal(weights(runs[0].module), weights(runs[1].module))


def test_only_applied_updates_count_and_move_the_schedule(tmp_path: Path) -> None:
    """At a scale of 2^40 the first updates overflow: routine, and it leaves no crash.pt."""
    overrides = ("precision=fp16", f"precision.init_scale={2.0**40}", "schedule=warmup", "schedule.warmup=10")
    run = trainer(tmp_path, *TINY, *overrides, "trainer.updates=6")
    outcome = run.run()
    lines = updates(tmp_path)
    applied = [line for line in lines if not line["update/skipped"]]
    assert outcome.status == "completed" and outcome.applied == len(applied) == 6
    assert outcome.attempts == len(lines) > 8 and [line["attempt"] for line in lines] == [*range(1, len(lines) + 1)]
    assert [line["lr"] for line in applied] == pytest.approx([0.1 * (i + 1) / 10 for i in range(6)])
    assert [line["update"] for line in applied] == [1, 2, 3, 4, 5, 6]
    for line, following in pairwise(lines):
        if line["update/skipped"]:
            assert line["lr"] == following["lr"]
            assert following["amp/scale"] == line["amp/scale"] / (2 if following["update/skipped"] else 1)
    assert not (tmp_path / "crash.pt").exists()


@pytest.mark.parametrize(
    ("limit", "applied", "epochs", "evaluated_after"),
    [(4, 4, 1, [3, 4]), (6, 6, 2, [3, 6]), (100, 9, 3, [3, 6, 9])],
    ids=["within", "boundary", "beyond"],
)
def test_epochs_or_updates_whichever_comes_first(
    tmp_path: Path, limit: int, applied: int, epochs: int, evaluated_after: list[int]
) -> None:
    overrides = (*TINY, *SEVEN, "accumulation.steps=3", "trainer.evaluate_every=1", "trainer.epochs=3")
    outcome = trainer(tmp_path, *overrides, f"trainer.updates={limit}").run()
    assert (outcome.applied, outcome.epochs_completed, outcome.status) == (applied, epochs, "completed")
    assert [line["update"] for line in metrics(tmp_path) if "eval/loss" in line] == evaluated_after
    assert [result["update"] for result in outcome.eval] == evaluated_after


def test_the_length_of_the_run_is_known_beforehand(tmp_path: Path) -> None:
    for accumulation, sizes in WINDOWS.items():
        overrides = (*TINY, *SEVEN, *accumulation.split(","), "trainer.epochs=2", "seed=3")
        assert trainer(tmp_path, *overrides).planned == len(sizes)


OVERFLOWS = ("model=custom", "model.target=nets:Overflows", "precision=fp16", "trainer.evaluate_every=0")


@pytest.mark.parametrize(("check_every", "attempts"), [(1, 17), (5, 20), (17, 17), (100, 100)])
def test_the_scale_has_a_floor(tmp_path: Path, check_every: int, attempts: int) -> None:
    """From 1, seventeen halvings go below 1e-5; the run ends at the next look."""
    run = trainer(tmp_path, *OVERFLOWS, "precision.init_scale=1", f"precision.check_every={check_every}")
    before = weights(run.module)
    outcome = run.run()
    assert outcome.status == "failed" and outcome.error == f"grad_scale is too small, exiting: {2.0**-attempts}"
    assert (outcome.attempts, outcome.applied, outcome.first_failed_attempt) == (attempts, 0, 1)
    assert torch.equal(weights(run.module), before)
    assert len(updates(tmp_path)) == attempts, "what led there is on disk"


def test_the_scale_is_looked_at_whether_or_not_the_update_came_through(tmp_path: Path) -> None:
    """As in the recipes: a scale that kills every gradient lets updates through, and stays."""
    overflows = (*OVERFLOWS, "+model.kwargs.passes=18", "precision.init_scale=1", "precision.check_every=20")
    outcome = trainer(tmp_path, *overflows).run()
    assert outcome.error == f"grad_scale is too small, exiting: {2.0**-18}"
    assert (outcome.attempts, outcome.applied, outcome.first_failed_attempt) == (20, 2, 1)
    crash = torch.load(tmp_path / "crash.pt", weights_only=True)
    assert crash["attempt"] == 1, "held since: the weights have moved"


def test_the_scale_is_looked_at_when_the_run_ends(tmp_path: Path) -> None:
    overflows = (*OVERFLOWS, "+model.kwargs.passes=18", "precision.init_scale=1", "precision.check_every=100")
    for end in ("trainer.updates=5", "trainer.epochs=1"):
        outcome = trainer(tmp_path / end, *overflows, end).run()
        assert (outcome.status, outcome.scale_too_small) == ("failed", True), end


def test_the_message_after_a_hundred_halvings_is_the_one_people_search_for(tmp_path: Path) -> None:
    outcome = trainer(tmp_path, *OVERFLOWS, "precision.check_every=100").run()
    assert outcome.error == "grad_scale is too small, exiting: 5.169878828456423e-26"


@pytest.mark.parametrize("after", [0, 7])
def test_crash_reproduces_the_first_update_of_the_final_streak(tmp_path: Path, after: int) -> None:
    """With accumulation 3 and 7 micro-batches an epoch, the pass after the seventh opens the second epoch."""
    overrides = (*OVERFLOWS, f"+model.kwargs.after={after}", *SEVEN, "accumulation.steps=3", "trainer.epochs=20")
    run = trainer(tmp_path, *overrides, "seed=5")
    outcome = run.run()
    crash = torch.load(tmp_path / "crash.pt", weights_only=True)
    assert outcome.status == "failed" and crash["error"] == outcome.error
    first, epoch = (1, 1) if after == 0 else (4, 2)
    assert (crash["attempt"], crash["epoch"], outcome.first_failed_attempt) == (first, epoch, first)
    order = epoch_order(52, 5, epoch - 1)[:24]
    assert torch.equal(torch.cat([x for x, _ in crash["batches"]]), run.data.train.batch(order)[0])
    assert crash["update"]["precision"]["scale"].item() == 65536.0

    again = trainer(tmp_path / "again", *OVERFLOWS, *SEVEN)
    again.module.load_state_dict(crash["model"])
    assert torch.isfinite(weights(again.module)).all()
    torch.set_rng_state(crash["random"]["cpu"])
    x, y = crash["batches"][0]
    with torch.autocast("cpu", dtype=torch.float16):
        loss = F.cross_entropy(again.module(x).float(), y)
    (loss * crash["update"]["precision"]["scale"]).backward()
    assert not all(torch.isfinite(p.grad).all() for p in again.module.parameters() if p.grad is not None)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_nan_stops_the_run_before_it_reaches_the_weights(tmp_path: Path, precision: str) -> None:
    kept: list[torch.Tensor] = []
    nan = ("model=custom", "model.target=nets:NaNAt", "+model.kwargs.at=4", "trainer.evaluate_every=0")
    run = trainer(
        tmp_path,
        *nan,
        f"precision={precision}",
        sinks=(FunctionSink(lambda line, layers: kept.append(weights(run.module))),),
    )
    outcome = run.run()
    assert outcome.status == "failed" and (outcome.attempts, outcome.applied) == (4, 3)
    assert outcome.error is not None and outcome.error.startswith("the gradient is not finite (update 4, epoch 1)")
    assert torch.isfinite(kept[-1]).all() and torch.equal(kept[2], kept[3]) and not torch.equal(kept[1], kept[2])
    assert torch.load(tmp_path / "crash.pt", weights_only=True)["attempt"] == 4
    raw = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert json.loads(raw[3])["train/loss"] == json.loads(raw[3])["grad/norm"] == "NaN"
    assert math.isnan(updates(tmp_path)[3]["train/loss"])


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_or_is_skipped_where_that_is_wanted(tmp_path: Path, precision: str) -> None:
    nan = ("model=custom", "model.target=nets:NaNAt", "+model.kwargs.at=4", "trainer.evaluate_every=0")
    run = trainer(tmp_path, *nan, f"precision={precision}", "precision.nonfinite=skip", "trainer.updates=6")
    outcome = run.run()
    assert (outcome.status, outcome.attempts, outcome.applied) == ("completed", 7, 6)
    assert [line["update/skipped"] for line in updates(tmp_path)] == [i == 3 for i in range(7)]
    assert torch.isfinite(weights(run.module)).all() and not (tmp_path / "crash.pt").exists()


@pytest.mark.parametrize(("samples", "size"), [(33, 16), (32, 1)])
def test_one_sample_under_batch_norm_is_refused_before_the_run(tmp_path: Path, samples: int, size: int) -> None:
    batch_norm = ("model.norm=batch", "model.layers=2", "trainer.epochs=1", f"data.batch_size={size}")
    with pytest.raises(Invalid, match=r"data\.batch_size=.* one sample on a rank, which batch norm cannot normalise"):
        trainer(tmp_path, *batch_norm, f"data.samples={samples}")
    if size > 1:
        assert trainer(tmp_path, *batch_norm, f"data.samples={samples + 1}").run().status == "completed"
        run = trainer(tmp_path, *batch_norm, f"data.samples={samples}", "data.drop_last=true")
        assert run.run().attempts == run.planned == 2 and not torch.equal(
            run.order(0).sort()[0], run.order(1).sort()[0]
        )


TEXT = (
    *("model=transformer", "model.layers=1", "model.width=16", "model.dropout=0.1", "data.length=8", "data.samples=40"),
    *("data.test_samples=8", "data.variable_length=true", "data.batch_size=4", "accumulation.steps=3"),
    *("trainer.epochs=2",),
)
VARIED = (
    *TEXT,
    *("noise=gaussian", "precision=fp16", "precision.growth_interval=2", "clip=autoclip", "clip.history=5"),
)


def test_the_same_configuration_gives_bitwise_the_same_run(tmp_path: Path) -> None:
    for name in ("a", "b"):
        torch.randn(3)  # nothing depends on what happened before
        trainer(tmp_path / name, *VARIED).run()
    trainer(tmp_path / "c", *VARIED, "seed=1").run()
    a, b, c = (of_the_run(load(tmp_path / name)) for name in "abc")
    assert differences(a, b) == [] and differences(metrics(tmp_path / "a"), metrics(tmp_path / "b")) == []
    assert differences(a["model"], c["model"])


def test_a_line_an_attempt_with_the_documented_names(tmp_path: Path) -> None:
    received: list[dict] = []
    run = trainer(
        tmp_path,
        *VARIED,
        "monitor.every=1",
        "monitor.step_every=4",
        sinks=(FunctionSink(lambda line, layers: received.append(line)),),
    )
    outcome = run.run()
    lines = list(read_lines(tmp_path / "metrics.jsonl"))
    assert differences(lines, received) == [], "sinks get what the file gets"
    names = {"update", "attempt", "epoch", "train/loss", "grad/norm", "clip/coefficient", "clip/fraction"}
    names |= {"amp/scale", "update/skipped", "lr", "throughput/samples_per_second"}
    ours = [line for line in lines if "train/loss" in line]
    looked = {"param/norm", "update/ratio"}
    assert len(ours) == outcome.attempts == 8
    assert all(set(line) == (names | looked if line["attempt"] in (1, 5) else names) for line in ours)
    layers = list(read_lines(tmp_path / "layers.jsonl"))
    assert layers[0]["names"] == [name for name, _ in run.module.named_parameters()]
    assert [line["attempt"] for line in layers[1:]] == [line["attempt"] for line in ours]
    for line, layer in zip(ours, layers[1:], strict=True):
        assert math.hypot(*layer["grad/layer"]) == pytest.approx(line["grad/norm"], rel=1e-9, nan_ok=True)


@pytest.mark.parametrize("data", [("data.samples=40",), TEXT], ids=["digits", "text"])
def test_evaluation_is_the_mean_over_the_test_set(tmp_path: Path, data: tuple[str, ...]) -> None:
    run = trainer(tmp_path, *data, "trainer.epochs=1")
    outcome = run.run()
    test = run.data.test
    assert test is not None
    x, y = test.batch(torch.arange(len(test)))
    run.module.eval()
    with torch.no_grad():
        logits = run.module(x)
    found = outcome.eval[-1]
    assert found["eval/loss"] == pytest.approx(F.cross_entropy(logits.flatten(0, -2), y.flatten()).item(), rel=1e-5)
    right = (logits.argmax(-1) == y)[y != -100].float().mean().item()
    assert found["eval/accuracy"] == pytest.approx(right, abs=1e-6)
    assert metrics(tmp_path)[-1]["eval/loss"] == found["eval/loss"]


def test_compilation_and_fast_fp16_exclude_each_other(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match=r"trainer\.compile=True: not with precision\.cpu_gemm=fast"):
        trainer(tmp_path, *TINY, "trainer.compile=true", "precision=fp16", "trainer.device=cpu")


def test_threads_are_taken_for_the_run_and_given_back() -> None:
    before = torch.get_num_threads()
    with build.threads(before + 1):
        assert torch.get_num_threads() == before + 1
    with build.threads(None):
        assert torch.get_num_threads() == before
    assert torch.get_num_threads() == before


def test_a_hopeless_run_is_given_up_with_its_reason_and_another_is_not(tmp_path: Path) -> None:
    base = ("model=sigmoid_mlp", "optimizer=sgd", "trainer.hopeless=2", "trainer.patience=5", "trainer.updates=30")
    outcome = trainer(tmp_path / "lost", *base, "optimizer.lr=1000").run()
    seen = losses(tmp_path / "lost")
    assert outcome.status == "given_up" and "2 times its first" in str(outcome.error)
    assert all(loss > 2 * seen[0] for loss in seen[-5:]) and seen[-6] <= 2 * seen[0]
    assert (tmp_path / "lost" / "checkpoint.pt").is_file() and not (tmp_path / "lost" / "crash.pt").exists()
    assert trainer(tmp_path / "fine", *base, "optimizer.lr=0.1").run().status == "completed"


@pytest.mark.parametrize(
    ("loss", "reference"),
    [(("loss=mse",), F.mse_loss), (("loss=custom", "loss.target=nets:absolute"), F.l1_loss)],
    ids=["mse", "custom"],
)
def test_targets_of_any_shape_are_a_plain_loop(tmp_path: Path, loss: tuple[str, ...], reference: Any) -> None:
    """Every pixel counts once, also in the shorter last window."""
    model = ("model=custom", "model.target=nets:Denoiser", "data=custom", "data.target=nets:noisy_images")
    sgd = ("optimizer=sgd", "optimizer.lr=0.1", "optimizer.momentum=0", "data.batch_size=3", "accumulation.steps=2")
    run = trainer(tmp_path, *model, *loss, *sgd, "trainer.epochs=2")
    plain, (inputs, targets) = copy.deepcopy(run.module), nets.noisy_images()[0]
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    assert run.run().status == "completed"
    for epoch in range(2):
        for index in epoch_order(16, run.config.seed, epoch).split(6):
            optimizer.zero_grad()
            reference(plain(inputs[index]), targets[index]).backward()
            optimizer.step()
    assert torch.allclose(weights(run.module), weights(plain), rtol=1e-5, atol=1e-6)


def test_a_loss_of_ones_own_may_have_fewer_outputs_than_there_are_classes(tmp_path: Path) -> None:
    """Of which there is no accuracy; a cross-entropy has no logit for the last class."""
    model = ("model=custom", "model.target=nets:Tiny", "+model.kwargs.outputs=9", "data=digits", "trainer.epochs=2")
    outcome = trainer(tmp_path, *model, "loss=custom", "loss.target=nets:ordinal").run()
    assert outcome.eval[-1]["eval/loss"] < outcome.eval[0]["eval/loss"] and "eval/accuracy" not in outcome.eval[-1]
    with pytest.raises(Invalid, match="has 9 outputs, but the data has 10 classes"):
        trainer(tmp_path, *model)
    loss = trainer(tmp_path / "more", *model, "loss=custom", "loss.target=nets:ordinal").loss
    number = [loss.correct(torch.randn(4, n), torch.arange(4)) for n in (9, 10, 24)]
    assert number[1] is not None and number[0] is None and number[2] is None, "embeddings are no scores"


def test_a_loss_of_a_whole_batch_is_evaluated_on_batches_of_the_same_size(tmp_path: Path) -> None:
    """A sum over a batch is as many times larger as the batch is; training's and the evaluation's are compared."""
    model = ("model=custom", "model.target=nets:Denoiser", "data=custom", "data.target=nets:noisy_images")
    still = ("optimizer=sgd", "optimizer.lr=1e-12", "data.batch_size=4", "trainer.epochs=1")
    run = trainer(tmp_path, *model, "loss=custom", "loss.target=nets:squared_sum", *still)
    run.data.test = run.data.train
    outcome = run.run()
    trained = losses(tmp_path)
    assert outcome.eval[-1]["eval/loss"] == pytest.approx(sum(trained) / len(trained), rel=1e-5)


@pytest.mark.parametrize(("scale", "told"), [(2.0**40, "(update 4, 4 of them skipped)"), (1.0, "(update 4)")])
def test_an_evaluation_says_how_many_of_the_updates_before_it_were_skipped(
    tmp_path: Path, scale: float, told: str
) -> None:
    """They are counted as they are tried."""
    given = ("precision=fp16", f"precision.init_scale={scale:g}", "trainer.evaluate_every=1", "trainer.epochs=1")
    run = trainer(tmp_path, *TINY[:3], "data.samples=32", "data.batch_size=8", *given)
    said: list[str] = []
    run.say = said.append
    run.run()
    assert next(each for each in said if each.startswith("epoch 1: eval loss")).endswith(told)
