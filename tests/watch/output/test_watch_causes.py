"""Mistakes of a watched loop as causes of what its diagnosis finds."""

import pytest
import torch

import gradlab.diagnosis.diagnose  # noqa: F401 (registers the rules)
from gradlab.base.option import OPTIONS
from gradlab.codes import CODES_BY_NAME
from gradlab.diagnosis.finding import Finding
from gradlab.update.stepping import keeps_second_moments
from gradlab.update.torch_optimizers import Lion
from gradlab.watch.faults import FaultRecord
from gradlab.watch.output.causes import LEADS_TO, OF_WARNINGS, cause_of, explain


@pytest.mark.parametrize(
    ("mistake", "finding", "is_cause"),
    [
        ("zero-grad-missing", "diverged", True),
        ("zero-grad-missing", "broken_graph", False),
        ("padding-mask-inverted", "nan_loss", True),
        ("padding-mask-inverted", "scale_collapse", False),
        ("loss-divided-twice", "exploding", False),
        ("update-missing", "scale_livelock", True),
    ],
)
def test_a_mistake_is_a_cause_only_of_what_it_can_lead_to(mistake, finding, is_cause):
    found = Finding(finding, "critical", "", causes=["another"])
    explain(found, [FaultRecord(mistake, None, 1)])
    assert found.causes[-1] == "another"
    assert [cause.split()[0] for cause in found.causes[:-1]] == [CODES_BY_NAME[mistake].code] * is_cause


def test_a_mistake_comes_before_the_operation_that_it_made_not_finite():
    found = Finding("nan_loss", "critical", "", causes=["usual"])
    explain(found, [FaultRecord("padding-mask-inverted", None, 1), FaultRecord("not-finite", None, 1, "root of 0")])
    assert [cause.split()[0] for cause in found.causes] == [CODES_BY_NAME["padding-mask-inverted"].code, "root"]


def test_each_error_that_a_watch_finds_is_in_the_table():
    errors = {code.name for code in CODES_BY_NAME.values() if code.severity == "error" and "watch" in code.found_by}
    assert errors - {"unreadable"} == set(LEADS_TO)
    known = {name for group, name in OPTIONS if group == "rule"}
    assert set().union(*LEADS_TO.values(), *OF_WARNINGS.values()) <= known
    assert not errors & set(OF_WARNINGS)


@pytest.mark.parametrize(("verdict", "named"), [("vanishing", True), ("nan_loss", False), ("healthy", False)])
def test_a_verdict_names_the_warning_that_it_may_come_of(verdict, named):
    fault = FaultRecord("training-in-eval", None, 1)
    assert cause_of(verdict, [FaultRecord("hook-registered-again", None, 1), fault]) is (fault if named else None)


@pytest.mark.parametrize(("make", "adam"), [(torch.optim.AdamW, True), (torch.optim.SGD, False), (Lion, False)])
def test_second_moments_are_those_of_adam(make, adam):
    weight = torch.ones(3, requires_grad=True)
    optimizer = make([weight], **({"betas": (0.9, 0.99), "weight_decay": 0.0} if make is Lion else {}), lr=0.1)
    weight.square().sum().backward()
    optimizer.step()
    assert keeps_second_moments(optimizer) == adam
