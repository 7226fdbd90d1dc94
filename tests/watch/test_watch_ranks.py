"""Loops with DistributedDataParallel on two ranks."""

import json
import socket

import pytest
import watched_ranks
from in_fork import fork
from watched_scripts import AUDITED, expected

EXPECTED = {
    "right": [],
    "always": ["no-sync-missing"],
    "never": ["no-sync-on-the-last"],
    "shifted": ["no-sync-on-the-last"],
    "past_wrapper": ["raw-module-called"],
    "around_backward": ["no-sync-around-backward-only"],
    "short": ["remainder-unsynchronised"],
    "reduced_too": ["reduced-by-hand-too"],
    "reduced_instead": [],
    "everything": [],
    "sharded": [],
    "sharded_uncleared": ["zero-grad-missing"],
    "gathered": [],
    "gathered_uncleared": ["zero-grad-missing"],
    "gathered_late": ["clip-after-step"],
    "gathered_cleared_by_hand": [],
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
    played = {n: v for n, v in found.items() if "/" in n}
    assert len(played) > 6
    for name, seen in played.items():
        wanted = [list(e) for e in sorted(expected(AUDITED / f"{name}.py")) if e[1] not in NOT_IN_THIS_DATA]
        assert (name, seen) == (name, wanted)
    told = json.loads((tmp_path / "gathered" / "diagnosis.json").read_text())
    assert told["verdict"] == "healthy"  # no parameter is missing because another rank has it
    first = json.loads((tmp_path / "gathered" / "metrics.jsonl").read_text().split("\n")[0])
    assert first["clip/coefficient"] == pytest.approx(0.1 / first["grad/norm"], rel=1e-3)
    assert (tmp_path / "right" / "report.html").is_file()  # of rank 0 alone
