"""What a command costs before and after its updates: processor seconds and memory, beside those of importing PyTorch.

    python experiments/cost/start.py

Each command is run in a process of its own, in turn with the others, nine times; the median and the quartiles of its
processor seconds are printed, and of its ratio to `python -c "import torch"` in the same round. Two minutes.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile

ROUNDS = 9
GRADLAB = [sys.executable, "-m", "gradlab"]
SMALL = ["trainer.epochs=1", "data.samples=64", "model.layers=2", "model.width=8"]
TWO_UPDATES = [*SMALL, "trainer.progress=none", "expect=any"]
LOOP = """
import torch
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(2):
    optimizer.zero_grad()
    model(torch.randn(4, 4)).sum().backward()
    optimizer.step()
"""
COMMANDS = {
    "import torch": [sys.executable, "-c", "import torch"],
    "two updates of a loop written by hand": [sys.executable, "-c", LOOP],
    "gradlab --help": [*GRADLAB, "--help"],
    "gradlab, a wrong field": [*GRADLAB, "optimizer.lrr=1"],
    "gradlab, two updates": [*GRADLAB, *TWO_UPDATES],
}


def cost(command: list[str], folder: str) -> tuple[float, float]:
    """Processor seconds of a command, and the largest memory that it held, in MB."""
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, _, used = os.wait4(process.pid, 0)
    return used.ru_utime + used.ru_stime, used.ru_maxrss / 1024


def main() -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    rounds: dict[str, list[tuple[float, float]]] = {name: [] for name in COMMANDS}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(ROUNDS + 1):  # the first reads files from disk
            for name, command in COMMANDS.items():
                rounds[name].append(cost(command, folder))
    alone = [seconds for seconds, _ in rounds["import torch"][1:]]
    for name, found in rounds.items():
        seconds, memory = zip(*found[1:], strict=True)
        low, middle, high = statistics.quantiles(s / a for s, a in zip(seconds, alone, strict=True))
        row = {"seconds": round(statistics.median(seconds), 2), "memory_mb": round(max(memory))}
        ratio = {"over_import_torch": [round(low, 3), round(middle, 3), round(high, 3)]}
        print(json.dumps({"command": name, **row, **ratio}))


if __name__ == "__main__":
    main()
