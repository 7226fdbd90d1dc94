"""The snippets of the audit's document tests, run under a watch: the same codes at the same lines."""

import sys

import pytest
from watched_scripts import AUDITED, expected, play, told

sys.path.append(str(AUDITED))
from marked import HEAD
from test_document import RIGHT, WRONG

sys.path.remove(str(AUDITED))
UNSEEN = {
    "numerically unstable losses": "of a text: when such a loss is not finite, the verdict says so",
    "a lower rate in place of clipping": "of a text: the norms themselves are measured",
    "a reduction for each micro-batch": "needs ranks: see test_watch_ranks",
    "a ResNet clipped": "its data are no pictures: see test_watch_windows",
}
UNPLAYED = {"DDP", "DDP,", "reduction", "logger", "eps,", "ResNet", "residuals,"}
"""In the names of right ones that need ranks, an account, pictures, or whose loop trains nothing."""
NOT_IN_THIS_DATA = {"GL307"}
"""Eight batches leave nothing over."""
FIRST = {"GL305": 2}
"""Update at which a fault shows, where it is not the first: what was left standing is then used."""
AT_BACKWARD = {"GL303"}
"""Told at the next backward pass: arithmetic has no call of its own."""


@pytest.fixture
def script(tmp_path, request):
    path = tmp_path / "script.py"
    path.write_text(HEAD + request.param)
    return path


def cases(snippets):
    return {"argvalues": list(snippets.values()), "ids": list(snippets), "indirect": True}


@pytest.mark.parametrize("script", **cases({k: v for k, v in WRONG.items() if k not in UNSEEN}))
def test_a_wrong_snippet_shows_at_its_line_and_first_update(script, tmp_path):
    watch, _ = play(script, tmp_path / "run")
    wanted = {e for e in expected(script) if e[1] not in NOT_IN_THIS_DATA}
    assert not watch.broken
    assert {code for _, code in told(watch)} == {code for _, code in wanted}
    for seen in watch.faults:
        assert seen.update == FIRST.get(seen.code, 1)
        assert (seen.site[1], seen.code) in wanted or seen.code in AT_BACKWARD


@pytest.mark.parametrize("script", **cases({k: v for k, v in RIGHT.items() if not UNPLAYED & set(k.split())}))
def test_of_a_right_snippet_nothing_is_said_but_what_is_wrong(script, tmp_path):
    watch, refused = play(script, tmp_path / "run")
    assert refused is None
    assert not watch.broken
    assert watch.loop.outputs[0].num_updates
    assert told(watch) <= expected(script)
