"""What reading windows of a large file of tokens leaves in memory, beside a file that is mapped (`np.memmap`).

    python experiments/cost/tokens.py [--mapped]

The file has 20 GB and takes no place on the disk: it was never written to. Prints resident MB before and after.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from gradlab.data.tokens import TokensData, Windows


def resident() -> int:
    """MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) // 1024 for line in lines if line.startswith("VmRSS"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mapped", action="store_true", help="read a mapped file, for comparison")
    parser.add_argument("--windows", type=int, default=5000)
    args = parser.parse_args()
    with tempfile.NamedTemporaryFile(suffix=".bin") as file:
        file.truncate(20 * 10**9)
        tokens: Any = TokensData(path=file.name).tokens("path", file.name)
        windows = Windows(np.memmap(file.name, "uint16", "r") if args.mapped else tokens, 1024, None)
        draw, before = random.Random(0), (windows[0], resident())[1]
        for _ in range(args.windows):
            windows[draw.randrange(len(windows))]
        print(f"{before} MB, after {args.windows} windows of 1024 tokens {resident()} MB")


if __name__ == "__main__":
    main()
