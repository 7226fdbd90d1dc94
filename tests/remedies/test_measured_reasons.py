"""Suggestions that a measurement supports, beside runs whose measurements say nothing of the kind."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import made
import pytest
from helpers import composed

from gradlab.config.schema import to_config
from gradlab.diagnosis.finding import Diagnosis
from gradlab.diagnosis.replay.overflow import Overflow
from gradlab.diagnosis.rules.not_learning import FEW, PAIRS, SLOW, TARGETS, UNLIKE
from gradlab.remedies.candidates import Candidate, candidates_for
from gradlab.remedies.evidence import Evidence, evidence
from gradlab.remedies.learning_rate import lower_rate, other_rates
from gradlab.report.pages.run_facts import facts
from gradlab.runs.record import RunRecord
from gradlab.runs.summary import summary_lines
from gradlab.train.outcome import Outcome

CUSTOM = ("model=custom", "model.target=nets:Tiny", "data=custom", "data.target=nets:data")
OWN = ("loss=custom", "loss.target=nets:relative")


def tries(e: Evidence, *given: str) -> list[Candidate]:
    return candidates_for(e, to_config(composed(*given)), ["trainer.progress=none", *given])


def changed(e: Evidence, *given: str) -> list[list[str]]:
    return [t.overrides for t in tries(e, *CUSTOM, *given) if t.overrides]


def lines(e: Evidence, *given: str) -> str:
    return " | ".join(t.lines for t in tries(e, *CUSTOM, *given))


@pytest.mark.parametrize(("found", "asks"), [("not_learning", "one shape"), ("memorising", "more samples")])
def test_targets_are_asked_about_what_was_not_measured(found: str, asks: str) -> None:
    e = Evidence(found, {found: {}}, ratios=[1e-3] * 5, attempts=500)
    said = lines(e)
    assert asks in said and "size 1" not in said and ("more samples" in said) != ("one shape" in said)
    policy = tries(e, "model=policy", "loss=policy_gradient")
    assert not any("targets" in t.lines for t in policy), "returns are played, not paired with inputs"


@pytest.mark.parametrize(("peak", "clips"), [(3.5, False), (50.0, True)])
def test_a_bound_is_for_norms_several_times_as_large(peak: float, clips: bool) -> None:
    e = Evidence("diverged", ratios=[2e-3] * 5, norms=[1.0] * 40, steady=[1.0] * 36, peak=peak, planned=500)
    assert any("clip=norm" in made for made in changed(e, "optimizer=adam")) == clips


@pytest.mark.parametrize(("broken_at", "clips"), [(None, True), (70, False), (85, True)])
def test_a_bound_must_have_been_passed_before_the_loss_broke(
    tmp_path: Path, broken_at: int | None, clips: bool
) -> None:
    norms = [1.0] * 79 + [100.0] * 10
    broke: dict[str, Any] = {"code": "nan_loss", "severity": "info", "sentence": "", "evidence": {}, "began": broken_at}
    told = made.diagnosis("diverged", findings=[broke] * bool(broken_at))
    steps = [made.line(i, 1.0) | {"grad/norm": norm, "update/ratio": 2e-3} for i, norm in enumerate(norms, 1)]
    e = evidence(RunRecord(made.run(tmp_path / "run", steps, told)))
    assert any("clip=norm" in each for each in changed(e, "optimizer=adam")) == clips


@pytest.mark.parametrize(
    ("ratios", "factor", "aim"),
    [
        ([4e-3] * 5, 1 / 4, "aims at a median of 0.001"),
        ([2e-4] * 4 + [0.1], 1 / 10, "aims at 0.01 at most"),
        ([0.5] + [2e-4] * 4, 1 / 50, "aims at 0.01 at most"),
        ([0.023] + [2e-4] * 4, None, ""),
    ],
)
def test_a_lower_rate_says_the_bound_that_decided(ratios: Sequence[float], factor: float | None, aim: str) -> None:
    """None of a first update of Adam that alone was somewhat large."""
    config = to_config(composed(*CUSTOM, "optimizer.lr=0.02"))
    rates = list(lower_rate(Evidence("diverged", ratios=ratios, planned=500), config))
    assert len(rates) == (factor is not None)
    for t in rates:
        assert t.remedy and t.remedy.set["optimizer.lr"] == pytest.approx(0.02 * (factor or 0.0), rel=0.05)
        assert t.why.endswith(aim)


@pytest.mark.parametrize(("largest", "lr"), [(8e-3, 0.01), (0.5, 0.002)])
def test_what_is_measured_after_the_gradient_went_does_not_say_how_far(largest: float, lr: float) -> None:
    e = Evidence("vanishing", {"vanishing": {"at_first": False}}, ratios=[largest] + [2.5e-3] * 3, planned=500)
    assert changed(e, "optimizer.lr=0.1")[0] == [f"optimizer.lr={lr}"]


@pytest.mark.parametrize(
    ("verdict", "found", "given", "first"),
    [
        ("vanishing", {"at_first": False, "batch_norm_samples": 2}, ("data.batch_size=2", "accumulation.steps=16"), 32),
        ("not_learning", {"batch_norm_samples": 4}, ("data.batch_size=4",), 32),
        ("not_learning", {}, ("data.batch_size=4", "accumulation.steps=8"), None),
    ],
)
def test_batch_norm_of_few_samples_is_given_more(
    verdict: str, found: Mapping[str, Any], given: Sequence[str], first: int | None
) -> None:
    made_of = changed(Evidence(verdict, {verdict: found}, ratios=[2e-3] * 5, planned=500), *given)
    batches = [each for each in made_of if any(o.startswith("data.batch_size=") for o in each)]
    steps = ["accumulation.steps=1"] * ("accumulation.steps" in str(given))
    assert batches == ([] if first is None else [[f"data.batch_size={first}", *steps]]) and (
        first is None or made_of[0] == batches[0]
    )
    assert verdict != "vanishing" or len(made_of) == 1, "what early layers had at first was noise"


@pytest.mark.parametrize(
    ("weights", "found", "zero", "graph"),
    [
        (0.0, {"cut": True}, "all weights", False),
        (0.0, {"zero": ["a.weight"]}, "a.weight", False),
        (3.0, {"zero": ["a.weight"]}, "a.weight", True),
        (3.0, {"cut": True}, "", True),
    ],
)
def test_a_gradient_that_never_was_there_is_not_the_rates_fault(
    weights: float, found: Mapping[str, Any], zero: str, graph: bool
) -> None:
    """Of weights of zero, or of a graph that is cut; where it was there at first, it may be."""
    e = Evidence("zero_gradient", {"zero_gradient": found}, weights=weights, planned=500)
    assert changed(e) == [] and ("detach()" in lines(e)) == graph
    assert (f"{zero} different from zero" in lines(e)) == bool(zero)
    assert changed(Evidence("zero_gradient", {"zero_gradient": {}}, weights=3.0, planned=500)) != []


@pytest.mark.parametrize("zero", [True, False])
def test_no_rate_and_no_mask_is_at_fault_where_all_weights_begin_at_zero(zero: bool) -> None:
    found = {"same": "relu", **({"weights_of_zero": True} if zero else {})}
    sizes = {"a.weight": 0.0, "b.weight": 0.0 if zero else 1.0}
    e = Evidence("not_learning", {"not_learning": found}, ratios=[0.2] * 5, sizes=sizes, planned=500)
    assert (changed(e) == []) == zero == ("all weights different from zero" in lines(e)) != ("a mask" in lines(e))


@pytest.mark.parametrize("verdict", ["not_learning", "memorising"])
def test_probabilities_and_outputs_that_cannot_reach_the_targets_need_no_other_rate(verdict: str) -> None:
    softmax = tries(Evidence(verdict, {verdict: {"probabilities": True}}, ratios=[3e-3] * 5, planned=500), *CUSTOM)
    assert [t.name for t in softmax] == ["logits"]
    found = {"saturated_units": {"module": "last", "target_size": 250.0, "fraction": 1.0}}
    beyond = tries(Evidence("saturated_units", found, ratios=[3e-3] * 5, planned=500), *CUSTOM)
    assert [t.lines for t in beyond] == ["scale the targets to what last can return, or leave last out"]


@pytest.mark.parametrize(
    ("found", "norms", "adam"),
    [({}, [1.0] * 40, False), ({"dominant_layer": {}}, [1.0] * 40, True), ({}, [10.0**-i for i in range(20)], True)],
)
def test_another_optimizer_is_for_gradients_that_differ(
    found: Mapping[str, Any], norms: Sequence[float], adam: bool
) -> None:
    e = Evidence("not_learning", {"not_learning": {}, **found}, ratios=[3e-3] * 5, norms=norms, planned=500)
    first = tries(e, *CUSTOM, "optimizer=sgd")[0]
    assert (first.overrides == ["optimizer=adamw", "optimizer.lr=0.001"]) == adam != (first.name == "targets")


@pytest.mark.parametrize("terms", [("recon", "kl"), ("recon",), ()])
def test_terms_that_outweigh_one_weigh_less(terms: Sequence[str]) -> None:
    e = Evidence("unlearnt_term", {"unlearnt_term": {"terms": ["recon"]}}, ratios=[1e-3] * 5, terms=terms)
    own = (*OWN, "+loss.weights={recon: 2.0}")
    assert changed(e, *own) == ([["loss.weights={recon: 2.0, kl: 0.01}"]] if "kl" in terms else [])
    assert "raise the weight of recon" in lines(e, *own) and changed(e) == []


@pytest.mark.parametrize(
    ("found", "ratio", "made"),
    [
        ({"eps": 100.0}, 2e-4, [["optimizer.eps=1e-08"]]),
        ({"slow": True}, 2e-4, [["optimizer.lr=0.02"]]),
        ({"slow": True}, 2e-3, [["optimizer.lr=0.01"]]),
        ({"slow": True}, 2e-5, [["optimizer.lr=0.1"]]),
        ({}, 2e-4, []),
    ],
)
def test_what_is_learnt_too_slowly_is_not_asked_for_its_targets(
    found: Mapping[str, Any], ratio: float, made: list[list[str]]
) -> None:
    e = Evidence("not_learning", {"not_learning": found}, ratios=[ratio] * 5, planned=500)
    given = ("optimizer=adam", "optimizer.lr=0.002", "optimizer.eps=1.0")
    assert changed(e, *given) == made and ("belong together" in lines(e, *given)) == (not found)


@pytest.mark.parametrize(
    ("own", "made"),
    [
        ("recon: 1e-4", "recon: 1.0"),
        ("recon: -0.5, kl: 3.0", "recon: -3.0, kl: 3.0"),
        ("recon: 0.0", "recon: 0.0, kl: 0.01"),
    ],
)
def test_a_term_of_little_weight_gets_as_much_as_another(own: str, made: str) -> None:
    """Less for the others would leave a step of SGD as small as it is; a weight of zero is meant."""
    e = Evidence("unlearnt_term", {"unlearnt_term": {"terms": ["recon"]}}, ratios=[1e-3] * 5, terms=["recon", "kl"])
    assert changed(e, *OWN, f"+loss.weights={{{own}}}") == [[f"loss.weights={{{made}}}"]]


@pytest.mark.parametrize(
    ("rounded", "healthy", "said"),
    [
        ("input", None, "the input of a reaches 1e+06"),
        ("weight", "b", "the weight of a reaches 1e+06"),
        ("result", "b", "a computes 1e+06"),
        (None, "b", "a computes 1e+06"),
    ],
)
def test_what_goes_into_a_module_is_not_what_it_computes(rounded: str | None, healthy: str | None, said: str) -> None:
    o = Overflow("forward", "a", "Linear", output_max=1e6, limit=65504.0, rounded=rounded, healthy=healthy)
    e = Evidence("scale_collapse", overflow=o, failed_at=1, planned=300, skipped=30, streak=30)
    found = tries(e, *CUSTOM, "precision=fp16")
    assert (found[0].name == "inputs") == o.of_data, "a wider type would only hold them"
    wider = next(t for t in found if t.overrides)
    assert wider.overrides == ["precision=bf16"] and wider.why.startswith(said)
    assert ("subtract the mean of the inputs" in " ".join(t.lines for t in found)) == (healthy is None)


@pytest.mark.parametrize(("empty", "times"), [(0.6, 10), (1.0, None), (0.0, None)])
def test_windows_are_to_hold_so_much_that_few_are_empty(tmp_path: Path, empty: float, times: int | None) -> None:
    steps = [made.line(i, 1.0, **{"update/empty": i % 10 < 10 * empty}) for i in range(1, 101)]
    e = evidence(RunRecord(made.run(tmp_path / "run", steps, made.diagnosis("empty_window"))))
    found = changed(e, "data.batch_size=2", "trainer.epochs=3")
    assert found == ([[f"data.batch_size={2 * times}", f"trainer.epochs={3 * times}"]] if times else [])


def test_a_reason_does_not_say_the_verdict_again() -> None:
    o = Overflow("backward", "", "", operation="div", derivative="sqrt", failure="a division by zero")
    found = tries(Evidence("nan_gradient", ratios=[1e-3] * 5, overflow=o, failed_at=9, planned=50), *CUSTOM, *OWN)
    assert [t.why for t in found if t.name == "stable form"] == ["a division by zero in the derivative of sqrt"]
    over_time = Evidence("vanishing", {"vanishing": {"late_to_early_time": 1e6}}, planned=500)
    assert not any("gated" in t.lines for t in tries(over_time, "model=lstm", "model.cell=rnn"))
    assert "gated" in lines(over_time)


@pytest.mark.parametrize(
    ("scale", "computed", "first"), [(1e15, 1e14, True), (1e15, 1e21, False), (65536.0, 1e8, False)]
)
def test_a_loss_scale_that_overflows_ordinary_gradients_is_set_back(scale: float, computed: float, first: bool) -> None:
    o = Overflow("backward", "", "", output_max=computed, limit=65504.0, derivative="to_copy")
    e = Evidence("nan_gradient", overflow=o, failed_at=1, planned=300, skipped=300, streak=300)
    found = changed(e, "precision=fp16", f"precision.init_scale={scale:g}")
    assert (
        found[0] == (["precision.init_scale=65536.0"] if first else ["precision=bf16"]) and ["precision=bf16"] in found
    )


@pytest.mark.parametrize(
    ("optimizer", "ratios", "lr"),
    [("adamw", [2e-5] * 5, 1e-3), ("adamw", [2e-5] * 4 + [1e-4], 3e-4), ("sgd", [2e-5] * 5, 1.5e-4)],
)
def test_a_rate_far_below_the_usual_one_of_adam_is_raised_to_it(
    optimizer: str, ratios: Sequence[float], lr: float
) -> None:
    """As far as the largest update permits; of SGD no rate is usual."""
    e = Evidence("stalled", ratios=ratios, norms=[1.0] * 40, planned=500)
    (first, *_) = changed(e, f"optimizer={optimizer}", "optimizer.lr=3e-6")
    assert first[0].startswith("optimizer.lr=") and float(first[0].partition("=")[2]) == pytest.approx(lr, rel=0.05)


@pytest.mark.parametrize(("first", "raised"), [(12.0, False), (1e-3, True)])
def test_weights_that_stand_still_after_one_huge_update_need_no_higher_rate(first: float, raised: bool) -> None:
    e = Evidence("stalled", ratios=[first] + [4e-7] * 5, norms=[1.0] * 40, planned=500)
    rates = [float(o.partition("=")[2]) for made in changed(e, "optimizer=sgd", "optimizer.lr=0.1") for o in made]
    assert rates and all((rate > 0.1) == raised for rate in rates)


@pytest.mark.parametrize(("ratio", "raised"), [(5.0, False), (1e-3, True)])
def test_no_search_raises_a_rate_whose_updates_are_too_large(ratio: float, raised: bool) -> None:
    e = Evidence("diverged", ratios=[ratio] * 5, norms=[1.0] * 40, planned=500)
    c = to_config(composed("model=sigmoid_mlp", "optimizer=sgd", "optimizer.lr=0.1"))
    tried = {p.remedy.set["optimizer.lr"] for p in other_rates(e, c) if p.remedy is not None}
    assert 0.01 in tried and (1.0 in tried) == raised


@pytest.mark.parametrize(
    ("norm", "at_first", "adam"),
    [(0.0, 0.0, False), (1e-12, 1e-12, False), (1e-4, 1e-4, True), (0.0, 0.1, True)],
)
def test_no_optimizer_moves_layers_that_get_no_gradient(
    tmp_path: Path, norm: float, at_first: float, adam: bool
) -> None:
    """Of the first layer; the last has its gradient. One that updates took away was there."""
    dead = {"code": "dead_units", "severity": "critical", "sentence": "", "evidence": {"module": "a"}, "began": None}
    told = made.diagnosis("dead_units", findings=[dead])
    of_layers = made.layers(2, [1, 6, 11], lambda i, at: 1.0 if i else at_first if at == 1 else norm)
    e = evidence(RunRecord(made.run(tmp_path / "run", [made.line(i, 1.0) for i in range(1, 12)], told, of_layers)))
    assert e.faintest == max(at_first, norm)
    assert (["optimizer=adamw", "optimizer.lr=0.001"] in changed(e, "optimizer=sgd", "optimizer.lr=0.05")) == adam


@pytest.mark.parametrize(("ratio", "without"), [(2e-5, False), (1e-7, True)])
def test_clipping_is_not_left_out_where_a_first_update_without_it_tears_the_weights_apart(
    tmp_path: Path, ratio: float, without: bool
) -> None:
    """Of SGD, whose steps are as large as the gradient: a later norm is what is usual."""
    steps = [made.line(i, 1.0) | {"clip/coefficient": 1e-3, "update/ratio": 2e-8} for i in range(1, 80)]
    steps[0] |= {"clip/coefficient": 1e-5, "update/ratio": ratio}
    e = evidence(RunRecord(made.run(tmp_path / "run", steps, made.diagnosis("overclipped"))))
    given = ("clip=norm", "clip.max_norm=0.001")
    assert any("clip=none" in each for each in changed(e, "optimizer=sgd", *given)) == without
    assert any("clip=none" in each for each in changed(e, "optimizer=adam", *given)), "its steps are not"
    assert any("clip.max_norm" in str(each) for each in changed(e, "optimizer=sgd", *given))


@pytest.mark.parametrize(("optimizer", "bound"), [("sgd", "1.5"), ("adam", "880000.0")])
def test_a_bound_is_loosened_as_far_as_the_weights_bear_it(optimizer: str, bound: str) -> None:
    """Whatever the usual norm is: without the bound it tears them apart."""
    far = {"norms": [7e5] * 40, "coefficient": 6.8e-8, "unclipped": 4.6e4, "planned": 500}
    e = Evidence("overclipped", {"overclipped": {"input_size": 1e5}}, ratios=[4e-5] * 5, **far)
    made_of = changed(e, f"optimizer={optimizer}", "clip=norm", "clip.max_norm=0.059")
    assert made_of[0] == [f"clip.max_norm={bound}"]
    assert lines(e, "clip=norm").startswith("subtract the mean of the inputs")


@pytest.mark.parametrize(("biases", "named"), [(("a", "b", "c"), "a.bias, b.bias"), (("c",), "c.bias")])
def test_the_bias_of_outputs_turns_no_units_off(biases: Sequence[str], named: str) -> None:
    """A rare class begins with one; where it is the only large one, its layer may have units."""
    large = {f"{name}.bias": 4.6 for name in biases}
    e = Evidence("dead_units", {"dead_units": {"module": "a"}}, biases=large, last_bias="c.bias", planned=500)
    assert f"begin with {named} at zero" in lines(e)
    assert (", c.bias" in lines(e)) is False


@pytest.mark.parametrize("overrides", [["optimizer.lr=0.01"], []])
def test_a_search_of_configurations_is_named_where_one_may_cure(tmp_path: Path, overrides: list[str]) -> None:
    """And not where all that is suggested is in the user's code, on the terminal as on the page."""
    remedy = {"name": "loss", "overrides": overrides, "why": "it is", "lines": "" if overrides else "bound it"}
    folder = made.run(tmp_path / "run", [made.line(1, 1.0)], made.diagnosis("exploding", remedies=[remedy]))
    assert bool(facts(RunRecord(folder))["commands"]["fix"]) == bool(overrides)
    ended, tried = Outcome("completed"), [Candidate(**remedy)]
    said = summary_lines(Diagnosis("exploding", "it did"), ended, None, None, [], folder, tried)
    assert any("gradlab.fix" in each for each in said) == bool(overrides) and "to try, one at a time:" in said


@pytest.mark.parametrize(("largest", "lower"), [(0.009, False), (0.3, True)])
@pytest.mark.parametrize("verdict", ["saturated_units", "dead_units"])
def test_a_rate_that_moved_nothing_far_turned_no_units_off(verdict: str, largest: float, lower: bool) -> None:
    """As the finding says: where no update was large, the rate is none of its causes."""
    e = Evidence(verdict, {verdict: {"module": "a"}}, ratios=[*[6e-3] * 40, largest], planned=500)
    assert any(name.startswith("optimizer.lr") for made in changed(e, "optimizer=adam") for name in made) == lower


@pytest.mark.parametrize(("found", "said"), [({}, True), ({"input_size": 1e5}, False), ({"target_size": 1e5}, False)])
def test_what_is_named_is_not_guessed_at_again(found: Mapping[str, Any], said: bool) -> None:
    e = Evidence("exploding", {"exploding": found}, ratios=[5e4], weights=5.9, peak=1e34, planned=500, failed_at=3)
    assert ("smaller weights, inputs or targets" in lines(e, "optimizer=sgd")) == said


@pytest.mark.parametrize("shares", [True, False])
def test_a_run_on_its_way_from_afar_is_not_asked_what_belongs_together(shares: bool) -> None:
    """Nor for biases of classes' shares where these cannot explain how far it was."""
    found = {"times": 11.0, "classes": True, "constant": 1.4, "evaluation": 13.0} | ({"shares": True} if shares else {})
    said = lines(Evidence("not_learning", {"not_learning": found}, ratios=[1e-4] * 4, attempts=200, planned=200))
    assert "begin with smaller outputs" in said and "belong together" not in said
    assert ("logarithms" in said) == shares


def test_a_graph_is_looked_for_on_the_way_to_the_loss() -> None:
    found = {"broken_graph": {"parameters": ["a.weight", "b.weight"]}}
    assert "on the way from a.weight, b.weight to the loss" in lines(Evidence("broken_graph", found, planned=500))


@pytest.mark.parametrize(
    ("own", "found", "made"),
    [
        ((0.99, 0.3), True, ["optimizer.beta2=0.999"]),
        ((0.9999, 0.99), True, ["optimizer.beta1=0.9", "optimizer.beta2=0.999"]),
        ((0.99, 0.3), False, None),
    ],
)
def test_betas_that_leave_a_step_no_bound_come_before_the_rate(
    own: tuple[float, float], found: bool, made: list[str] | None
) -> None:
    e = Evidence("exploding", {"exploding": {"betas": own} if found else {}}, ratios=[0.5] * 5, planned=500)
    first = changed(e, "optimizer=adam", f"optimizer.beta1={own[0]}", f"optimizer.beta2={own[1]}")[0]
    assert first == (made or first) and (made is None) == first[0].startswith("optimizer.lr")


@pytest.mark.parametrize("unlike", [True, False])
def test_evaluation_data_that_are_unlike_are_what_to_look_at(unlike: bool) -> None:
    found = {"memorising": {"evaluation": 12.0, "constant": 1.0}}
    causes = [UNLIKE, FEW] if unlike else [PAIRS, FEW, UNLIKE]
    said = lines(Evidence("memorising", found, causes, ratios=[2e-3] * 5, attempts=200, planned=200)).split(" | ")
    words = {UNLIKE: "prepared alike", FEW: "more samples", PAIRS: "belong together"}
    assert len(said) == len(causes) and all(words[cause] in line for cause, line in zip(causes, said, strict=True))


@pytest.mark.parametrize(("causes", "asked"), [(None, True), ([TARGETS], True), ([SLOW], False), ([], False)])
def test_targets_are_asked_about_where_they_are_a_cause(causes: list[str] | None, asked: bool) -> None:
    e = Evidence("not_learning", {"not_learning": {"constant": 1.38}}, causes, ratios=[2e-3] * 5, planned=200)
    assert ("belong together" in lines(e)) == asked


@pytest.mark.parametrize("gap", [0.13, None])
def test_dropout_is_to_be_lowered_where_training_is_far_worse_than_evaluations(gap: float | None) -> None:
    found = {"not_learning": {"constant": 1.38} | ({"training": gap} if gap else {})}
    said = lines(Evidence("not_learning", found, ratios=[2e-3] * 5, attempts=200, planned=200))
    assert said.startswith("lower the dropout") == bool(gap)


@pytest.mark.parametrize(
    ("largest", "given", "made"),
    [
        (2e-3, (), ["optimizer.lr=0.005"]),
        (9e-3, (), ["trainer.epochs=20"]),
        (9e-3, ("trainer.updates=300",), ["trainer.epochs=20", "trainer.updates=1200"]),
    ],
)
def test_a_run_that_falls_to_the_end_is_longer_where_no_rate_is_higher(
    largest: float, given: Sequence[str], made: list[str]
) -> None:
    e = Evidence("not_learning", {"not_learning": {"slow": True}}, ratios=[1e-3] * 5 + [largest], planned=500)
    assert changed(e, "optimizer=adam", "optimizer.lr=0.001", *given)[0] == made
