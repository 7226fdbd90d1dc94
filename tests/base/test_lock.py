"""Locks: processes take turns, and a system without locks does without."""

import multiprocessing
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from helpers import environment

from gradlab.base.lock import locked, turn


def hold(folder: Path, seconds: float, entered: Any) -> None:
    with turn(folder):
        entered.set()
        time.sleep(seconds)


def test_two_processes_take_turns_in_a_jobs_folder_and_a_killed_one_frees_it(tmp_path: Path) -> None:
    for end in (None, "kill"):
        entered = multiprocessing.get_context("fork").Event()
        other = multiprocessing.get_context("fork").Process(target=hold, args=(tmp_path, 30 if end else 0.3, entered))
        other.start()
        assert entered.wait(10)
        began = time.monotonic()
        if end:
            other.kill()
        with turn(tmp_path):
            waited = time.monotonic() - began
        assert 0.2 < waited < 10 if end is None else waited < 10
        other.join()


def test_a_lock_shows_while_it_is_held(tmp_path: Path) -> None:
    assert not locked(tmp_path) and not locked(tmp_path / "nothing")
    with turn(tmp_path):
        assert locked(tmp_path)
    assert not locked(tmp_path)


def test_lists_are_read_where_there_are_no_locks(tmp_path: Path) -> None:
    """As on Windows, which has no fcntl and opens no folders."""
    code = "import shutil, sys; sys.platform = 'win32'; sys.modules['fcntl'] = None; from pathlib import Path;"
    code += "from gradlab.base.lazy import lazy_import; lazy_import('torch');"
    code += "from gradlab.base.lock import locked, turn; import gradlab.runs.run_list, gradlab.sweep.resume\n"
    code += "with turn(Path('.')): assert not locked(Path('.'))"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment(), cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
