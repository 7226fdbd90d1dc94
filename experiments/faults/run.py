"""The faults that the tests inject, in numbers that CI has no time for. Seeded; ends with what was found.

python experiments/faults/run.py --fuzz N --commands N --kills N --damage N --requests N --pages N [--seed S]
"""

from __future__ import annotations

import argparse
import importlib
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "faults")]
IN_FOLDERS = {"commands": "fuzz", "kills": "killer", "requests": "prober", "pages": "prober"}
"""What writes into a folder -> the module that does it."""


def told(what: str, counts: Counter[str], faults: list[str]) -> int:
    print(f"{what}: {dict(counts)}, {len(faults)} faults", *faults[:20], sep="\n", flush=True)
    return len(faults)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fuzz", type=int, default=0, metavar="N", help="random overrides, composed and checked")
    parser.add_argument("--commands", type=int, default=0, metavar="N", help="random overrides, by the real command")
    parser.add_argument("--kills", type=int, default=0, metavar="N", help="kill -9 of runs, resumed to their end")
    parser.add_argument("--damage", type=int, default=0, metavar="N", help="damaged folders, read by all that reads")
    parser.add_argument(
        "--requests", type=int, default=0, metavar="N", help="hostile requests to a page that is served"
    )
    parser.add_argument("--pages", type=int, default=0, metavar="N", help="hostile text and files in folders")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    faults = 0
    if args.fuzz:
        import fuzz

        faults += told("overrides", *fuzz.fuzz(args.seed, args.fuzz))
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    for what, module in IN_FOLDERS.items():
        if number := getattr(args, what):
            with tempfile.TemporaryDirectory() as folder:
                inject = getattr(importlib.import_module(module), what)
                faults += told(what, *inject(args.seed, number, Path(folder)))
    if args.damage:
        test = ROOT / "tests" / "faults" / "test_damaged_folders.py"
        given = os.environ | {"GRADLAB_FAULTS": f"{args.seed}:{args.damage}"}
        faults += subprocess.run(
            [sys.executable, "-m", "pytest", "-n", "0", "-q", "-s", "-m", "slow", test], env=given
        ).returncode
    return int(faults > 0)


if __name__ == "__main__":
    sys.exit(main())
