"""Each mistake is reported at its line and first update, and nothing else is; correct loops have none."""

import pytest
import torch
import torch.utils.checkpoint
from torch.nn.utils import clip_grad_norm_, clip_grad_value_
from watched_loops import batches, half_loss, loss_of, marked, net, raises_in_torch, run

import gradlab
from gradlab.base.json_lines import read_lines
from gradlab.codes import CODES_BY_NAME

pytestmark = pytest.mark.filterwarnings("ignore:Detected call of .lr_scheduler.step")
"""Schedules are stepped too early on purpose."""

WRONG, RIGHT = {}, {}


def wrong(code, update=1):
    def keep(loop):
        WRONG[f"{code}-{loop.__name__}"] = (code, update, loop)
        return loop

    return keep


def right(loop):
    RIGHT[loop.__name__] = loop
    return loop


@wrong("clip-after-step")
def clip_late(model, optimizer, scaler, schedule):
    for batch in batches(4):
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        optimizer.step()
        clip_grad_norm_(model.parameters(), 1.0)  # here


@wrong("clip-after-step")
def clip_values_late(model, optimizer, scaler, schedule):
    for batch in batches(4):
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        optimizer.step()
        clip_grad_value_(model.parameters(), 1.0)  # here


@wrong("clip-after-step")
def clip_after_zero_grad(model, optimizer, scaler, schedule):
    for batch in batches(4):
        loss_of(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # here


@wrong("clip-before-backward")
def clip_early(model, optimizer, scaler, schedule):
    for batch in batches(4):
        optimizer.zero_grad()
        loss = loss_of(model, batch)
        clip_grad_norm_(model.parameters(), 1.0)  # here
        loss.backward()
        optimizer.step()


@wrong("clip-before-backward")
def clip_before_forward(model, optimizer, scaler, schedule):
    for batch in batches(4):
        optimizer.zero_grad(set_to_none=False)
        clip_grad_norm_(model.parameters(), 1.0)  # here
        loss_of(model, batch).backward()
        optimizer.step()


@wrong("clip-before-unscale")
def clip_scaled(model, optimizer, scaler, schedule):
    for batch in batches(4):
        optimizer.zero_grad()
        scaler.scale(half_loss(model, batch)).backward()
        clip_grad_norm_(model.parameters(), 1.0)  # here
        scaler.step(optimizer)
        scaler.update()


@wrong("clip-before-unscale")
def clip_then_unscale(model, optimizer, scaler, schedule):
    for batch in batches(4):
        optimizer.zero_grad()
        scaler.scale(half_loss(model, batch)).backward()
        clip_grad_norm_(model.parameters(), 1.0)  # here
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()


@wrong("unscale-twice")
def unscale_twice(model, optimizer, scaler, schedule):
    for batch in batches(4):
        optimizer.zero_grad()
        scaler.scale(half_loss(model, batch)).backward()
        scaler.unscale_(optimizer)
        raises_in_torch(lambda: scaler.unscale_(optimizer))  # here
        scaler.step(optimizer)
        scaler.update()


@wrong("unscale-every-micro-batch")
def unscale_each(model, optimizer, scaler, schedule):
    for i, batch in enumerate(batches(2)):
        scaler.scale(half_loss(model, batch) / 2).backward()
        if i == 0:
            scaler.unscale_(optimizer)  # here
            continue
        raises_in_torch(lambda: scaler.unscale_(optimizer))


@wrong("step-past-scaler")
def step_past_scaler(model, optimizer, scaler, schedule):
    for batch in batches(4):
        optimizer.zero_grad()
        scaler.scale(half_loss(model, batch)).backward()
        scaler.unscale_(optimizer)
        optimizer.step()  # here
        scaler.update()


@wrong("step-past-scaler")
def step_past_scaler_and_a_check_after_it(model, optimizer, scaler, schedule):
    for batch in batches(4):
        optimizer.zero_grad()
        scaler.scale(half_loss(model, batch)).backward()
        scaler.unscale_(optimizer)
        optimizer.step()  # here
        if schedule is not None:
            schedule.step()
        scaler.update()


@wrong("loss-not-scaled", 2)
def scaled_only_at_first(model, optimizer, scaler, schedule):
    for i, batch in enumerate(batches(4)):
        optimizer.zero_grad()
        loss = half_loss(model, batch) if i else scaler.scale(half_loss(model, batch))
        loss.backward()  # here
        scaler.step(optimizer)
        scaler.update()


@wrong("update-missing")
def never_updated(model, optimizer, scaler, schedule):
    for i, batch in enumerate(batches(2)):
        optimizer.zero_grad()
        scaler.scale(half_loss(model, batch)).backward()
        if i == 0:
            scaler.step(optimizer)  # here
            continue
        raises_in_torch(lambda: scaler.step(optimizer))


@wrong("live-lock")
def skipped_if_not_finite(model, optimizer, scaler, schedule):
    scaler.load_state_dict(scaler.state_dict() | {"scale": 2.0**40})
    for batch in batches(4):
        optimizer.zero_grad()
        scaler.scale(half_loss(model, batch)).backward()
        norm = clip_grad_norm_(model.parameters(), torch.inf)
        if not torch.isfinite(norm):
            continue  # here
        scaler.step(optimizer)
        scaler.update()


@wrong("accumulation-unscaled")
def undivided(model, optimizer, scaler, schedule):
    for i, batch in enumerate(batches(8)):
        loss = loss_of(model, batch)
        loss.backward()  # here
        if (i + 1) % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()


@wrong("accumulation-unscaled")
def divided_by_one(model, optimizer, scaler, schedule):
    for i, batch in enumerate(batches(8)):
        (loss_of(model, batch) / 1).backward()  # here
        if (i + 1) % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()


@wrong("accumulation-unscaled")
def undivided_measured(model, optimizer, scaler, schedule):
    for i, batch in enumerate(batches(8)):
        loss_of(model, batch).backward()  # here
        clip_grad_norm_(model.parameters(), torch.inf)
        if (i + 1) % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()


@wrong("accumulation-unscaled")
def undivided_scaled(model, optimizer, scaler, schedule):
    for i, batch in enumerate(batches(8)):
        scaler.scale(half_loss(model, batch)).backward()  # here
        if (i + 1) % 4 == 0:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()


@wrong("loss-divided-twice")
def divided_twice(model, optimizer, scaler, schedule):
    for i, batch in enumerate(batches(8)):
        loss = loss_of(model, batch) / 4
        (loss / 4).backward()  # here
        if (i + 1) % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()


@wrong("loss-scaled-twice")
def scaled_twice(model, optimizer, scaler, schedule):
    for batch in batches(4):
        optimizer.zero_grad()
        loss = scaler.scale(half_loss(model, batch))
        scaler.scale(loss).backward()  # here
        scaler.step(optimizer)
        scaler.update()


@wrong("clip-every-micro-batch")
def clip_each(model, optimizer, scaler, schedule):
    for i, batch in enumerate(batches(8)):
        (loss_of(model, batch) / 4).backward()
        clip_grad_norm_(model.parameters(), 1.0)  # here
        if (i + 1) % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()


@wrong("zero-grad-missing", 2)
def never_zeroed(model, optimizer, scaler, schedule):
    for batch in batches(4):
        loss_of(model, batch).backward()
        optimizer.step()  # here


@wrong("zero-grad-missing", 2)
def never_zeroed_accumulating(model, optimizer, scaler, schedule):
    for i, batch in enumerate(batches(8)):
        (loss_of(model, batch) / 4).backward()
        if (i + 1) % 4 == 0:
            optimizer.step()  # here


@wrong("zero-grad-in-window")
def zeroed_each(model, optimizer, scaler, schedule):
    for i, batch in enumerate(batches(8)):
        optimizer.zero_grad()  # here
        (loss_of(model, batch) / 4).backward()
        if (i + 1) % 4 == 0:
            optimizer.step()


@wrong("zero-grad-in-window")
def module_zeroed_each(model, optimizer, scaler, schedule):
    for i, batch in enumerate(batches(8)):
        model.zero_grad()  # here
        (loss_of(model, batch) / 4).backward()
        if (i + 1) % 4 == 0:
            optimizer.step()


@wrong("zero-grad-in-window", 2)
def zeroed_each_undivided(model, optimizer, scaler, schedule):
    for i, batch in enumerate(batches(8)):
        optimizer.zero_grad()  # here
        loss_of(model, batch).backward()
        if (i + 1) % 4 == 0:
            optimizer.step()


@wrong("zero-before-step")
def zeroed_before_step(model, optimizer, scaler, schedule):
    for batch in batches(4):
        loss_of(model, batch).backward()
        optimizer.zero_grad()  # here
        optimizer.step()


@wrong("remainder-left", 4)
def remainder_leaks(model, optimizer, scaler, schedule):
    for _ in range(2):
        for i, batch in enumerate(batches(7)):
            (loss_of(model, batch) / 2).backward()
            if (i + 1) % 2 == 0:
                optimizer.step()  # here
                optimizer.zero_grad()


@wrong("remainder-underscaled", 4)
def remainder_divided_by_full_length(model, optimizer, scaler, schedule):
    for i, batch in enumerate(batches(7)):
        (loss_of(model, batch) / 2).backward()  # here
        if (i + 1) % 2 == 0 or i == 6:
            optimizer.step()
            optimizer.zero_grad()


@wrong("schedule-every-micro-batch")
def schedule_each(model, optimizer, scaler, schedule):
    for i, batch in enumerate(batches(8)):
        (loss_of(model, batch) / 4).backward()
        if (i + 1) % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()
        schedule.step()  # here


@wrong("schedule-before-step")
def schedule_first(model, optimizer, scaler, schedule):
    for batch in batches(4):
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        schedule.step()  # here
        optimizer.step()


@wrong("loss-kept-with-graph", 5)
def losses_kept(model, optimizer, scaler, schedule):
    total = 0
    for batch in batches(8):
        optimizer.zero_grad()
        loss = loss_of(model, batch)
        loss.backward()  # here
        optimizer.step()
        total += loss


@wrong("loss-kept-with-graph", 5)
def divided_losses_kept(model, optimizer, scaler, schedule):
    total = 0
    for i, batch in enumerate(batches(12)):
        loss = loss_of(model, batch)
        (loss / 2).backward()  # here
        if i % 2:
            optimizer.step()
            optimizer.zero_grad()
        total += loss


@wrong("loss-kept-with-graph", 5)
def scaled_losses_kept(model, optimizer, scaler, schedule):
    total = 0
    for batch in batches(8):
        optimizer.zero_grad()
        loss = half_loss(model, batch)
        scaler.scale(loss).backward()  # here
        scaler.step(optimizer)
        scaler.update()
        total += loss


@wrong("backward-inside-autocast")
def backward_inside(model, optimizer, scaler, schedule):
    for batch in batches(4):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = loss_of(model, batch)
            loss.backward()  # here
        optimizer.step()


@wrong("fp16-without-scaler")
def unscaled_half(model, optimizer, scaler, schedule):
    for batch in batches(4):
        optimizer.zero_grad()
        half_loss(model, batch).backward()  # here
        optimizer.step()


@pytest.mark.parametrize("name", WRONG)
def test_a_mistake_is_reported_at_its_line_and_first_update(name, tmp_path):
    code, update, loop = WRONG[name]
    watch = run(loop, tmp_path)
    reported = [(fault.name, fault.site[1], fault.update) for fault in watch.faults]
    assert reported == [(code, marked(loop), update)]
    assert not watch.broken
    assert (
        f"test_watch_rules.py:{marked(loop)}: {CODES_BY_NAME[code].code} {CODES_BY_NAME[code].severity}: "
        in watch.report()
    )


@pytest.mark.parametrize("name", WRONG)
def test_strict_raises_at_the_first_error(name, tmp_path):
    code, _, loop = WRONG[name]
    if CODES_BY_NAME[code].severity != "error":
        assert run(loop, tmp_path, strict=True).faults
        return
    with pytest.raises(
        gradlab.watch.Fault, match=f"test_watch_rules.py:{marked(loop)}: {CODES_BY_NAME[code].code} error: "
    ):
        run(loop, tmp_path, strict=True)


@right
def checked_as_the_scaler_would(model, optimizer, scaler, schedule):
    for batch in batches(4):
        optimizer.zero_grad()
        scaler.scale(half_loss(model, batch)).backward()
        scaler.unscale_(optimizer)
        if torch.isfinite(clip_grad_norm_(model.parameters(), 1.0)):
            optimizer.step()
        scaler.update()


@right
def plain(model, optimizer, scaler, schedule):
    for batch in batches(12):
        optimizer.zero_grad()
        loss = loss_of(model, batch)
        loss.backward()
        clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        schedule.step()


@right
def set_to_none_manually(model, optimizer, scaler, schedule):
    for batch in batches(12):
        loss_of(model, batch).backward()
        optimizer.step()
        for p in model.parameters():
            p.grad = None


@right
def zeroed_manually(model, optimizer, scaler, schedule):
    for batch in batches(12):
        loss_of(model, batch).backward()
        clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        for p in model.parameters():
            p.grad.zero_()


@right
def zeroed_without_none(model, optimizer, scaler, schedule):
    for batch in batches(12):
        model.zero_grad(set_to_none=False)
        loss_of(model, batch).backward()
        optimizer.step()


@right
def scaled(model, optimizer, scaler, schedule):
    for batch in batches(12):
        optimizer.zero_grad()
        scaler.scale(half_loss(model, batch)).backward()
        scaler.unscale_(optimizer)
        clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        schedule.step()


@right
def scaled_by_a_constant(model, optimizer, scaler, schedule):
    """A manual loss scale, compensated by the learning rate."""
    optimizer.param_groups[0]["lr"] /= 64
    for batch in batches(12):
        optimizer.zero_grad()
        (half_loss(model, batch) * 64).backward()
        optimizer.step()


@right
def overflowing(model, optimizer, scaler, schedule):
    scaler.load_state_dict(scaler.state_dict() | {"scale": 2.0**40})
    for i, batch in enumerate(batches(40)):
        scaler.scale(half_loss(model, batch) / 2).backward()
        if i % 2:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()


@right
def measured_scaled(model, optimizer, scaler, schedule):
    for batch in batches(12):
        optimizer.zero_grad()
        scaler.scale(half_loss(model, batch)).backward()
        clip_grad_norm_(model.parameters(), torch.inf)
        scaler.step(optimizer)
        scaler.update()
        clip_grad_norm_(model.parameters(), torch.inf)


@right
def accumulated(model, optimizer, scaler, schedule):
    losses = []
    for i, batch in enumerate(batches(12)):
        loss = loss_of(model, batch) / 4
        loss.backward()
        losses.append(loss.item())
        if (i + 1) % 4 == 0:
            clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()


@right
def accumulated_sums(model, optimizer, scaler, schedule):
    for i, (x, y) in enumerate(batches(12)):
        torch.nn.functional.cross_entropy(model(x), y, reduction="sum").backward()
        if (i + 1) % 4 == 0:
            for p in model.parameters():
                p.grad /= 64
            optimizer.step()
            optimizer.zero_grad()


@right
def two_losses(model, optimizer, scaler, schedule):
    for (x, y), other in zip(batches(12), batches(12, 2), strict=True):
        optimizer.zero_grad()
        loss_of(model, (x, y)).backward()
        loss_of(model, other).backward()
        optimizer.step()


@right
def two_losses_of_one_forward_pass(model, optimizer, scaler, schedule):
    for x, y in batches(12):
        optimizer.zero_grad()
        out = model(x)
        for part in (out, -out):
            torch.nn.functional.cross_entropy(part, y).backward(retain_graph=True)
        optimizer.step()


@right
def nan_losses_skipped(model, optimizer, scaler, schedule):
    for i, (x, y) in enumerate(batches(12)):
        loss = loss_of(model, (x * (torch.nan if i % 5 == 0 else 1), y))
        optimizer.zero_grad()
        loss.backward()
        if not torch.isfinite(loss):
            optimizer.zero_grad()
            continue
        optimizer.step()


@right
def large_norms_skipped(model, optimizer, scaler, schedule):
    for i, batch in enumerate(batches(12)):
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        norm = clip_grad_norm_(model.parameters(), torch.inf)
        if norm > 100 or i in (0, 5, 6):
            continue
        optimizer.step()


@right
def activation_checkpointing(model, optimizer, scaler, schedule):
    for batch in batches(12):
        optimizer.zero_grad()
        hidden = torch.utils.checkpoint.checkpoint(model[0], batch[0].requires_grad_(), use_reentrant=True)
        torch.nn.functional.cross_entropy(model[2](model[1](hidden)), batch[1]).backward()
        optimizer.step()


@right
def every_other_loss_is_nan(model, optimizer, scaler, schedule):
    for _ in range(3):
        schedule.step()  # resumes where an earlier run ended
    for i, (x, y) in enumerate(batches(12)):
        loss = loss_of(model, (x, y)) * (1 if i % 2 else torch.nan)
        optimizer.zero_grad()
        loss.backward()
        if torch.isfinite(loss):
            optimizer.step()
            schedule.step()


@right
def every_other_loss_is_nan_and_zeroed_manually(model, optimizer, scaler, schedule):
    for i, (x, y) in enumerate(batches(12)):
        loss = loss_of(model, (x, y)) * (1 if i % 2 else torch.nan)
        loss.backward()
        if torch.isfinite(loss):
            optimizer.step()
        for p in model.parameters():
            p.grad = None


@right
def sharpness_aware_in_one_line(model, optimizer, scaler, schedule):
    for batch in batches(12):
        moved = []
        for again in (False, True):
            optimizer.zero_grad()
            loss_of(model, batch).backward()
            with torch.no_grad():
                moved = moved or [0.01 * p.grad for p in model.parameters()]
                torch._foreach_add_(list(model.parameters()), moved, alpha=-1 if again else 1)
        optimizer.step()


@right
def gradient_penalty(model, optimizer, scaler, schedule):
    for x, y in batches(12):
        optimizer.zero_grad()
        x = x.requires_grad_()
        out = model(x)
        (slope,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        (torch.nn.functional.cross_entropy(out, y) + 0.1 * slope.square().mean()).backward()
        optimizer.step()


@right
def scaled_and_accumulated(model, optimizer, scaler, schedule):
    for i, batch in enumerate(batches(12)):
        (scaler.scale(half_loss(model, batch)) / 2).backward()
        if i % 2:
            scaler.unscale_(optimizer)
            clip_grad_norm_(model.parameters(), 0.1)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()


@right
def weighted_by_share_of_the_window(model, optimizer, scaler, schedule):
    for i, (x, y) in enumerate(batches(12)):
        few = 4 if i % 3 else 16
        (loss_of(model, (x[:few], y[:few])) * (few / 24)).backward()
        if i % 3 == 2:
            optimizer.step()
            optimizer.zero_grad()


@right
def sharpness_aware(model, optimizer, scaler, schedule):
    for batch in batches(12):
        loss_of(model, batch).backward()
        with torch.no_grad():
            moved = [0.01 * p.grad for p in model.parameters()]
            torch._foreach_add_(list(model.parameters()), moved)
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        with torch.no_grad():
            torch._foreach_sub_(list(model.parameters()), moved)
        optimizer.step()
        optimizer.zero_grad()


@right
def evaluated_between_epochs(model, optimizer, scaler, schedule):
    for _ in range(4):
        for i, batch in enumerate(batches(4)):
            (loss_of(model, batch) / 2).backward()
            if i % 2:
                optimizer.step()
                optimizer.zero_grad()
        with torch.no_grad():
            loss_of(model.eval(), next(batches(1)))
        model.train()
        schedule.step()


@pytest.mark.parametrize("name", RIGHT)
def test_a_correct_loop_has_no_mistakes(name, tmp_path):
    watch = run(RIGHT[name], tmp_path)
    assert watch.faults == []
    assert not watch.broken
    assert watch.loop.outputs[0].num_updates >= 3


def test_a_mistake_is_reported_once_and_counted(tmp_path):
    watch = run(clip_late, tmp_path)
    assert watch.faults[0].times == 4


def test_the_recorded_norm_is_unscaled_when_clipping_comes_before_unscale(tmp_path):
    norms = {}
    for loop in (clip_scaled, clip_then_unscale, scaled):
        run(loop, tmp_path / loop.__name__, every=3)
        lines = list(read_lines(tmp_path / loop.__name__ / "metrics.jsonl"))
        norms[loop] = [line["grad/norm"] for line in lines][:1]
    assert norms[clip_scaled] == norms[clip_then_unscale] == pytest.approx(norms[scaled], rel=1e-3)
    lines = list(read_lines(tmp_path / "clip_scaled" / "metrics.jsonl"))
    assert all(0.1 < line["grad/norm"] < 10 for line in lines)


def test_one_loop_in_two_watches(tmp_path):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with (
        gradlab.watch(model, optimizer, folder=tmp_path / "a", quiet=True) as a,
        gradlab.watch(model, optimizer, folder=tmp_path / "b", quiet=True) as b,
    ):
        clip_late(model, optimizer, None, None)
    assert [s.name for s in a.faults] == [s.name for s in b.faults] == ["clip-after-step"]


@pytest.mark.parametrize("when, found", [("pre", []), ("post", ["clip-after-step"])])
def test_clipping_in_a_hook_of_the_step(when, found, tmp_path):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    register = getattr(optimizer, f"register_step_{when}_hook")
    register(lambda *given: [clip_grad_norm_(model.parameters(), 1.0)].clear())
    with gradlab.watch(model, optimizer, folder=tmp_path, quiet=True) as w:
        for batch in batches(4):
            optimizer.zero_grad()
            loss_of(model, batch).backward()
            optimizer.step()
    assert [fault.name for fault in w.faults] == found
