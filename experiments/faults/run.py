"""The faults that the tests inject, in numbers that CI has no time for. Seeded; ends with what was found.

python experiments/faults/run.py [--fuzz 10000] [--kills 100] [--damage 10000] [--seed 1]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "faults")]


def told(what: str, counts: Counter[str], faults: list[str]) -> int:
    print(f"{what}: {dict(counts)}, {len(faults)} faults", *faults[:20], sep="\n", flush=True)
    return len(faults)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fuzz", type=int, default=0, metavar="N", help="commands with random overrides")
    parser.add_argument("--kills", type=int, default=0, metavar="N", help="kill -9 of runs, resumed to their end")
    parser.add_argument("--damage", type=int, default=0, metavar="N", help="damaged folders, read by all that reads")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    faults = 0
    if args.fuzz:
        import fuzz

        faults += told("overrides", *fuzz.fuzz(args.seed, args.fuzz))
    if args.kills:
        import killer

        with tempfile.TemporaryDirectory() as folder:
            os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
            faults += told("kills", *killer.kills(args.seed, args.kills, Path(folder)))
    if args.damage:
        test = ROOT / "tests" / "faults" / "test_damaged_folders.py"
        given = os.environ | {"GRADLAB_FAULTS": f"{args.seed}:{args.damage}"}
        faults += subprocess.run(
            [sys.executable, "-m", "pytest", "-n", "0", "-q", "-s", "-m", "slow", test], env=given
        ).returncode
    return int(faults > 0)


if __name__ == "__main__":
    sys.exit(main())
