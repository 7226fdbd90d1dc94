"""Loops with DDP, FSDP and fully_shard on two ranks."""

import json
import socket

import pytest
import watched_ranks
from in_fork import fork
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


@pytest.mark.distributed
def test_two_ranks(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    given = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2"}
    ranks = [fork(lambda: watched_ranks.main(tmp_path), tmp_path, f"rank{r}", RANK=f"{r}", **given) for r in range(2)]
    codes = [rank.wait() for rank in ranks]
    assert codes == [0, 0], ranks[0].err.read_text()[-3000:]
    found = json.loads(ranks[0].out.read_text().strip().splitlines()[-1])
    assert {n: v for n, v in found.items() if n in EXPECTED} == {
        name: [codes, True, False, True, 4] for name, codes in EXPECTED.items()
    }
    scripts = {n: v for n, v in found.items() if "/" in n}
    assert len(scripts) > 6
    for name, found_in in scripts.items():
        wanted = [list(e) for e in sorted(expected(AUDITED / f"{name}.py")) if e[1] not in NOT_IN_THIS_DATA]
        assert (name, found_in) == (name, wanted)
    diagnosis = json.loads((tmp_path / "gathered" / "diagnosis.json").read_text())
    assert diagnosis["verdict"] == "healthy"  # a parameter that lies on the other rank is not missing
    first = json.loads((tmp_path / "gathered" / "metrics.jsonl").read_text().split("\n")[0])
    assert first["clip/coefficient"] == pytest.approx(0.1 / first["grad/norm"], rel=1e-3)
    assert (tmp_path / "correct" / "report.html").is_file()  # only rank 0 writes
