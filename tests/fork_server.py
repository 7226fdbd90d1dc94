"""A process that has imported what every command imports, and forks a child for each: the seconds are spent once.

A request is a line of JSON. {"arguments": [...], ...} starts a child and is answered by its process id; {"wait": id}
waits for its end and is answered by its exit status and the seconds that it computed.
"""

import atexit
import gc
import importlib
import json
import os
import pkgutil
import runpy
import signal
import sys
import threading
from pathlib import Path
from typing import Any

OTHERS = ("hydra.main", "sklearn.datasets", "torch._dynamo", "torch.distributed")
"""The first optimizer imports torch._dynamo."""
PACKAGES = ("base", "data", "models", "update", "measure", "diagnosis", "config", "train", "runs", "sweep", "cli")


def load() -> None:
    """Import what commands import, and do once what is remembered: Hydra's parsers learn as they read."""
    gc.disable()
    for name in OTHERS:
        importlib.import_module(name)
    for package in PACKAGES:
        parent = importlib.import_module(f"gradlab.{package}")
        for module in pkgutil.walk_packages(parent.__path__, f"gradlab.{package}."):
            importlib.import_module(module.name)
    importlib.import_module("gradlab.config.compose").compose(["clip=norm", "seed=1"])
    importlib.import_module("gradlab.train.environment").versions()
    importlib.import_module("gradlab.data.digits").scanned()
    gc.collect()
    gc.freeze()
    gc.enable()


def execute(arguments: list[str]) -> None:
    """What `python <arguments>` does: -m and a module, -c and code, or a script."""
    kind, *rest = arguments
    if kind == "-m":
        sys.argv, sys.path[0] = rest, os.getcwd()
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif kind == "-c":
        sys.argv, sys.path[0] = ["-c", *rest[1:]], ""
        exec(compile(rest[0], "<string>", "exec"), {"__name__": "__main__"})
    else:
        sys.argv, sys.path[0] = arguments, str(Path(kind).parent)
        runpy.run_path(kind, run_name="__main__")


def child(job: dict[str, Any]) -> int:
    """Execute the arguments as a process of its own; returns its exit code."""
    os.setsid()
    os.chdir(job["cwd"])
    os.environ.clear()
    os.environ.update(job["env"])
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for name, number in (("out", 1), ("err", 2)):
        os.dup2(os.open(job[name], os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    signal.alarm(job["timeout"])
    try:
        execute(job["arguments"])
    except SystemExit as end:
        return exit_code(end.code)
    except BaseException:
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        return 1
    return 0


def exit_code(code: Any) -> int:
    if code is None or isinstance(code, int):
        return code or 0
    print(code, file=sys.stderr)
    return 1


def fork(job: dict[str, Any]) -> int:
    if process := os.fork():
        return process
    code = 1
    try:
        code = child(job)
        threading._shutdown()  # type: ignore[attr-defined]  # as the interpreter ends
        atexit._run_exitfuncs()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def main() -> None:
    load()
    for line in sys.stdin:
        job = json.loads(line)
        if "wait" in job:
            _, status, used = os.wait4(job["wait"], 0)
            answer: Any = [os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime]
        else:
            answer = fork(job)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
