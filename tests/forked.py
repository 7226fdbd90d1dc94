"""Runs many commands quickly: a process that has imported everything forks one child for each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SERVER = """
import gc, json, os, signal, sys, time
import hydra, torch, torch._dynamo, numpy, sklearn.datasets  # the first optimizer imports torch._dynamo
import gradlab.cli.main, gradlab.cli.arguments, gradlab.config.compose, gradlab.runs.ending
import gradlab.callbacks, gradlab.train.trainer
gradlab.config.compose.compose(["clip=norm", "seed=1"])  # its parsers learn as they read
gc.collect(); gc.freeze()

for line in sys.stdin:
    job = json.loads(line)
    began = time.monotonic()
    child = os.fork()
    if child == 0:
        os.chdir(job["cwd"])
        os.environ.update(job["env"])
        for name, number in (("out", 1), ("err", 2)):
            os.dup2(os.open(job[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        sys.argv = ["gradlab", *job["arguments"]]
        sys.path[:] = [p for p in sys.path if p]
        code = 99
        try:
            signal.alarm(job["timeout"])
            gradlab.cli.main.main()
            code = 0
        except SystemExit as end:
            code = end.code or 0
        except BaseException:
            import traceback
            traceback.print_exc()
            code = 1
        finally:
            sys.stdout.flush(); sys.stderr.flush()
            import atexit
            atexit._run_exitfuncs()
            os._exit(code)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(json.dumps([status, time.monotonic() - began]), flush=True)
"""


@dataclass
class Result:
    """How a command ended."""

    code: int
    out: str
    err: str
    seconds: float


class Commands:
    """`python -m gradlab <arguments>` in a fork of one warm process; what is global in Hydra dies with the child."""

    def __init__(self, scratch: Path) -> None:
        self.scratch = scratch
        environment = os.environ | {"OMP_NUM_THREADS": "1", "WANDB_MODE": "offline"}
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
            environment.pop(name, None)
        command = [sys.executable, "-c", SERVER]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def __call__(self, *arguments: str, cwd: Path, timeout: int = 60, **env: str) -> Result:
        assert self.process.stdin and self.process.stdout
        out, err = self.scratch / "out", self.scratch / "err"
        job: dict[str, Any] = {"arguments": arguments, "cwd": str(cwd), "env": env, "timeout": timeout}
        self.process.stdin.write(json.dumps(job | {"out": str(out), "err": str(err)}) + "\n")
        self.process.stdin.flush()
        code, seconds = json.loads(self.process.stdout.readline())
        return Result(code, out.read_text(), err.read_text(), seconds)

    def close(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait(10)
