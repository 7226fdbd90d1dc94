"""One thread a process, also in those that tests start; how many workers there are; what all tests share."""

import fcntl
import gc
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # before PyTorch is imported; children inherit it
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # set by images; each process would compile PyTorch anew: 8 seconds
os.environ.setdefault("WANDB_MODE", "offline")  # no test reaches W&B's servers

import pytest
from forked import Commands

sys.dont_write_bytecode = False  # in this one too
gc.disable()  # until all is imported: a third of the time of collecting tests
signal.signal(signal.SIGINT, signal.default_int_handler)  # children of a shell's background job would ignore it

MOST_WORKERS = 8
"""Each holds PyTorch twice, in itself and in its server of commands: about a gigabyte."""


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """How many workers `-n auto` starts: one a core; none for a few files, which end before the workers have begun."""
    chosen = [argument.split("::")[0] for argument in config.args]
    if len(chosen) <= 3 and all(Path(path).is_file() for path in chosen):
        return 0
    return min(len(os.sched_getaffinity(0)), MOST_WORKERS)


def pytest_collection_finish() -> None:
    """What is imported stays: collections of garbage pass over it, which takes a tenth of the time of the tests."""
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session")
def gradlab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Commands]:
    """`python -m gradlab` in forks of one warm process: it takes seconds to begin, and every file of tests needs it."""
    commands = Commands(tmp_path_factory.mktemp("commands"))
    yield commands
    commands.close()


@pytest.fixture(scope="session")
def once(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Callable[[Path], None]], Path]:
    """A folder that is filled once, by whichever of pytest's workers asks first: a launch of ranks takes a minute."""
    base = tmp_path_factory.getbasetemp()
    root = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base

    def filled(name: str, fill: Callable[[Path], None]) -> Path:
        folder = root / name
        with (root / f"{name}.lock").open("a+") as lock:  # not empty: the folder is whole
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not os.fstat(lock.fileno()).st_size:  # asked once it is locked
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir()
                fill(folder)
                lock.write("whole")
        return folder

    return filled


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """A headless browser, for `browser.opened`."""
    from browser import launched

    with launched() as browser:
        yield browser
