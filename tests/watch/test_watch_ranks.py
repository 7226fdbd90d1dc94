"""Loops with DDP, FSDP and fully_shard on two ranks."""

import json
from pathlib import Path

import pytest
from watched_scripts import AUDITED, expected

EXPECTED = {
    "correct": [],
    "always_synced": ["no-sync-missing"],
    "never_synced": ["no-sync-on-the-last"],
    "off_by_one": ["no-sync-on-the-last"],
    "bypasses_ddp": ["raw-module-called"],
    "no_sync_around_backward": ["no-sync-around-backward-only"],
    "short_remainder": ["remainder-unsynchronised"],
    "also_reduced_manually": ["reduced-by-hand-too"],
    "reduced_manually": [],
    "everything": [],
    "sharded": [],
    "sharded_not_zeroed": ["zero-grad-missing"],
    "gathered": [],
    "gathered_not_zeroed": ["zero-grad-missing"],
    "gathered_late": ["clip-after-step"],
    "gathered_set_to_none": [],
}
NOT_IN_THIS_DATA = {"GL307", "GL308", "GL506"}


@pytest.mark.slow
@pytest.mark.distributed
def test_two_ranks(gradlab, tmp_path):
    done = gradlab.torchrun(2, str(Path(__file__).parent / "watched_ranks.py"), str(tmp_path), cwd=tmp_path)
    assert done.code == 0, done.err[-3000:]
    found = json.loads(done.out.strip().splitlines()[-1])
    assert {n: v for n, v in found.items() if n in EXPECTED} == {
        name: [codes, True, False, True, 4] for name, codes in EXPECTED.items()
    }
    scripts = {n: v for n, v in found.items() if "/" in n}
    assert len(scripts) > 6
    for name, found_in in scripts.items():
        wanted = [list(e) for e in sorted(expected(AUDITED / f"{name}.py")) if e[1] not in NOT_IN_THIS_DATA]
        assert (name, found_in) == (name, wanted)
    diagnosis = json.loads((tmp_path / "gathered" / "diagnosis.json").read_text())
    assert diagnosis["verdict"] == "too_short"  # a parameter that lies on the other rank is not missing
    first = json.loads((tmp_path / "gathered" / "metrics.jsonl").read_text().split("\n")[0])
    assert first["clip/coefficient"] == pytest.approx(0.1 / first["grad/norm"], rel=1e-3)
    assert (tmp_path / "correct" / "report.html").is_file()  # only rank 0 writes
