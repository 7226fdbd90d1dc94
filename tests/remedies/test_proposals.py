"""What is suggested, from what was measured: each maker on both sides of its measurement."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import made
import pytest
import torch
from helpers import composed

from gradlab.config.schema import Config, to_config
from gradlab.diagnosis.advice.learning_rate import TYPICAL_RATIO, update_advice
from gradlab.diagnosis.replay.overflow import Overflow
from gradlab.measure.monitor import Summary
from gradlab.measure.record import Observed, summed
from gradlab.remedies.candidates import SHOWN, Candidate, candidates_for
from gradlab.remedies.evidence import Evidence, evidence, recurrent_weights
from gradlab.runs.record import RunRecord

CUSTOM = ("model=custom", "model.target=nets:Tiny", "data=custom", "data.target=nets:data")
OWN = ("loss=custom", "loss.target=nets:loss")


def tries(e: Evidence, *given: str, search: bool = False) -> list[Candidate]:
    return candidates_for(e, config(*given), ["trainer.progress=none", *given], search)


def config(*given: str) -> Config:
    return to_config(composed(*given))


def value(found: Sequence[Candidate], field: str) -> float:
    """What the first of the suggestions sets a field to."""
    return float(next(o for o in found[0].overrides if o.startswith(f"{field}=")).partition("=")[2])


@pytest.mark.parametrize("ratio", [3e-3, 0.02, 0.3])
def test_a_rate_is_lowered_to_updates_of_the_usual_size(ratio: float) -> None:
    e = Evidence("diverged", ratios=[ratio] * 5, planned=500)
    made = value(tries(e, *CUSTOM, "optimizer.lr=0.1"), "optimizer.lr")
    assert 0.1 * TYPICAL_RATIO / ratio == pytest.approx(made, rel=0.05)


def test_a_late_overflow_of_fp16_is_given_its_range_or_the_rate_that_lasts() -> None:
    o = Overflow("forward", "blocks.0", "Linear", 4e3, 7e4, limit=65504.0)
    e = Evidence("scale_collapse", failed_at=300, planned=600, ratios=[1e-3] * 5, overflow=o, skipped=100)
    found = tries(e, "model=transformer", "precision=fp16", "optimizer.lr=0.06")
    assert found[0].overrides == ["precision=bf16"] and "7e+04" in found[0].why
    assert found[1].overrides == ["optimizer.lr=0.02"]


def test_a_late_overflow_of_updates_far_too_large_is_given_updates_of_the_usual_size() -> None:
    """The weights grew by a factor an update: the time to the overflow says nothing of the rate."""
    o = Overflow("forward", "blocks.0", "Linear", 4e38, 1.2, limit=3.4e38)
    e = Evidence("exploding", failed_at=300, planned=600, ratios=[0.5] * 5, overflow=o)
    made = value(tries(e, *CUSTOM, "optimizer.lr=0.1"), "optimizer.lr")
    assert made == pytest.approx(0.1 * TYPICAL_RATIO / 0.5, rel=0.05)


@pytest.mark.parametrize("verdict", ["exploding", "diverged"])
def test_samples_that_stand_out_and_a_momentum_far_above_the_usual_come_before_the_rate(verdict: str) -> None:
    given = (*CUSTOM, "optimizer=sgd", "optimizer.lr=0.03")
    e = Evidence(verdict, {"bad_batch": {"samples": [7, 3]}}, ratios=[0.1] * 5, planned=500)
    assert tries(e, *given)[0].overrides == ["data.without=[3, 7]"]
    e = replace(e, found={})
    assert tries(e, *given, "optimizer.momentum=0.999")[0].overrides == ["optimizer.momentum=0.9"]
    assert tries(e, *given, "optimizer.momentum=0.9")[0].overrides[0].startswith("optimizer.lr=")


@pytest.mark.parametrize("given", [["clip=norm", "clip.max_norm=0.001"], ["clip=value", "clip.max_value=0.001"]])
def test_a_bound_that_is_the_cause_is_loosened_and_the_rate_never_raised(given: list[str]) -> None:
    for verdict in ("overclipped", "stalled", "not_learning"):
        e = Evidence(verdict, ratios=[1e-6] * 5, norms=[3.0] * 40, steady=[3.0] * 36, coefficient=3e-4, planned=500)
        found = tries(e, *CUSTOM, *given)
        assert value(found, given[1].partition("=")[0]) > 3.0
        assert not any(o.startswith("optimizer.lr") for t in found for o in t.overrides)
        bare = tries(replace(e, coefficient=1.0), *CUSTOM)
        assert bare[0].overrides[0].startswith("optimizer.lr=") if verdict != "overclipped" else not bare


@pytest.mark.parametrize(("others", "first"), [(2e-5, "clip=per_layer"), (0.3, "clip.max_norm=")])
def test_layers_that_one_layer_starves_of_a_clipped_gradient_are_clipped_by_themselves(
    others: float, first: str
) -> None:
    found = {"overclipped": {}, "dominant_layer": {"layer": "a", "update_ratio": 0.6, "others": others}}
    e = Evidence("overclipped", found, ratios=[3e-4] * 5, norms=[100.0] * 40, steady=[100.0] * 36, coefficient=9e-3)
    every = tries(e, *CUSTOM, "clip=norm", search=True)
    assert every[0].overrides[0].startswith(first)
    bounds = [
        t for t in every if any(o.startswith("clip.max_norm=1") for o in t.overrides) and "per_layer" not in str(t)
    ]
    assert len(bounds) == 1, "one bound is not tried twice"


@pytest.mark.parametrize(("largest", "raised"), [(2e-7, 1e-3 / 1e-7), (0.2, None), (1e-5, 1e-2 / 1e-5)])
def test_a_rate_is_raised_no_further_than_the_largest_update_permits(largest: float, raised: float | None) -> None:
    e = Evidence("bad_batch", ratios=[1e-7] * 9 + [largest], norms=[1.0], planned=500)
    rates = [
        t for t in tries(e, *CUSTOM, "optimizer=sgd", "optimizer.lr=0.01", search=True) if "this rate makes" in t.why
    ]
    assert [value([t], "optimizer.lr") for t in rates] == (
        [] if raised is None else [pytest.approx(0.01 * raised, rel=0.1)]
    )


@pytest.mark.parametrize("lowered", [True, False])
def test_no_rate_is_raised_at_which_fp16_overflows_late(lowered: bool) -> None:
    slow = Evidence("not_learning", {"not_learning": {"slow": True}}, attempts=150, planned=150, lowered=lowered)
    for e in (replace(slow, ratios=[4e-4] * 5), Evidence("stalled", ratios=[1e-7] * 5, lowered=lowered)):
        every = tries(e, *CUSTOM, "precision=fp16", search=True)
        found = [t for t in every if [o.partition("=")[0] for o in t.overrides] == ["optimizer.lr"]]
        assert any(value([t], "optimizer.lr") > 1e-3 for t in found) is not lowered
    assert ("trainer.epochs" in str(tries(replace(slow, ratios=[4e-4] * 5), *CUSTOM)[0].overrides)) is lowered


@pytest.mark.parametrize(
    ("first", "of"), [(math.inf, "of the 4 updates that were measured 3"), (0.02, "the 4 updates")]
)
def test_the_updates_that_were_measured_are_counted_where_the_weights_began_at_zero(
    tmp_path: Path, first: float, of: str
) -> None:
    steps = [made.line(i, 1.0, **{"update/ratio": 0.02 if i else first}) for i in range(4)]
    e = evidence(RunRecord(made.run(tmp_path / "run", steps, made.diagnosis("diverged", ill=True))))
    assert tries(e, *CUSTOM)[0].why.startswith(f"{of} ")
    said = update_advice([line["update/ratio"] for line in steps], 1.0).rests_on
    assert said.endswith("3 of the 4 updates that were measured" if first == math.inf else "of 4 updates")


def test_norms_are_those_before_the_damage(tmp_path: Path) -> None:
    norms = [1.0] * 59 + [100.0] * 60 + [1e3]
    lines = [made.line(i, 1.0) | {"grad/norm": norm} for i, norm in enumerate(norms, 1)]
    damage = {"code": "exploding", "severity": "critical", "sentence": "", "evidence": {}, "began": 60}
    for findings, bound in (([damage], 2.0), ([], 200.0)):
        folder = made.run(tmp_path / str(bound), lines, made.diagnosis("exploding", ill=True, findings=findings))
        limit = value(
            [t for t in tries(evidence(RunRecord(folder)), *CUSTOM) if t.name == "clip=norm"], "clip.max_norm"
        )
        assert bound / 2 <= limit <= bound
    folder = made.run(tmp_path / "nan", [*lines[:119], lines[119] | {"grad/norm": float("nan")}], made.diagnosis("x"))
    never = replace(evidence(RunRecord(folder)), verdict="exploding")
    assert not any(t.name == "clip=norm" for t in tries(never, *CUSTOM)), "no norm is beyond the bound"


def test_without_steady_norms_the_bound_makes_the_step_of_sgd_usual() -> None:
    e = Evidence("exploding", ratios=[50.0], weights=10.0, norms=[5e4], planned=500)
    given = (*CUSTOM, "optimizer=sgd", "optimizer.lr=0.05", "optimizer.momentum=0")
    far = replace(e, ratios=[0.4] * 3, steady=[324.0] * 40)  # the steady norms are those of updates far too large
    for each in (e, far):
        bound = value([t for t in tries(each, *given) if t.name == "clip=norm"], "clip.max_norm")
        assert 0.05 * bound / 10.0 == pytest.approx(TYPICAL_RATIO, rel=0.06)
    assert not any("clip=norm" in t.overrides for t in tries(far, *CUSTOM, "optimizer=adamw"))


@pytest.mark.parametrize("verdict", ["exploding", "diverged", "dead_units", "saturated_units"])
def test_a_sum_over_the_samples_is_the_first_suspect_of_large_updates_of_sgd(verdict: str) -> None:
    e, given = (
        Evidence(verdict, ratios=[1.5] * 5, weights=5.0, norms=[382.0], planned=500),
        CUSTOM,
    )
    summed = (*given, "optimizer=sgd", "loss.reduction=sum")
    assert tries(e, *summed)[0].overrides == ["loss.reduction=mean"]
    for others in ((*given, "optimizer=sgd"), (*given, "optimizer=adamw", "loss.reduction=sum")):
        assert not any("loss.reduction=mean" in t.overrides for t in tries(e, *others))
    assert not any("loss.reduction=mean" in t.overrides for t in tries(replace(e, ratios=[1e-3] * 5), *summed))
    for optimizer, measured in (("sgd", True), ("sgd", False), ("adamw", True)):
        found = tries(replace(e, summed=measured), *given, f"optimizer={optimizer}")
        assert any(t.lines == "return the mean over the samples" for t in found) == (optimizer == "sgd" and measured)


@pytest.mark.parametrize(("ratio", "steady", "first"), [(1.4, 0, "rate"), (4e3, 0, "clip"), (1.4, 40, "clip")])
def test_updates_too_large_from_the_first_on_are_the_rates_fault(ratio: float, steady: int, first: str) -> None:
    """Beyond all rates it is the gradient's; where norms were usual for long, what left them is clipped."""
    e = Evidence("exploding", ratios=[ratio], weights=5.0, norms=[200.0], steady=[200.0] * steady, planned=500)
    found = tries(e, *CUSTOM, "optimizer=sgd", "optimizer.lr=0.05")
    assert found[0].overrides[0].startswith({"rate": "optimizer.lr=", "clip": "clip=norm"}[first])


@pytest.mark.parametrize(("moved", "lr", "follows"), [(7.0, 0.01, True), (1.3e4, 0.01, False), (1.3e4, 1e3, True)])
def test_a_rate_follows_the_measured_ratio_or_is_not_the_cause(moved: float, lr: float, follows: bool) -> None:
    """No usual rate is a ten-thousandth of the usual one: then the first update is large by what it begins with."""
    e = Evidence("exploding", ratios=[moved], weights=100.0, norms=[1.4e8], failed_at=2, planned=200)
    found = tries(e, *CUSTOM, "optimizer=sgd", f"optimizer.lr={lr}")
    rates = [t for t in found if any(o.startswith("optimizer.lr=") for o in t.overrides)]
    assert bool(rates) == follows != ("scale" in [t.name for t in found])
    if rates:
        assert value(rates, "optimizer.lr") == pytest.approx(lr * 0.01 / moved, rel=0.1)
    else:
        assert not any("schedule=warmup" in t.overrides for t in found)


@pytest.mark.parametrize(("size", "said"), [(19.0, True), (2.0, False)])
def test_weights_that_saturate_their_own_layer_are_to_begin_smaller(size: float, said: bool) -> None:
    sizes = {"rnn.weight_ih_l0": 3.0, "rnn.weight_hh_l0": size, "out.weight": 0.6}
    e = Evidence("saturated_units", {"saturated_units": {"module": "rnn"}}, ratios=[1e-4] * 5, sizes=sizes)
    found = [t for t in tries(e, *CUSTOM) if "scale the initial rnn.weight_hh_l0 by 0.05" in t.why + str(t)]
    assert bool(found) == said


def test_no_lower_rate_for_dead_units_where_updates_were_small() -> None:
    small, unknown = Evidence("dead_units", ratios=[1e-4] * 5, planned=500), Evidence("dead_units", planned=500)
    lowered = [any(t.name == "optimizer.lr" for t in tries(e, *CUSTOM)) for e in (small, unknown)]
    assert lowered == [False, True]


def test_a_floor_of_the_loss_scale_that_is_the_cause_is_set_back() -> None:
    e = Evidence("scale_collapse", ratios=[1e-3] * 5, planned=500, skipped=4, streak=1)
    given = (*CUSTOM, "precision=fp16", "precision.init_scale=1e10", "precision.min_scale=1e9")
    assert tries(e, *given)[0].overrides == ["precision.min_scale=1e-05"]
    assert tries(replace(e, skipped=100), *given)[0].overrides == ["precision=bf16"]


@pytest.mark.parametrize("size", [0.1, 10.0])
def test_a_large_initial_bias_is_named_before_another_activation(size: float) -> None:
    e = Evidence("dead_units", {"dead_units": {"module": ""}}, ratios=[1e-4] * 5, biases={"b.bias": size})
    lines = [t.lines for t in tries(e, *CUSTOM) if t.lines]
    assert ("b.bias" in lines[0]) == (size > 1)
    assert lines[-1].startswith("the activation in the model: ")


@pytest.mark.parametrize(("size", "factor"), [(3.0, 0.47), (0.1, 14.0)])
def test_initial_weights_off_by_a_factor_get_it_back(size: float, factor: float) -> None:
    sizes = {f"layers.{i}.weight": size for i in range(8)}
    e = Evidence("vanishing", planned=500, sizes=sizes)
    assert tries(e, "model.layers=8", "model.activation=relu", "model.init=too_large")[0].overrides == ["model.init=he"]
    own = tries(e, *CUSTOM)
    assert f"by {factor:g}" in own[0].lines.replace(" 14", " 14") and not own[0].overrides
    fine = replace(e, sizes=dict.fromkeys(sizes, 0.58))
    assert not any(t.name == "initial weights" for t in tries(fine, *CUSTOM))
    lost = tries(replace(e, verdict="exploding", ratios=[1.7], norms=[9.0], weights=3.0), *CUSTOM)
    assert lost[0].name == "initial weights" and "multiplies" not in lost[0].why, "before what is not measured as wrong"
    assert any(t.name == "optimizer.lr" for t in lost)
    one = tries(replace(fine, sizes={**fine.sizes, "head.weight": 58.0}), *CUSTOM)
    assert "head.weight by 0.01" in one[0].lines


def test_the_operation_that_failed_gets_its_stable_form() -> None:
    o = Overflow("loss", "", "", operation="log", failure="log of a negative number")
    e = Evidence("nan_loss", planned=500, failed_at=3, ratios=[1e-3], overflow=o)
    assert tries(e, "data=digits", "loss=unstable", "loss.kind=log")[0].overrides == ["loss.stable=true"]
    own = [t for t in tries(e, *CUSTOM, *OWN) if t.lines]
    assert own and own[0].lines.startswith("log in the loss: log(x.clamp")


def test_samples_that_did_the_damage_are_left_out() -> None:
    e = Evidence("bad_batch", {"bad_batch": {"samples": [17, 3]}}, planned=500)
    assert tries(e, *CUSTOM)[0].overrides == ["data.without=[3, 17]"]
    more = tries(e, *CUSTOM, "data.without=[1]")
    assert more[0].overrides == ["data.without=[1, 3, 17]"], "places are those of the whole set"
    assert not any("data.without" in o for t in tries(e, *CUSTOM, "data.without=[3,17]") for o in t.overrides)


@pytest.mark.parametrize("verdict", ["nan_loss", "nan_forward", "nan_gradient"])
def test_samples_that_are_not_finite_by_themselves_are_left_out_first(verdict: str) -> None:
    e = Evidence(verdict, {verdict: {"samples": [9]}}, planned=500, ratios=[1.0] * 5, norms=[1.0], failed_at=30)
    found = tries(e, *CUSTOM)
    assert found[0].overrides == ["data.without=[9]"]
    assert not any(o.startswith(("optimizer", "clip", "schedule")) for t in found for o in t.overrides), "not its fault"
    assert tries(e, "data=digits", "loss=unstable", "loss.kind=log")[0].overrides == ["loss.stable=true"]


@pytest.mark.parametrize("verdict", ["too_short", "stalled", "not_learning"])
@pytest.mark.parametrize("schedule", ["warmup", "warmup_cosine"])
def test_a_warmup_that_is_longer_than_the_run_is_shortened(verdict: str, schedule: str) -> None:
    e = Evidence(verdict, ratios=[1e-5] * 5, planned=150, attempts=150)
    assert tries(e, *CUSTOM, f"schedule={schedule}", "schedule.warmup=5000")[0].overrides == ["schedule.warmup=15"]
    for given in ((f"schedule={schedule}", "schedule.warmup=75"), ()):
        assert not any("warmup" in o for t in tries(e, *CUSTOM, *given) for o in t.overrides)


@pytest.mark.parametrize("verdict", ["stalled", "not_learning"])
@pytest.mark.parametrize(("rate", "ended"), [(1e-20, True), (0.5, False)])
def test_a_schedule_that_takes_the_rate_away_is_left_out(verdict: str, rate: float, ended: bool) -> None:
    """Ten times the rate is as little of it."""
    e = Evidence(verdict, ratios=[1e-3] * 5, rate=rate, planned=200, attempts=200)
    first = tries(e, *CUSTOM, "schedule=step", "schedule.every=4")[0].overrides if verdict == "stalled" or ended else []
    assert (first == ["schedule=constant"]) == ended


@pytest.mark.parametrize("verdict", ["vanishing", "dead_units", "zero_gradient", "not_learning"])
def test_layers_that_sgd_hardly_moves_get_another_optimizer_early(verdict: str) -> None:
    e = Evidence(verdict, {"dominant_layer": {}}, ratios=[0.02] * 5, planned=500, attempts=500)
    found = [t.overrides for t in tries(e, *CUSTOM, "optimizer=sgd", search=True) if t.overrides]
    assert ["optimizer=adamw", "optimizer.lr=0.001"] in found[:3]
    assert not any(o.startswith("optimizer=adam") for t in tries(e, *CUSTOM, "optimizer=adamw") for o in t.overrides)


def test_a_number_far_from_its_default_and_a_pitfall_are_candidates() -> None:
    e = Evidence("not_learning", ratios=[1e-3] * 5, planned=500)
    decayed = tries(e, *CUSTOM, "optimizer.weight_decay=300", search=True)
    assert "takes 0.3 of the weights in each update; " in decayed[0].why
    found = [t.overrides for t in decayed]
    assert any(o.startswith("optimizer.weight_decay=") for made in found for o in made)
    assert found[0] == ["optimizer.weight_decay=0.01"], "0.3 of the weights at every update"
    assert not any("weight_decay" in o for t in tries(e, *CUSTOM, "optimizer.weight_decay=0.3") for o in t.overrides)
    given = ("+pitfall=no_clip", *CUSTOM)
    assert tries(e, *given)[0].overrides == ["~pitfall"]


def test_a_run_prints_a_few_and_a_search_tries_them_first() -> None:
    e = Evidence("exploding", ratios=[5.0], weights=3.0, norms=[9.0], planned=500)
    given = ("model=lstm", "model.cell=rnn")
    printed, all_ = tries(e, *given), tries(e, *given, search=True)
    assert 0 < len([t for t in printed if t.overrides]) <= SHOWN < len(all_)
    assert [t.overrides for t in all_ if t.overrides][: len(printed)] == [t.overrides for t in printed if t.overrides]


@pytest.mark.parametrize("verdict", ["nan_loss", "exploding", "diverged", "scale_collapse"])
def test_what_fails_before_any_update_is_not_the_updates_fault(verdict: str) -> None:
    """No rate, warm-up or bound changes the first update; of one that fails later they may."""
    groups = ("optimizer", "schedule", "clip")

    def of_updates(at: int) -> bool:
        found = tries(Evidence(verdict, norms=[1.0], failed_at=at, planned=500), *CUSTOM)
        return any(o.startswith(groups) for t in found for o in t.overrides)

    assert of_updates(2) and not of_updates(1)


def test_a_reason_does_not_contradict_the_run() -> None:
    """Of a loss that is better than a constant answer and evaluations that are not; of updates that are too large."""

    def reason(ratio: float, **found: float) -> str:
        e = Evidence("not_learning", {"not_learning": found}, attempts=200, ratios=[ratio] * 5)
        return next(t.why for t in tries(e, *CUSTOM) if t.name == "targets")

    evaluated = {"constant": 1.0, "end": 0.9, "evaluation": 1.1, "evaluation_constant": 1.0}
    assert reason(1e-3, **evaluated).endswith("no evaluation is better than a constant answer")
    assert reason(1e-3, constant=1.0, end=0.99).endswith("too little is learnt beyond a constant answer")
    memorised = Evidence("memorising", {"memorising": {"evaluation": 0.68, "constant": 0.69}}, attempts=300)
    assert "the best evaluation (0.68) is hardly better" in str(tries(memorised, *CUSTOM))
    assert "ordinary" in reason(1e-3, **evaluated) and "ordinary" not in reason(2e-3, **evaluated)


def test_a_loss_that_falls_from_far_off_gets_no_lower_rate() -> None:
    e = Evidence("not_learning", {"not_learning": {"times": 50.0}}, attempts=200, ratios=[7e-3] * 5)
    found = tries(e, *CUSTOM)
    assert value(found, "optimizer.lr") > config(*CUSTOM).optimizer.lr and "mean of the targets" in str(found)


def test_weights_that_begin_at_zero_are_not_scaled() -> None:
    e = Evidence("dead_units", ratios=[1e-4] * 5, sizes={"a.weight": 0.6, "b.weight": 0.6, "c.weight": 0.0})
    lines = [t.lines for t in tries(e, *CUSTOM) if t.name == "initial weights"]
    assert lines == ["leave the initial c.weight as PyTorch makes it"]


def test_what_an_update_would_have_done_at_the_full_rate_is_not_said_to_have_happened() -> None:
    e = Evidence("diverged", ratios=[0.4, 0.005], until=9, planned=500)
    plain, warmed = (tries(e, *CUSTOM, *given) for given in ((), ("schedule=warmup", "schedule.warmup=5")))
    for found, would in ((plain, False), (warmed, True)):
        reasons = [t.why for t in found if "0.4 " in t.why]
        assert len(reasons) == 2 and all(("would have moved the weights" in why) == would for why in reasons)


@pytest.mark.parametrize(
    ("missing", "lines"),
    [
        ([], []),
        (["normalisation"], ["add batch normalisation"]),
        (["residual connections", "normalisation"], ["add residual connections, or add batch normalisation"]),
    ],
)
def test_a_model_is_not_told_to_add_what_it_has(missing: list[str], lines: list[str]) -> None:
    found = tries(Evidence("vanishing", found={"vanishing": {"missing": missing}}, planned=500), *CUSTOM)
    assert [t.lines for t in found if "normalisation" in t.lines or "residual" in t.lines] == lines


def test_what_is_added_to_something_has_no_fan_in() -> None:
    """By the module that a weight is of, whatever its name is."""

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.wte, self.emb = torch.nn.Embedding(5, 4), torch.nn.Linear(4, 4)
            self.places = torch.nn.Parameter(torch.zeros(1, 7, 4))
            self.mix = torch.nn.MultiheadAttention(4, 2)

    model = Net()
    names = [n for n, p in model.named_parameters() if p.dim() > 1]
    assert {n for n, has in zip(names, summed(model, names), strict=True) if has} == {
        *("emb.weight", "mix.in_proj_weight", "mix.out_proj.weight"),
    }
    assert summed(model, ["other.weight"]) == [True]


def test_what_is_suggested_for_a_gradient_that_vanishes_is_where_it_does() -> None:
    """Over time steps not between layers; one that large updates took away needs a lower rate, and no other model."""

    def of(ratio: float = 2e-3, **found: object) -> str:
        return str(tries(Evidence("vanishing", {"vanishing": found}, ratios=[ratio] * 5, planned=500), *CUSTOM))

    over_time, taken, missing = (
        of(late_to_early_time=1e6),
        of(0.2, at_first=False, missing=["normalisation"]),
        of(missing=[]),
    )
    assert "gated cells" in over_time and "layer" not in over_time and "optimizer.lr" not in over_time
    assert "optimizer.lr=" in taken and "normalisation" not in taken
    slowly = of(at_first=False, missing=["normalisation"])
    assert "normalisation" in slowly and "optimizer.lr=" in slowly, "by updates of usual size"
    assert "normalisation" not in of(at_first=False, missing=[]), "nothing is missing"
    assert "optimizer.lr=" not in missing and "normalisation" in of(missing=["normalisation"])


def test_a_reason_is_of_what_changes_and_of_what_was_measured() -> None:
    relu = ("model=sigmoid_mlp", "model.activation=relu")
    found = tries(Evidence("vanishing"), *relu)
    assert "model.init=he" in found[0].overrides and "activation" not in found[0].why and found[0].name == "he_init"
    spiked = Evidence("loss_spike_recovered", norms=[2e-4], until=240, planned=500)
    assert any("before update 240 was 0.0002" in t.why for t in tries(spiked, *CUSTOM, "optimizer=adam"))
    unseen = replace(spiked, peak=1e-4)
    assert not any("clip.max_norm" in str(t.overrides) for t in tries(unseen, *CUSTOM)), "it would not have acted"
    gelu = [t.why for t in tries(Evidence("vanishing"), "model=transformer")]
    assert not any("slope" in why for why in gelu), "half of a change that does not apply is none"
    unscaled = (*CUSTOM, "precision=fp16", "precision.enabled=false")
    for lost in ({}, {"underflow_fp16": {"flushed": 0.4}}):
        scaled = [
            t for t in tries(Evidence("not_learning", lost), *unscaled) if "precision.enabled=true" in t.overrides
        ]
        assert bool(scaled) == bool(lost)
    classes = {"not_learning": {"times": 50.0, "classes": True}}
    assert "mean of the targets" not in str(tries(Evidence("not_learning", classes), *CUSTOM))


def test_a_layer_as_pytorch_makes_it_is_not_scaled_to_others_that_are_off() -> None:
    sizes = {"a.weight": 56.0, "b.weight": 58.0, "c.weight": 57.0, "head.weight": 0.57}
    found = [t.lines for t in tries(Evidence("saturated_units", sizes=sizes), *CUSTOM) if t.lines]
    assert found == ["scale the initial weights, but for head.weight, by 0.025"]


@pytest.mark.parametrize("zero", [[], ["a.weight"]])
def test_data_are_not_suspected_where_the_graph_is_cut(zero: list[str]) -> None:
    found = tries(Evidence("not_learning", {"not_learning": {"zero": zero}}), *CUSTOM)
    assert [t.name for t in found if t.lines] == (["graph"] if zero else ["targets"])


@pytest.mark.parametrize("largest", [0.05, 0.5])
def test_a_derivative_that_does_not_exist_is_not_a_matter_of_the_rate(largest: float) -> None:
    o = Overflow("backward", "", "", operation="div", derivative="acos", failure="a division by zero")
    e = Evidence("nan_gradient", ratios=[1e-3] * 5 + [largest], norms=[1.0], overflow=o, failed_at=160, planned=400)
    found = tries(e, *CUSTOM, "loss=custom", "loss.target=nets:relative")
    assert "acos" in found[0].lines and any(t.overrides for t in found) == (largest > 0.1)
    found = tries(e, *CUSTOM, "loss=unstable")
    assert found[0].overrides == ["loss.stable=true"] and (len([t for t in found if t.overrides]) > 1) == (
        largest > 0.1
    )


@pytest.mark.parametrize(
    ("failure", "largest", "rates"),
    [("a division by zero", 0.018, False), ("a division by zero", 0.5, True), ("log of 0", 0.018, True)],
)
def test_no_rate_keeps_a_divisor_from_zero_that_ordinary_updates_made(
    failure: str, largest: float, rates: bool
) -> None:
    o = Overflow("loss", "", "", operation="log" if "log" in failure else "div", failure=failure)
    e = Evidence("nan_loss", ratios=[largest], norms=[1.0], overflow=o, failed_at=2, planned=400)
    for given in (("loss=custom", "loss.target=nets:relative"), ("loss=unstable",)):
        found = tries(e, *CUSTOM, *given)
        assert any("optimizer.lr" in str(t.overrides) for t in found) is rates
        assert found[0].lines or found[0].overrides == ["loss.stable=true"]
    half = tries(e, *CUSTOM, "loss=custom", "loss.target=nets:relative", "precision=fp16")
    assert any("precision=bf16" in t.overrides for t in half), "fp16 makes zeros of small divisors"


@pytest.mark.parametrize("noise", [{}, {"noise": 7.0}])
def test_noise_that_drowns_gradients_is_taken_away(noise: dict[str, float]) -> None:
    found = tries(Evidence("exploding", {"exploding": noise}, planned=100), *CUSTOM, "noise=gaussian")
    assert (found[0].overrides == ["noise=none"]) == bool(noise)


@pytest.mark.parametrize(("first", "until", "warms"), [(7e-4, 20, False), (0.3, 20, True), (0.3, 40, False)])
def test_a_warm_up_is_for_a_large_first_update_and_a_failure_soon_after(first: float, until: int, warms: bool) -> None:
    e = Evidence("diverged", ratios=[first, 0.005, 0.005], until=until, planned=300)
    reasons = [t.why for t in tries(e, *CUSTOM) if t.name == "schedule=warmup"]
    assert bool(reasons) == warms and all("the first update" in why for why in reasons)
    assert all(why.endswith("the rate rises over the first 30 updates") for why in reasons)
    assert any(t.name == "schedule=warmup" for t in tries(e, *CUSTOM, search=True)), "a search may try it"
    alike = replace(e, ratios=[first, first])
    assert not any(t.name == "schedule=warmup" for t in tries(alike, *CUSTOM)), "later ones are as large"


@pytest.mark.parametrize("planned", [1, 12, 80, 500])
def test_a_warm_up_is_shorter_than_the_run(planned: int) -> None:
    e = Evidence("exploding", ratios=[0.05] * 5, planned=planned)
    for given in ((), ("schedule=warmup", "schedule.warmup=2")):
        found = [o for t in tries(e, *CUSTOM, *given, search=True) for o in t.overrides if "schedule.warmup=" in o]
        assert all(2 * int(o.partition("=")[2]) <= planned for o in found) and bool(found) == (planned > 1)
    too_large = Evidence("exploding", ratios=[5.7], planned=320)
    assert not any("warmup" in o for t in tries(too_large, *CUSTOM) for o in t.overrides), "its first update still is"


@pytest.mark.parametrize(("kind", "chosen"), [("GRU", False), ("LSTMCell", False), ("RNN", True), ("Tanh", True)])
def test_an_activation_is_replaced_where_it_can_be_chosen(kind: str, chosen: bool) -> None:
    e = Evidence("saturated_units", {"saturated_units": {"module": "rnn", "fraction": 1.0, "kind": kind}})
    (lines,) = [t.lines for t in tries(e, *CUSTOM) if t.lines.startswith("rnn: ")]
    assert ("ReLU" in lines) == chosen


@pytest.mark.parametrize("ratio", [1e-3, 1e-6])
def test_a_bound_with_which_updates_are_of_ordinary_size_is_not_loosened(ratio: float) -> None:
    e = Evidence("not_learning", ratios=[ratio] * 5, norms=[3.0] * 40, coefficient=1e-4, planned=500)
    found = tries(e, *CUSTOM, "clip=norm", "optimizer=sgd")
    assert any(o.startswith("clip") for t in found for o in t.overrides) == (ratio == 1e-6)


def test_cells_with_gates_are_not_told_to_have_some() -> None:
    for gated in (False, True):
        found = {"late_to_early_time": 1e6} | ({"gated": True} if gated else {})
        lines = [t.lines for t in tries(Evidence("vanishing", {"vanishing": found}, planned=500), *CUSTOM)]
        assert any("gated cells" in each for each in lines) != gated and any("shorten" in each for each in lines)


def test_samples_like_all_others_are_not_left_out() -> None:
    """Where the loss itself is steep, others take their place."""
    for steep in (False, True):
        found = {"bad_batch": {"samples": [7]} | ({"steep": True} if steep else {})}
        tried = tries(Evidence("bad_batch", found, planned=500), *CUSTOM)
        assert any("data.without=[7]" in o for t in tried for o in t.overrides) != steep
        assert any("bound what a single sample" in t.lines for t in tried) == steep


@pytest.mark.parametrize(("size", "scaled"), [(0.58, False), (1.0, False), (2.0, True)])
def test_weights_that_are_applied_at_every_step_are_not_to_stretch(size: float, scaled: bool) -> None:
    sizes = {"rnn.weight_ih_l0": 0.58, "rnn.weight_hh_l0": size, "out.weight": 0.58}
    assert recurrent_weights(sizes, ["rnn"]) == ["rnn.weight_hh_l0"] and not recurrent_weights(sizes, ["other", ""])
    e = Evidence("exploding", ratios=[0.05] * 5, sizes=sizes, recurrent=frozenset(recurrent_weights(sizes, ["rnn"])))
    assert ("scale the initial rnn.weight_hh_l0 by 0.5" in [t.lines for t in tries(e, *CUSTOM)]) == scaled


@pytest.mark.parametrize(("size", "offered"), [(2.4, True), (0.58, False)])
@pytest.mark.parametrize("sgd", [True, False])
def test_a_recurrence_of_relus_is_to_begin_as_the_identity(size: float, offered: bool, sgd: bool) -> None:
    """Where it stretches the state; and where it shrinks it, if that is what was found."""
    sizes, weights = {"rnn.weight_hh_l0": size, "out.weight": 0.58}, frozenset(["rnn.weight_hh_l0"])
    known: dict[str, Any] = {"sizes": sizes, "recurrent": weights, "of_relus": weights, "planned": 500}
    given = (*CUSTOM, "optimizer=sgd") if sgd else CUSTOM
    told = [t.lines for t in tries(Evidence("exploding", ratios=[0.05] * 5, **known), *given) if "rnn" in t.lines]
    assert [("eye_" in each, "adamw" in each) for each in told] == ([(True, sgd)] if offered else [])
    found = {"vanishing": {"late_to_early_time": 1e6}}
    assert any("eye_" in t.lines for t in tries(Evidence("vanishing", found, **known), *given))
    known["sizes"] = sizes | {"rnn.weight_hh_l0": 1.0}
    assert not any("eye_" in t.lines for t in tries(Evidence("vanishing", found, **known), *given))


def test_relus_are_told_from_other_recurrences() -> None:
    for kind, named in (({"nonlinearity": "relu"}, ["rnn"]), ({}, [])):
        model = torch.nn.ModuleDict({"rnn": torch.nn.RNN(2, 3, **kind), "lstm": torch.nn.LSTM(2, 3)})
        header = Observed(Summary(), model, [], [], ["rnn", "lstm"]).header()
        assert header["recurrent"] == ["rnn", "lstm"] and header["relus"] == named


def test_targets_of_wild_scale_are_to_be_scaled_before_all() -> None:
    for found in ({}, {"exploding": {"target_size": 5e3}}):
        first = tries(Evidence("exploding", found, ratios=[0.05] * 5, planned=500), *CUSTOM)[0]
        assert first.lines.startswith("subtract the mean of the targets") == bool(found)


@pytest.mark.parametrize(("skipped", "lasts"), [(7, True), (33, False)])
def test_the_time_to_an_overflow_is_that_of_applied_updates(skipped: int, lasts: bool) -> None:
    o = Overflow("forward", "a", "Linear", output_max=9e4, limit=65504.0)
    e = Evidence("scale_collapse", failed_at=28, planned=200, skipped=skipped, streak=7, overflow=o)
    found = [t.why for t in tries(e, *CUSTOM, "precision=fp16") if "optimizer.lr" in str(t.overrides)]
    assert len(found) == 1 and ("the time to that" in found[0]) == lasts


def test_a_rate_of_usual_updates_is_not_lowered_where_nothing_is_learnt() -> None:
    """It is where updates are large, or took the gradient away."""
    for own, ratio, lowered in (({}, 4e-3, False), ({}, 4e-2, True), ({"taken": True}, 4e-3, True)):
        e = Evidence("not_learning", {"not_learning": own}, ratios=[ratio] * 8, planned=500, attempts=500)
        assert any(t.overrides[:1] and "optimizer.lr" in t.overrides[0] for t in tries(e, *CUSTOM)) == lowered


@pytest.mark.parametrize("own", [True, False])
def test_lines_of_a_loss_are_changed_where_the_loss_is_the_users(own: bool) -> None:
    o = Overflow("loss", "", "", operation="pow", output_max=1e50)
    e = Evidence("nan_forward", {}, planned=500, failed_at=1, overflow=o, sizes={"a.weight": 1e9, "b.weight": 1e9})
    found = tries(e, *CUSTOM, *(OWN if own else ("loss=mse",)))
    assert any(t.lines.startswith("pow in the loss") for t in found) == own
    assert any("initial weights" in t.lines for t in found)


@pytest.mark.parametrize("some", [True, False])
def test_targets_come_before_a_rate_with_which_something_is_learnt(some: bool) -> None:
    e = Evidence("not_learning", {"not_learning": {"some": some}}, ratios=[0.04] * 8, planned=500, attempts=500)
    assert (tries(e, *CUSTOM)[0].name == "targets") == some


@pytest.mark.parametrize(("own", "lines"), [(CUSTOM, 2), (("data=digits",), 0)])
def test_lines_are_changed_in_what_is_the_users(own: tuple[str, ...], lines: int) -> None:
    e = Evidence("vanishing", {"vanishing": {"input_size": 1e4}}, planned=500, attempts=500)
    assert sum(bool(t.lines) for t in tries(e, *own)) == lines and any(t.overrides for t in tries(e, "data=digits"))
