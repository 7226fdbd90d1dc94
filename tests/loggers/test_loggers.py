"""What loggers keep: local lines, and W&B's own file read back."""

import json
import math
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from gradlab.base.json_lines import Lines, read_lines
from gradlab.loggers.base import About
from gradlab.loggers.options import WandbOption
from gradlab.loggers.progress import Progress
from gradlab.loggers.wandb import folder as run_folder
from gradlab.loggers.wandb import service


def test_mode_is_offline_without_an_account_and_disabled_in_ci(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WANDB_MODE", "WANDB_API_KEY", "WANDB_BASE_URL", "CI"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert service.mode("auto") == "offline"
    (tmp_path / ".netrc").write_text("machine api.wandb.ai login user password " + "a" * 40)
    (tmp_path / ".netrc").chmod(0o600)
    assert service.mode("auto") == "online"
    monkeypatch.setenv("CI", "true")
    assert service.mode("auto") == "disabled" and service.mode("offline") == "offline"
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert service.mode("auto") == "offline"


def test_disabled_in_ci_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.setenv("CI", "true")
    disabled = WandbOption().build(About(tmp_path, {"seed": 1}, "run"))
    assert disabled is not None
    disabled.log({"update": 1, "train/loss": math.nan}, None)
    disabled.finish({"verdict": "healthy"}, tmp_path)
    assert list(tmp_path.iterdir()) == []


class Silent:
    """A server that accepts every connection and answers the first `answered` only."""

    def __init__(self, answered: int = 0) -> None:
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.answered, self.connections = answered, list[socket.socket]()
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self) -> None:
        while True:
            try:
                connection = self.socket.accept()[0]
            except OSError:
                return
            self.connections.append(connection)
            if len(self.connections) <= self.answered:
                connection.recv(4096)
                connection.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
                connection.close()

    def close(self) -> None:
        for one in (self.socket, *self.connections):
            one.close()

    @property
    def environment(self) -> dict[str, str]:
        address = f"http://127.0.0.1:{self.socket.getsockname()[1]}"
        return {"WANDB_BASE_URL": address, "WANDB_API_KEY": "a" * 40}


TIMED = """
import json, os, sys, time
from pathlib import Path
from gradlab.loggers.base import About
from gradlab.loggers.options import WandbOption
began = time.monotonic()
sink = WandbOption(mode=sys.argv[1], timeout=3).build(About(Path.cwd(), {"seed": 1}, "run"))
sink.log({"update": 1, "train/loss": 2.0}, None)
sink.finish({"verdict": "healthy"}, Path.cwd())
"""


@pytest.mark.slow
def test_a_server_that_never_answers_costs_no_more_than_the_timeout(tmp_path: Path) -> None:
    """Or that dies after the first look, when W&B believes in it. The end of the process is timed too."""
    own = {k: v for k, v in os.environ.items() if not k.startswith("WANDB_")}

    def seconds(mode: str, folder: str, environment: dict[str, str]) -> float:
        (tmp_path / folder).mkdir()
        began = time.monotonic()
        command = [sys.executable, "-c", TIMED, mode]
        subprocess.run(command, cwd=tmp_path / folder, env=own | environment, check=True, timeout=100)
        return time.monotonic() - began

    offline = seconds("offline", "offline", {})
    for answered in (0, 1):
        server, folder = Silent(answered), f"answered_{answered}"
        online = seconds("online", folder, server.environment)
        server.close()
        assert server.connections
        # W&B's own background process is started twice, and the machine may be busy.
        assert online < 2 * offline + 3 + 2, (answered, online, offline)
        (path,) = (tmp_path / folder).glob("wandb/offline-run-*")
        assert run_folder.logged([path]) == 1


def test_lines_say_what_is_not_finite_and_lose_at_most_the_line_that_a_kill_cut(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    lines = Lines(path)
    lines.write({"loss": math.nan, "norm": math.inf, "low": -math.inf, "fine": 0.1})
    size = lines.flush()
    lines.write({"loss": 2.0})
    lines.close()
    json.loads(path.read_text().splitlines()[0], parse_constant=pytest.fail)  # strict JSON
    first, second = read_lines(path)
    assert math.isnan(first["loss"]) and (first["norm"], first["low"], first["fine"]) == (math.inf, -math.inf, 0.1)
    path.write_bytes(path.read_bytes()[:-3])
    assert len(list(read_lines(path))) == 1
    again = Lines(path, keep=size)
    again.write(second)
    again.close()
    assert [line.get("loss") for line in read_lines(path)][1:] == [2.0]


def test_progress_counts_what_was_skipped(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress("plain", True)
    progress.total = 10
    line = {"attempt": 1, "epoch": 1, "train/loss": 2.0, "grad/norm": math.inf, "amp/scale": 4.0, "clip/fraction": 0.25}
    for beside, planned in ((False, 10), (True, 12)):
        progress.beside, progress.last = beside, -math.inf
        progress.log(line | {"update/skipped": True})
        said = f"update 1/{planned}  epoch 1  loss 2  norm inf  scale 4  clipped 25%  skipped {1 + beside}\n"
        assert capsys.readouterr().out == said
    silent = Progress("auto", False)
    silent.last = -math.inf
    silent.log(line | {"update/skipped": True})
    silent.say("nothing")
    assert capsys.readouterr().out == ""
