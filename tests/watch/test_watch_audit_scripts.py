"""The scripts of the audit's tests, run under a watch: the same codes at the same lines, and none in correct ones."""

import pytest
from watched_scripts import AUDITED, distributed, expected, play, playable, reported

pytestmark = [
    pytest.mark.filterwarnings("ignore:Detected call of .lr_scheduler.step"),
    pytest.mark.filterwarnings("ignore:.torch.cuda.amp"),
    pytest.mark.filterwarnings("ignore:CUDA is not available or torch_xla"),
    pytest.mark.filterwarnings("ignore:User provided device_type of 'cuda'"),  # PyTorch 2.10
    pytest.mark.filterwarnings("ignore:torch.cuda.amp.GradScaler is enabled"),
]
"""The mistakes of the scripts."""

TEXT_ONLY = {"GL212", "GL803", "GL806", "GL601", "GL602", "GL603", "GL604"}
"""About names in the source, or about what is measured instead."""
NOT_IN_THIS_DATA = {"GL307", "GL308", "GL506", "GL805"}
"""Eight batches make two full windows of four; each batch has as many targets."""
ELSEWHERE = {"GL211", "GL303", "GL403", "GL605"}
"""Not about a call: reported at another line."""


def scripts(folder):
    return [p for p in sorted((AUDITED / folder).glob("*.py")) if playable(p) and not distributed(p)]


def observable(path):
    return {e for e in expected(path) if e[1] not in TEXT_ONLY | NOT_IN_THIS_DATA}


@pytest.mark.parametrize("path", scripts("wrong"), ids=lambda path: path.stem)
def test_each_mistake_is_reported_at_its_line(path, tmp_path):
    watch, _ = play(path, tmp_path)
    assert not watch.broken
    wanted, found = observable(path), reported(watch)
    assert {code for _, code in found} == {code for _, code in wanted}
    assert {e for e in found if e[1] not in ELSEWHERE} == {e for e in wanted if e[1] not in ELSEWHERE}


@pytest.mark.parametrize("path", scripts("right"), ids=lambda path: path.stem)
def test_nothing_is_reported_in_a_correct_script(path, tmp_path):
    watch, raised = play(path, tmp_path)
    assert raised is None
    assert not watch.broken
    assert watch.faults == []
    assert watch.loop.outputs[0].num_updates
