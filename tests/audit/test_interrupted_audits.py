"""Audits that are interrupted, and files that change during an audit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gradlab.audit import process_pool
from gradlab.audit.command import main
from gradlab.audit.fixes import file_fix

LOOP = (Path(__file__).parent / "wrong" / "clip_after_step.py").read_text()


def dying(paths, selected):
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_killed_process_is_reported_in_one_line(tmp_path, capsys, monkeypatch):
    for i in range(4):
        (tmp_path / f"{i}.py").write_text(LOOP)
    monkeypatch.setattr(process_pool, "MANY", 1)
    monkeypatch.setattr(process_pool.os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    monkeypatch.setattr(process_pool, "audit_part", dying)
    assert main([str(tmp_path)]) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and "was killed" in printed.err and printed.err.count("\n") == 1


@pytest.mark.parametrize("every", [True, False], ids=["to all processes of the terminal", "to the first process only"])
def test_ctrl_c_ends_all_processes_quietly(every, tmp_path):
    for i in range(300):
        (tmp_path / f"{i}.py").write_text(LOOP)
    code = "import os; os.sched_getaffinity = lambda _: {0, 1}\n"
    code += "from gradlab.audit import process_pool; audit_part = process_pool.audit_part\n"
    code += f"def slow(paths, selected):\n    open({str(tmp_path / 'begun')!r}, 'w')\n"
    code += "    return audit_part(paths * 3, selected)\n"
    code += "process_pool.audit_part = slow; import sys; sys.argv[1:] = ['.']; from runpy import run_module\n"
    code += "run_module('gradlab.audit', run_name='__main__')\n"
    done = subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    deadline = time.monotonic() + 60
    while not (tmp_path / "begun").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    os.killpg(done.pid, signal.SIGINT) if every else done.send_signal(signal.SIGINT)
    out, err = done.communicate(timeout=60)
    assert (done.returncode, out) == (130, "") and "Traceback" not in err


def test_a_file_that_changed_meanwhile_is_not_overwritten(tmp_path, capsys, monkeypatch):
    path = tmp_path / "a.py"
    path.write_text(LOOP)
    step = file_fix.step

    def slow(*arguments):
        path.write_text(LOOP + "mine = 1\n")
        return step(*arguments)

    monkeypatch.setattr(file_fix, "step", slow)
    assert main([str(path), "--fix"]) == 1
    assert "a.py: not fixed: was changed meanwhile" in capsys.readouterr().err
    assert path.read_text() == LOOP + "mine = 1\n"
