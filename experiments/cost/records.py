"""What reading what runs left costs: resuming a long run, its page, a list of many runs, and memory; growth with size.

    python experiments/cost/records.py [--most 20000]

Each number is measured at sizes two orders of magnitude apart, by a command of its own, in CPU seconds and resident
memory. What is read is a real run: its files are grown, and its folder copied.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"

SMALL = ("data.samples=256", "model.layers=2", "model.width=8", "trainer.progress=none", "expect=any")


def command(*arguments: str, module: str = "gradlab", cwd: Path) -> tuple[float, float]:
    """CPU seconds, and the largest resident memory in MB."""
    peak = (
        "import resource, runpy, sys, atexit; atexit.register(lambda: open('.peak', 'w').write(str(resource.getrusage"
    )
    code = (
        f"{peak}(resource.RUSAGE_SELF).ru_maxrss))); runpy.run_module({module!r}, run_name='__main__', alter_sys=True)"
    )
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, "-c", code, *arguments], cwd=cwd, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr[-2000:] or done.stdout[-2000:])
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return seconds, int((cwd / ".peak").read_text()) / 1024


def resumed(updates: int, folder: Path) -> dict[str, tuple[float, float]]:
    """A run of so many updates, resumed for one more, and its page."""
    long = (*SMALL, "trainer.epochs=1000000", "trainer.evaluate_every=0")
    trained = command(*long, f"trainer.updates={updates}", "hydra.run.dir=long", cwd=folder)
    page = command("long", module="gradlab.report", cwd=folder)
    again = command("resume=long", f"trainer.updates={updates + 1}", cwd=folder)
    shutil.rmtree(folder / "long")
    return {"train": trained, "resume": again, "page": page}


def listed(runs: int, folder: Path) -> dict[str, tuple[float, float]]:
    """A list of so many runs."""
    command(*SMALL, "trainer.epochs=5", "hydra.run.dir=one", cwd=folder)
    for name in ("checkpoint.pt", "report.html"):
        (folder / "one" / name).unlink()
    for number in range(runs):
        shutil.copytree(folder / "one", folder / "many" / str(number))
    found = {
        "list": command("many", module="gradlab.list", cwd=folder),
        "list --filter lr>0": command("many", "--filter", "lr>0", module="gradlab.list", cwd=folder),
    }
    shutil.rmtree(folder / "many")
    shutil.rmtree(folder / "one")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--most", type=int, default=20_000, help="updates of the longest run; of runs a tenth")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as path:
        folder = Path(path)
        for share in (100, 10, 1):
            for measure, size in ((resumed, args.most // share), (listed, args.most // share // 10)):
                for name, (seconds, memory) in measure(size, folder).items():
                    line = {"what": name, "size": size, "cpu_seconds": round(seconds, 2), "MB": round(memory)}
                    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
