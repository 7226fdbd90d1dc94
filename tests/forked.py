"""Commands in forks of one warm process (fork_server.py): a process of its own for each, without its imports."""

from __future__ import annotations

import itertools
import json
import os
import select
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SHORT = ("trainer.epochs=1", "data.samples=64", "model.layers=2", "model.width=8", "trainer.progress=none")
"""A run of two updates."""


@dataclass
class Result:
    """How a command ended."""

    code: int
    out: str
    err: str


class Started:
    """A command that runs; what `subprocess.Popen` has. It leads a session, as a command of a terminal does."""

    def __init__(self, server: Commands, pid: int, out: Path, err: Path) -> None:
        self.server, self.pid, self.out, self.err = server, pid, out, err
        self.descriptor = os.pidfd_open(pid)
        self.returncode: int | None = None
        self.seconds = self.ended_at = 0.0

    def poll(self, seconds: float | None = 0) -> int | None:
        """The exit code, or None if it still runs after so many seconds (None: however long it takes)."""
        if self.returncode is None and select.select([self.descriptor], [], [], seconds)[0]:
            self.returncode, self.seconds = self.server.ask({"wait": self.pid})
            self.ended_at = time.time()
            os.close(self.descriptor)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        code = self.poll(timeout)
        if code is None:
            self.kill()
            raise subprocess.TimeoutExpired("gradlab", timeout or 0, self.out.read_bytes())
        return code

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        self.wait(timeout)
        return self.out.read_text(), "" if self.err == self.out else self.err.read_text()

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def result(self, timeout: float | None = None) -> Result:
        out, err = self.communicate(timeout)
        return Result(self.wait(), out, err)


class Commands:
    """`python -m gradlab <arguments>` in a fork of one warm process; what is global in Hydra dies with the child."""

    def __init__(self, scratch: Path) -> None:
        self.scratch, self.numbers = scratch, itertools.count()
        self.stores: list[Any] = []  # of the launches: each must live as long as its ranks
        here = Path(__file__).parent
        path = os.pathsep.join([str(here), *filter(None, [os.environ.get("PYTHONPATH")])])
        state = {"XDG_STATE_HOME": str(scratch / "state")}  # marks of what was run are not of the user's
        self.path = {"OMP_NUM_THREADS": "1", "PYTHONPATH": path} | state
        command = [sys.executable, str(here / "fork_server.py")]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ | self.path
        )

    def __call__(self, *arguments: str, cwd: Path, timeout: int = 60, **env: str) -> Result:
        return self.start(*arguments, cwd=cwd, timeout=timeout, **env).result()

    def start(self, *arguments: str, cwd: Path, timeout: int = 600, joined: bool = False, **env: str) -> Started:
        """Begin a command. joined: its errors stand among what it prints."""
        return self.python("-m", "gradlab", *arguments, cwd=cwd, timeout=timeout, joined=joined, **env)

    def python(self, *arguments: str, cwd: Path, timeout: int = 600, joined: bool = False, **env: str) -> Started:
        """Begin `python <arguments>`."""
        out = self.scratch / f"{next(self.numbers)}.out"
        err = out if joined else out.with_suffix(".err")
        files = {"out": str(out), "err": str(err)}
        environment = os.environ | self.path | env
        job: dict[str, Any] = {"arguments": arguments, "cwd": str(cwd), "env": environment, "timeout": timeout}
        return Started(self, self.ask(job | files), out, err)

    def torchrun(self, ranks: int, *arguments: str, cwd: Path, timeout: int = 200, **env: str) -> Result:
        """`torchrun --standalone --nproc-per-node=<ranks> <arguments>`."""
        return self.ended([self.ranks(ranks, *arguments, cwd=cwd, timeout=timeout, **env)])[0]

    def ended(self, launches: list[list[Started]]) -> list[Result]:
        """How launches that run at once end: once a rank fails, the others of its launch are ended."""
        left = list(launches)
        while left:
            for began in left[:]:
                running = [one for one in began if one.poll() is None]
                if failed := any(one.returncode for one in began):
                    for one in running:
                        one.terminate()
                if failed or not running:
                    left.remove(began)
            time.sleep(0.02)
        return [together([one.result(30) for one in began]) for began in launches]

    def ranks(self, number: int, *arguments: str, cwd: Path, timeout: int = 200, **env: str) -> list[Started]:
        """Begin `python <arguments>` on each rank, as torchrun does."""
        from torch.distributed import TCPStore

        store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self.stores.append(store)
        env = torchrun_environment(number, store.port) | env
        return [
            self.python(*arguments, cwd=cwd, timeout=timeout, RANK=str(i), LOCAL_RANK=str(i), **env)
            for i in range(number)
        ]

    def ask(self, request: dict[str, Any]) -> Any:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def close(self) -> None:
        with self.process:  # it ends with its input
            pass


def together(ranks: list[Result]) -> Result:
    return Result(int(any(r.code for r in ranks)), "".join(r.out for r in ranks), "".join(r.err for r in ranks))


def torchrun_environment(ranks: int, port: int) -> dict[str, str]:
    """What torchrun sets for each of its processes on one machine; the store is the launcher's."""
    size = {name: str(ranks) for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE")}
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    elastic = {"TORCHELASTIC_RESTART_COUNT": "0", "TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_MAX_RESTARTS": "0"}
    return size | where | elastic | {"TORCHELASTIC_USE_AGENT_STORE": "True", "GROUP_RANK": "0"}


def runs(cwd: Path) -> list[Path]:
    """Folders of runs and sweeps that a command left."""
    return sorted(p for p in cwd.glob("outputs/*/*"))


def told(result: Result, code: int = 2) -> str:
    """What a failed command said: one or two lines, no traceback."""
    assert result.code == code, result
    assert "Traceback" not in result.err and result.out == "", result
    lines = result.err.splitlines()
    assert 1 <= len(lines) <= 2 and lines[0].startswith("gradlab: "), result.err
    return result.err
