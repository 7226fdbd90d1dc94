"""A process that ends early for its speed loses nothing that it would have written."""

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import atexit, sys, threading, time
from pathlib import Path
from gradlab.base.process_end import end_process

kept = open("text", "w")
kept.write("not flushed")
raw = open("bytes", "wb")
raw.write(b"nor this")
atexit.register(lambda: Path("registered").write_text("ran"))
threading.Thread(target=lambda: (time.sleep(0.3), Path("thread").write_text("ran"))).start()
sys.stdout.write("said")
end_process(3)
"""


def test_what_is_open_is_flushed_and_what_is_registered_runs(tmp_path: Path) -> None:
    ended = subprocess.run([sys.executable, "-c", PROGRAM], cwd=tmp_path, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout, ended.stderr) == (3, "said", "")
    written = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert written == {"text": "not flushed", "bytes": "nor this", "registered": "ran", "thread": "ran"}


def test_output_that_cannot_be_written_is_an_error() -> None:
    program = "import sys; from gradlab.base.process_end import end_process; sys.stdout.write('said'); end_process(0)"
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with Path("/dev/full").open("w") as full:
        assert subprocess.run([sys.executable, "-c", program], stdout=full, env=buffered).returncode == 120
