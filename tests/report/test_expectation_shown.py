"""What was expected of a run, and what was seen: the same sentence at its end, in `gradlab.show` and on its page."""

import json
from pathlib import Path

import made
import pytest

from gradlab.report.pages.run_facts import facts
from gradlab.runs.record import RunRecord
from gradlab.runs.summary import summarise


@pytest.mark.parametrize(
    ("expect", "seen", "said"),
    [
        ("[diverged, not_learning]", "diverged", "expected diverged or not_learning, saw diverged"),
        ("[diverged, not_learning]", "stalled", "expected diverged or not_learning, saw stalled"),
        ("healthy", "small_but_healthy", "expected healthy, and saw small_but_healthy, which is healthy too"),
        ("diverged", "diverged", "expected diverged, and saw it"),
        ("any", "diverged", ""),
        ("null", "diverged", "the run is unhealthy: diverged"),
    ],
)
def test_what_was_expected_is_said_alike(tmp_path: Path, expect: str, seen: str, said: str) -> None:
    folder = made.collapse(tmp_path / "run")
    (folder / ".hydra").mkdir(exist_ok=True)
    (folder / ".hydra" / "config.yaml").write_text(f"expect: {expect}\nseed: 0\n")
    found = {"code": seen, "severity": "info" if "healthy" in seen else "critical", "sentence": "it did", "began": None}
    diagnosis = json.loads((folder / "diagnosis.json").read_text()) | {"verdict": seen, "findings": [found]}
    (folder / "diagnosis.json").write_text(json.dumps(diagnosis))
    run = RunRecord(folder)
    assert facts(run)["expectation"] == said
    lines = summarise(run).lines
    assert lines[-1] == said if said else lines[-1].startswith("folder: ")
