"""Each condition of the rules: a stream in which it alone decides."""

import math
import random

import pytest
import torch
from test_rules import DEAD_AT_END, FAILED, FALLING, FLAT, NAMES, codes, drift, evaluated, line, run, verdict

from gradlab.diagnosis.diagnose import MetricStream, diagnose, finished
from gradlab.diagnosis.inspection import Inspection
from gradlab.diagnosis.measurements import Measurements
from gradlab.diagnosis.options import Thresholds
from gradlab.diagnosis.replay.overflow import Overflow
from gradlab.diagnosis.replay.ranges import range_of
from gradlab.diagnosis.wording import progress

ONES = [1.0] * 60


def began(code: str, norms: list[float], **rest) -> int | None:
    found = verdict([line(i, 1.0, norm) for i, norm in enumerate(norms, 1)], **rest).findings
    return next(f.began for f in found if f.code == code)


def test_a_few_updates_are_judged_only_beyond_doubt() -> None:
    lost = [line(i, loss) for i, loss in enumerate([2.0, 200.0, 200.0, 200.0, 200.0])]
    assert "diverged" not in codes(lost[:4], constant=2.0) and "diverged" in codes(lost, constant=2.0)
    nothing = [line(i, math.nan, math.nan, True) for i in range(10)]
    assert verdict(nothing).verdict == "nan_loss", "no update was ever applied"
    assert verdict([]).verdict == "too_short" and not verdict([]).unhealthy


def test_evaluations_decide_whether_a_model_is_better_than_a_constant_answer() -> None:
    """Over the last losses."""

    def learns(last: float, *evals: float) -> bool:
        lines = [line(i, 2.0 + (last - 2.0) * min(i, 60) / 60) for i in range(100)]
        return verdict([*lines, *evaluated(*evals)], constant=1.0).learns

    assert learns(0.9) and not learns(0.96)
    assert learns(0.96, 0.94) and not learns(0.9, 0.96), "the evaluation counts"
    assert learns(0.96, math.nan, 0.94) and not learns(0.9, 0.96, math.nan)


def test_the_progress_of_a_run_that_has_not_learnt_is_reported() -> None:
    for losses, constant, message in (
        (
            [2.0 - min(i, 50) / 50 for i in range(100)],
            1.04,
            "the last losses have a mean of 1, only 3.8% below the best constant answer (1.04)",
        ),
        (
            [*(2.0 - min(i, 50) / 50 for i in range(99)), 5.0],
            1.04,
            "the last losses, with the largest counted as the second largest, have a mean of 1, only 3.8% below",
        ),
        (
            [*(2.0 - min(i, 50) / 50 for i in range(99)), 1.1],
            1.04,
            "the last losses, with the largest counted as the second largest, have a mean of 1, only 3.8% below",
        ),
        (FLAT, None, "the loss did not improve: 2 to 2"),
    ):
        stream = MetricStream(Thresholds(), NAMES)
        for i, loss in enumerate(losses):
            stream.observe(line(i, loss), {"grad/layer": [1.0, 1.0, 1.0, 1001.0]})
        assert message in diagnose(stream, Measurements(constant=constant)).sentence


def test_the_progress_of_a_loss_near_zero_is_no_share_of_it() -> None:
    for first, last, course in ((1e-9, -1e-4, "went from 1e-09 to -0.0001"), (2.0, 1.9, "improved by 5.0%")):
        stream = MetricStream(Thresholds(), NAMES)
        for i in range(100):
            stream.observe(line(i, first if i < 50 else last))
        assert progress(finished(stream, Measurements())) == f"the loss {course} only"


def test_a_run_that_is_too_short_is_not_stuck() -> None:
    half = {"fp16_forward": True, "inspection": Inspection(flushed=0.5)}
    assert (
        run(FLAT[:39], **half)["underflow_fp16"] == "warning" and run(FLAT[:40], **half)["underflow_fp16"] == "critical"
    )


def test_exploding_began_where_the_norm_first_left_its_range() -> None:
    assert began("exploding", [*ONES, 101.0, 2000.0, 3000.0], **FAILED) == 61
    calm = [*ONES, 150.0, *[1.0] * 10, math.nan, *[1.0] * 10]
    assert "exploding" not in run([1.0] * len(calm), calm, **FAILED), "survived: 20 calm updates, whatever one said"


@pytest.mark.parametrize(("between", "at"), [(1.0, 101), (5.0, 61), (1.05, 101)])
def test_exploding_began_where_the_loss_was_lost_for_good(between: float, at: int) -> None:
    """A calm gradient alone is no recovery: at a constant answer it is calm, too."""
    losses = [*ONES, *([between] * 40), 9.0, 99.0, 999.0]
    norms = [*ONES, 150.0, *([1.0] * 39), 200.0, 3000.0, 40000.0]
    lines = [line(i, loss, norm) for i, (loss, norm) in enumerate(zip(losses, norms, strict=True), 1)]
    assert next(f.began for f in verdict(lines, **FAILED).findings if f.code == "exploding") == at


@pytest.mark.parametrize(
    ("after", "at"), [([30.0, 29.0, 28.0], None), ([4e3, 4e4, 4e5], 4), ([math.inf] * 3, 4)], ids=str
)
def test_an_update_that_is_skipped_for_its_loss_scale_is_no_explosion(after: list[float], at: int | None) -> None:
    """It is one where the updates after it are larger than usual, too, or the run ends with it."""
    norms = [math.inf, 35.0, 34.0, math.inf, *after, math.nan]
    lines = [line(i, 1.0, norm, not math.isfinite(norm)) for i, norm in enumerate(norms, 1)]
    found = {f.code: f for f in verdict(lines, **FAILED).findings}
    assert ("exploding" in found) == (at is not None) and (at is None or found["exploding"].began == at)


def test_skipped_updates_after_a_norm_that_came_back_are_no_explosion() -> None:
    """They tell nothing of the norm; those that follow upon a large one do not bring it back."""
    for after, codes_of in ((1.0, False), (150.0, True)):
        norms = [*ONES, 150.0, after, *[math.nan] * 30]
        lines = [line(i, 1.0, norm, norm != norm) for i, norm in enumerate(norms, 1)]
        assert ("exploding" in codes(lines, **FAILED)) == codes_of


@pytest.mark.parametrize(
    ("calm", "scales", "late"), [(25, (64.0, 32.0), True), (15, (64.0, 32.0), False), (25, (128.0, 64.0), False)]
)
def test_fp16_overflows_late_where_a_scale_that_had_been_right_is_lowered(
    calm: int, scales: tuple[float, float], late: bool
) -> None:
    """Not while it comes down from where it began, nor where it goes back from where it was raised to."""
    lines = [line(1, 1.0, math.inf, True, 64.0), *(line(i, 1.0, scale=scales[0]) for i in range(2, 2 + calm))]
    lines += [line(2 + calm, 1.0, math.inf, True, scales[1]), *(line(i, 1.0, scale=32.0) for i in range(40, 90))]
    told = verdict(lines).evidence
    assert told.get("loss_scale_lowered_at") == (2 + calm if late else None)


def test_exploding_needs_the_loss_to_be_lost() -> None:
    grown = ONES + [150.0] * 15
    assert "exploding" not in run([1.0] * 75, grown)
    assert "exploding" in run([1.0] * 75, grown, **FAILED)
    assert "exploding" in run(ONES + [4.0] * 40, ONES + [150.0] * 40), "it rose"
    assert "exploding" in run([1.0] * 90, ONES + [150.0] * 30, skipped=DEAD_AT_END["skipped"]), "nothing is applied"
    wide = [20.0] * 60 + [150.0] * 40
    assert "exploding" not in run(ONES + [4.0] * 40, wide), "not ten times what is usual"


def test_a_norm_that_is_large_from_the_beginning_explodes_only_if_it_grows() -> None:
    assert "exploding" not in run([1.0] * 100, [400.0] * 100, **FAILED)
    assert "exploding" in run([1.0] * 100, [400.0] * 95 + [4100.0] * 5, **FAILED)
    assert "exploding" not in run(ONES + [4.0] * 40, [400.0] * 100), "the loss is lost, by no explosion"
    few = [3.0, 5.0, 4.0]
    assert "exploding" in run([1.0] * 5, [*few, 401.0, 1e5], **FAILED), "too few to know what is usual, but far beyond"
    assert "exploding" not in run([1.0] * 5, [*few, 399.0, 399.0], **FAILED)
    assert "exploding" in run([1.0] * 100, [1.0] * 30 + [101.0] * 70, **FAILED), "it has grown, and is usual by now"


@pytest.mark.parametrize(
    ("phase", "outputs", "found"), [("loss", 1.0, False), ("forward", 1.0, True), ("loss", 1e5, True)]
)
def test_exploding_is_not_the_loss_functions_own_doing(phase: str, outputs: float, found: bool) -> None:
    overflow = Overflow(phase, "layer", "Linear", outputs=range_of("outputs", torch.tensor([outputs])))
    assert ("exploding" in run([1.0] * 63, [*ONES, 101.0, 1e3, 1e4], overflow=overflow, **FAILED)) is found


def test_spikes_of_the_norm_are_beyond_its_spread_and_finite() -> None:
    assert "spike" not in run(FALLING, [1.0] * 38 + [50.0] + [1.0] * 61), "what is usual is not known yet"
    assert "spike" in run(FALLING, [1.0] * 39 + [50.0] + [1.0] * 60)
    assert "spike" not in run(FALLING, [1.0] * 60 + [math.inf] + [1.0] * 39)
    wide = [1.0, 2.0, 4.0, 8.0, 16.0] * 20  # median 4, spread 4.4
    assert "spike" not in run(FALLING, [*wide[:60], 40.0, *wide[61:]])
    assert "spike" in run(FALLING, [*wide[:60], 50.0, *wide[61:]])
    for at in (0, 30):  # the first and the middle one of those known are looked at before their median
        assert "spike" in run(FALLING, [1.0] * at + [20.0] + [1.0] * (59 - at) + [50.0] + [1.0] * 39)
    assert began("spike", [*ONES, 50.0, *[1.0] * 9, 60.0, *ONES]) == 61
    high = [8.0, *[1.0] * 29, 8.0, *[1.0] * 29]
    assert "spike" in run(FALLING, [*high, 20.0, *[1.0] * 39]), "whichever norms stand at the places of the middle"


@pytest.mark.parametrize("code", ["growing_norm", "decaying_norm"])
def test_a_trend_has_one_direction(code: str) -> None:
    there = drift(20.0)
    back = [*there[:10], *reversed(there[10:90]), *there[90:]]
    for norms, found in ((there, True), (back, False)):
        norms = norms if code == "growing_norm" else [1 / n for n in norms]
        assert (code in run(FALLING, norms)) is found


def test_no_gradient_where_there_is_no_loss_left_is_no_finding() -> None:
    zeros = ONES + [0.0] * 40
    assert "zero_gradient" not in run(ONES + [0.0] * 40, zeros) and "zero_gradient" in run(ONES + [0.1] * 40, zeros)


def rates(lines: list[dict], *lrs: float) -> list[dict]:
    return [one | {"lr": lr} for one, lr in zip(lines, lrs, strict=True)]


def test_a_run_of_few_updates_is_too_short_and_what_is_certain_of_it_is_said() -> None:
    assert not verdict([line(i, 2.0) for i in range(39)]).unhealthy
    assert "39 updates, fewer than 40," in verdict([line(i, 2.0) for i in range(39)]).sentence
    triples = [line(i, 3.0 ** (i / 37)) for i in range(39)]
    assert verdict(triples).verdict == "diverged"
    doubles = [line(i, 2.0 ** (i / 37)) for i in range(39)]
    assert verdict(doubles).verdict == "too_short" and not verdict(doubles).learns
    assert verdict([line(1, 2.0), line(2, math.nan, math.nan)]).unhealthy, "a loss that is not finite was applied"
    falls = [line(i, 2.0 - i / 50) for i in range(39)]
    assert verdict(falls).verdict == "too_short" and not verdict(falls, constant=5.0).learns
    draw = random.Random(0)
    heavy = [[line(i, draw.lognormvariate(0, 1.0)) for i in range(draw.randint(5, 39))] for _ in range(300)]
    assert sum(verdict(one).unhealthy for one in heavy) <= 2, "noise is no rise"


def test_updates_that_were_all_skipped_are_a_fault_unless_a_loss_scale_is_still_coming_down() -> None:
    skipped = [line(i, 2.0, math.nan, True, 2.0 ** (30 - i)) for i in range(1, 16)]
    assert verdict(skipped).verdict == "nan_gradient", "there is no scale that could come down"
    searching = verdict(skipped, dynamic_loss_scale=True)
    assert searching.verdict == "too_short" and "all of them were skipped" in searching.sentence
    lower = [one | {"amp/scale": one["amp/scale"] * 2.0**-20} for one in skipped]
    assert verdict(lower, dynamic_loss_scale=True).verdict == "scale_collapse", "below 1"
    found = [*skipped, *(line(i, 2.0 - i / 100, 1.0, False, 2.0**15) for i in range(16, 32))]
    assert verdict(found, dynamic_loss_scale=True).verdict == "too_short"


def test_a_run_that_is_no_better_than_a_constant_answer_is_given_time() -> None:
    """A hundred updates; longer while its rate rises, or while it falls fast enough to get there in as many again."""

    def of(losses: list[float], lrs: list[float] | None = None) -> str:
        lines = [line(i, loss) for i, loss in enumerate(losses)]
        return verdict(rates(lines, *lrs) if lrs else lines, constant=2.0).verdict

    flat = [2.0] * 100
    assert of(flat[:99]) == "too_short" and of(flat) == "not_learning"
    assert of(flat, [i / 100 for i in range(100)]) == "too_short"
    assert of(flat, [min(i, 50) / 100 for i in range(99)] + [0.4]) == "not_learning", "it has come down again"
    assert of([5.0 - 1.8 * i / 100 for i in range(100)]) == "too_short"
    assert of([5.0 - 1.4 * i / 100 for i in range(100)]) == "not_learning", "1.4 more are not enough"
    assert of([2.1 + 3 * 0.9**i for i in range(100)]) == "not_learning", "it slows down above it"


def test_a_fall_that_slows_down_over_the_whole_run_is_not_mistaken_by_noise_for_one_that_goes_on() -> None:
    """Targets that were shuffled, 312 updates: the last sixth falls by more than the one before."""

    def of(sixths: list[float], noise: float) -> str:
        losses = [level + noise * (-1) ** i for level in sixths for i in range(52)]
        return verdict([line(i, loss) for i, loss in enumerate(losses)], constant=1.016).verdict

    assert of([4.602, 3.412, 2.686, 2.13, 1.959, 1.715], 0.52) == "not_learning"
    assert of([4.602, 3.412, 2.686, 2.13, 1.959, 1.715], 0.05) == "too_short", "no noise explains that"
    assert of([1.9, 1.85, 1.8, 1.8, 1.72, 1.6], 0.1) == "too_short", "it begins to fall"


def test_how_a_run_ends_is_judged_by_a_mean_that_one_spike_does_not_move() -> None:
    """A constant answer's loss is a mean, of which rare samples may have the most; then a median is far below it."""
    rare = [0.05] * 160
    rare[1::5] = [0.8] * 32
    assert run(rare, constant=0.2)["not_learning"] == "critical", "its mean is 0.2, and its median 0.05"
    spiked = [2.0 - i / 100 for i in range(120)] + [0.8] * 19 + [100.0]
    assert run(spiked, constant=2.0).keys().isdisjoint({"not_learning"})


def test_the_evaluation_decides_whether_a_run_that_fits_its_training_data_has_learnt() -> None:
    assert run(FALLING, constant=2.0, evals=[2.1, 2.0]).get("memorising") == "warning"
    assert "memorising" not in run(FALLING, constant=2.0, evals=[1.8, 2.5]), "it was better once"
    assert "memorising" not in run(FLAT, constant=2.0, evals=[2.1]), "it does not fit them either"
    assert "memorising" not in run(FALLING, constant=2.0)
    assert run(FLAT, constant=2.0, evals=[1.8]).keys().isdisjoint({"not_learning"}), "as with dropout"
    apart = {"constant": 2.0, "eval_constant": 3.0, "evals": [2.5]}
    assert run(FALLING, **apart).keys().isdisjoint({"memorising"}), (
        "its own constant answer is what an evaluation beats"
    )
    said = verdict([*(line(i, loss) for i, loss in enumerate(FALLING)), *evaluated(2.1)], constant=2.0).sentence
    assert "a mean of 1.1" in said and "2.1" in said and "(a constant answer: 2)" in said


def test_without_a_constant_answer_a_run_is_judged_by_its_own_beginning() -> None:
    flat = verdict([line(i, 2.0) for i in range(100)])
    assert (flat.verdict, flat.unhealthy) == ("not_learning", False) and flat.sentence.endswith(
        "(judged by its own beginning)"
    )
    assert "not_learning" not in run([52.0 - i / 50 for i in range(100)]), "4%, but falling all along"
    assert "memorising" not in run(FALLING, evals=[3.0, 3.0]), "a model that was trained before begins so"
    assert "not_learning" not in run(FLAT, evals=[3.0, 2.9]), "the evaluation falls"
    assert "not_learning" in run(FLAT, evals=[3.0, 3.16, 2.87, 2.64, 2.8]), "within the noise of its steps"
    rising = [2.0 + i / 200 for i in range(100)]
    assert "not_learning" in run(rising, evals=[2.5, 2.2, 2.6]), "a loss that rises is worse, however good it once was"
    assert "not_learning" not in run(rising, evals=[3.0, 2.8, 2.6]), "harder samples"
    slowly = verdict([*(line(i, 52.0 - i / 50) for i in range(100)), *evaluated(51.0)])
    assert "does not count as learnt; judged by its own beginning and evaluations" in slowly.sentence
    assert slowly.verdict == "healthy" and not slowly.learns
    signed = [0.1 * (-1) ** i for i in range(100)]
    assert "not_learning" not in run(signed), "a surrogate, such as REINFORCE's: no part of it is progress"


def test_training_that_begins_at_its_best_is_healthy() -> None:
    best = [line(i, 0.1 + 0.01 * math.sin(i)) for i in range(200)]
    assert verdict([*best, *evaluated(0.12, 0.12)], constant=2.0).verdict == "healthy"
    assert not verdict(best, constant=2.0).learns, "and has learnt nothing new"
    lost = [line(i, 0.1) for i in range(100)] + [line(i, 1.5) for i in range(100, 200)]
    assert verdict(lost, constant=2.0).verdict == "diverged", "above all of its first losses, though below a constant's"


def test_a_loss_that_slows_down_below_zero_has_a_floor() -> None:
    norms = drift(100.0)
    assert run([-(1.1**i) for i in range(100)], norms)["unbounded_loss"] == "critical"
    assert "unbounded_loss" not in run([-(1.1**i) for i in range(100)], norms, constant=1.0)
    assert "unbounded_loss" not in run([1.0 - 500 * (1 - 0.97**i) for i in range(100)], norms)
    assert "unbounded_loss" not in run([-1.0 - i / 2 for i in range(100)], norms), "50 times its size"


@pytest.mark.parametrize(("grown", "power", "told"), [(5.5, 2.0, True), (1.9, 2.0, False), (5.5, 1.0, False)])
def test_a_loss_that_grows_with_the_weights_has_no_floor(grown: float, power: float, told: bool) -> None:
    """Sooner than one whose weights stay: it must fall faster and faster all the same."""
    losses = [-1.0 - 120 * (i / 100) ** power for i in range(100)]
    norms = drift(100.0)
    lines = [line(i, losses[i], norms[i]) | {"param/norm": 1.0 + (grown - 1) * i / 99} for i in range(100)]
    assert ("unbounded_loss" in {finding.code for finding in verdict(lines).findings}) == told


def test_the_first_gradient_of_a_run_that_fails_at_once_is_compared_with_the_weights() -> None:
    def found(ratio: float, updates: int = 2) -> bool:
        lines = [line(i, 1e8, 1e8) | {"update/ratio": ratio} for i in range(1, updates)]
        told = verdict([*lines, line(updates, math.nan, math.nan)], "failed", error="no")
        return "exploding" in {f.code for f in told.findings}

    assert found(11.0) and not found(9.0) and not found(11.0, 30)


@pytest.mark.parametrize(
    ("end", "last", "told"), [(1.0, 1.0, "diverged"), (0.85, 1.0, "healthy"), (1.0, 0.85, "healthy")]
)
def test_a_run_that_ends_at_its_constant_answer_again_has_lost_what_it_learnt(
    end: float, last: float, told: str
) -> None:
    """However little it was, where losses and evaluations agree; one of them alone may be noise, or memorised."""
    losses = [*(1.0 - i / 500 for i in range(80)), *([end] * 80)]
    lines = [line(i + 1, loss) for i, loss in enumerate(losses)]
    for evaluation in (0.95, 0.85, last):
        lines.append({"eval/loss": evaluation})
    unknown = verdict([line(i, 0.97) for i in range(-19, 1)] + lines)
    assert unknown.verdict == told, "its own beginning stands for an answer that is not known"
    found = verdict(lines, constant=1.0, eval_constant=1.0)
    assert found.verdict == told, found.sentence
    assert ("the best evaluation was 0.85, and the last is 1 " in found.sentence) == (told == "diverged")
    found = verdict([line(i, 2.0) for i in range(-19, 1)] + lines, constant=1.0, eval_constant=1.0)
    assert found.learns != found.unhealthy, "it fell, and is lost again all the same"


@pytest.mark.parametrize("pull", [0.1, 100.0])
def test_decay_that_takes_back_what_was_learnt_is_the_cause(pull: float) -> None:
    losses = [*(1.0 - i / 500 for i in range(80)), *([1.0] * 80)]
    lines = [line(i, loss) | {"param/norm": 9 * 0.9**i, "update/ratio": 0.1} for i, loss in enumerate(losses, 1)]
    for evaluation in (0.85, 1.0):
        lines.append({"eval/loss": evaluation})
    found = verdict(lines, constant=1.0, eval_constant=1.0, decay=lambda rates, moved, slope: pull).findings[0]
    assert found.code == "diverged" and (found.causes == ["weight decay that outweighs the gradient"]) == (pull > 1)


@pytest.mark.parametrize("flushed", [0.0, 0.9])
def test_small_gradients_that_fp16_makes_zero_are_a_problem(flushed: float) -> None:
    found = run(FALLING, 1e-7, fp16_forward=True, inspection=Inspection(flushed=flushed))
    assert ("small_but_healthy" in found) != ("underflow_fp16" in found) == (flushed > 0)
