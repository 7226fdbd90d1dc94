"""The snippets of the audit's document tests, run under a watch: the same codes at the same lines."""

import sys

import pytest
from watched_scripts import AUDITED, expected, play, reported

sys.path.append(str(AUDITED))
from audited_snippets import HEAD
from test_document_snippets import RIGHT, WRONG

sys.path.remove(str(AUDITED))
UNDETECTED = {
    "numerically unstable losses": "in the source: when such a loss is not finite, the verdict reports it",
    "a lower rate in place of clipping": "in the source: the norms themselves are measured",
    "a reduction for each micro-batch": "needs ranks: see test_watch_ranks",
    "a ResNet clipped": "its data are no images: see test_watch_accumulation",
}
NOT_RUN = {"DDP", "DDP,", "reduction", "logger", "eps,", "ResNet", "residuals,"}
"""Words in the names of correct snippets that need ranks, an account or images, or that train nothing."""
NOT_IN_THIS_DATA = {"GL307"}
"""Eight batches make full windows."""
FIRST = {"GL305": 2}
"""The update at which a mistake is detected, if it is not the first."""
AT_BACKWARD = {"GL303"}
"""Reported at the next backward pass: arithmetic makes no call."""


@pytest.fixture
def script(tmp_path, request):
    path = tmp_path / "script.py"
    path.write_text(HEAD + request.param)
    return path


def cases(snippets):
    return {"argvalues": list(snippets.values()), "ids": list(snippets), "indirect": True}


@pytest.mark.parametrize("script", **cases({k: v for k, v in WRONG.items() if k not in UNDETECTED}))
def test_a_mistake_is_reported_at_its_line_and_first_update(script, tmp_path):
    watch, _ = play(script, tmp_path / "run")
    wanted = {e for e in expected(script) if e[1] not in NOT_IN_THIS_DATA}
    assert not watch.broken
    assert {code for _, code in reported(watch)} == {code for _, code in wanted}
    for fault in watch.faults:
        assert fault.update == FIRST.get(fault.code, 1)
        assert (fault.site[1], fault.code) in wanted or fault.code in AT_BACKWARD


@pytest.mark.parametrize("script", **cases({k: v for k, v in RIGHT.items() if not NOT_RUN & set(k.split())}))
def test_nothing_else_is_reported_in_a_correct_snippet(script, tmp_path):
    watch, raised = play(script, tmp_path / "run")
    assert raised is None
    assert not watch.broken
    assert watch.loop.outputs[0].num_updates
    assert reported(watch) <= expected(script)
