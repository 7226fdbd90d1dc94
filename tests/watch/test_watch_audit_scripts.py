"""Each script of the audit's tests, run: the same codes at the same lines where they show, and right ones silent."""

import pytest
from watched_scripts import AUDITED, distributed, expected, play, playable, told

TEXT_ONLY = {"GL212", "GL803", "GL806", "GL601", "GL602", "GL603", "GL604"}
"""Of names in the text, or of what is measured instead."""
NOT_IN_THIS_DATA = {"GL307", "GL308", "GL506", "GL805"}
"""Eight batches and windows of four leave nothing; each has as many targets."""
ELSEWHERE = {"GL206", "GL303", "GL403", "GL605"}
"""What they are about has no call of its own: told at another line."""


def scripts(folder):
    return [p for p in sorted((AUDITED / folder).glob("*.py")) if playable(p) and not distributed(p)]


def shown(path):
    return {e for e in expected(path) if e[1] not in TEXT_ONLY | NOT_IN_THIS_DATA}


@pytest.mark.parametrize("path", scripts("wrong"), ids=lambda path: path.stem)
def test_each_mistake_shows_at_its_line(path, tmp_path):
    watch, _ = play(path, tmp_path)
    assert not watch.broken
    wanted, found = shown(path), told(watch)
    assert {code for _, code in found} == {code for _, code in wanted}
    assert {e for e in found if e[1] not in ELSEWHERE} == {e for e in wanted if e[1] not in ELSEWHERE}


@pytest.mark.parametrize("path", scripts("right"), ids=lambda path: path.stem)
def test_nothing_is_said_of_a_right_script(path, tmp_path):
    watch, refused = play(path, tmp_path)
    assert refused is None
    assert not watch.broken
    assert watch.faults == []
    assert watch.loop.outputs[0].num_updates
