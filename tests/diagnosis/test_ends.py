"""How a run ends: judged by what it came to, and not by what it was in between."""

import math

import pytest
from test_rules import FALLING, FLAT, line, run, seen, verdict


@pytest.mark.parametrize(("warm", "expected"), [(20, "not_learning"), (100, "not_learning"), (190, "too_short")])
def test_a_warm_up_that_has_ended_is_no_rate_that_rises(warm: int, expected: str) -> None:
    lines = [line(i, FLAT[i % len(FLAT)]) | {"lr": 0.003 * min(1.0, i / warm)} for i in range(1, 251)]
    found = verdict(lines, constant=2.0)
    assert found.verdict == expected
    assert ("rose until update 190" in found.sentence) == (expected == "too_short")


@pytest.mark.parametrize(("top", "bottom", "found"), [(1.1, 1.2, "warning"), (0.6, 1.2, None), (1.1, 0.5, None)])
def test_losses_and_evaluations_that_both_rise_again_have_lost_a_part(
    top: float, bottom: float, found: str | None
) -> None:
    """Not the evaluations alone, as where the model begins to memorise, nor the losses alone, as of harder data."""
    losses = [2.3] * 20 + [0.3] * 60 + [top, 1.6 * top, top, 0.2] * 10
    evals = [1.0, 0.37, bottom]
    told = verdict([*(line(i, v) for i, v in enumerate(losses, 1)), *({"eval/loss": v} for v in evals)], constant=2.3)
    assert (
        ("and ends at" in told.sentence)
        == ("(the last two are medians of 20 losses)" in told.sentence)
        == (found == "warning")
    )
    assert run(losses, constant=2.3, evals=evals).get("diverged") == found
    assert run(losses, evals=evals).get("diverged") == found, "also where the best constant answer is not known"
    assert run(losses, constant=2.3, evals=[*evals, 0.37]).get("diverged") is None, "and it came back"
    for never in ([2.5], [2.5, 2.5], [2.5, 2.6]):
        assert run(losses, constant=2.3, evals=never).get("diverged") is None, "it never fell"


@pytest.mark.parametrize(("kept", "expected"), [(0, "stalled"), (20, "stalled"), (90, "healthy")])
def test_a_rate_that_came_to_nothing_is_not_healthy(kept: int, expected: str) -> None:
    """However little or much was learnt before; not one that fell where the run was about to end, or had trained."""
    losses = [3.0, *[2.0 if kept else 2.99] * 199]
    lines = [line(i, loss) | {"lr": 0.03 * (0.1 if i > kept + 5 else 1.0) ** 40} for i, loss in enumerate(losses, 1)]
    for one in lines[::30]:
        one["update/ratio"] = one["lr"]
    found = verdict(lines, constant=3.0)
    assert found.verdict == expected
    if expected == "stalled":
        assert found.findings[0].causes == ["a schedule that takes the learning rate to nothing"]
        assert f"are worth {kept + 5} at its highest" in found.sentence


@pytest.mark.parametrize(("end", "expected"), [(2.0, "critical"), (1.0, "warning"), (0.2, "info")])
def test_saturated_units_are_a_warning_in_a_model_that_learns_little(end: float, expected: str) -> None:
    losses = [2.0] * 20 + [end] * 80
    lines = [line(i, loss) for i, loss in enumerate(losses, 1)]
    found = verdict(lines, constant=2.0, inspection=seen(saturated=0.9987))
    assert found.findings[0].severity == expected and found.findings[0].sentence.startswith("99.9% of")
    left = "of the loss of the best constant answer is left in the"
    assert (f"50% {left} last training losses" in found.findings[0].sentence) == (end == 1.0)
    better = verdict([*lines, {"eval/loss": 1.9}, {"eval/loss": 0.8}], constant=2.0, inspection=seen(saturated=0.9987))
    assert (f"40% {left} last evaluation" in better.findings[0].sentence) == (end >= 1.0)


@pytest.mark.parametrize(("accuracy", "found"), [(0.98, None), (0.6, "memorising"), (None, "memorising")])
def test_a_model_that_tells_classes_apart_does_not_memorise(accuracy: float | None, found: str | None) -> None:
    """Though a few answers that are far too sure have a loss above that of a constant answer."""
    evaluated = {"eval/loss": 2.5} | ({} if accuracy is None else {"eval/accuracy": accuracy})
    lines = [*(line(i, loss) for i, loss in enumerate(FALLING, 1)), evaluated, evaluated]
    told = verdict(lines, constant=math.log(7))
    assert told.verdict == (found or "healthy") and told.learns == (found is None)


@pytest.mark.parametrize("classes", [2, 10, 1000])
@pytest.mark.parametrize("share", [0.2, 0.5, 0.9, 0.99])
def test_the_accuracy_of_the_largest_class_is_no_learning(classes: int, share: float) -> None:
    rest = (1 - share) / (classes - 1)
    constant = -share * math.log(share) - (1 - share) * math.log(rest)
    lines = [*(line(i, 0.99**i) for i in range(1, 101)), {"eval/loss": 2 * constant, "eval/accuracy": share}]
    assert not verdict(lines, constant=constant).learns
