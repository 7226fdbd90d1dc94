"""kill -9 at random moments, seeded, and resuming: the weights at the end are those of a run that was left alone."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch

RUN = (
    *("trainer.epochs=40", "data.samples=64", "model.layers=2", "model.width=8", "data.batch_size=8", "expect=any"),
    *("trainer.progress=none", "trainer.checkpoint_every=7", "trainer.threads=1", "schedule=warmup", "noise=gaussian"),
)


def start(*arguments: str, cwd: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "gradlab", *arguments], cwd=cwd, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )


def weights(folder: Path) -> dict[str, torch.Tensor]:
    found: Any = torch.load(folder / "checkpoint.pt", weights_only=True)["model"]
    return found


def kills(seed: int, number: int, folder: Path) -> tuple[Counter[str], list[str]]:
    """How often it was killed where, and how often the weights differed or a resumption failed."""
    draw, counts, faults = random.Random(seed), Counter[str](), list[str]()
    whole = start(*RUN, "hydra.run.dir=whole", cwd=folder)
    began = time.monotonic()
    said = whole.communicate()
    assert whole.returncode == 0, said
    seconds, expected = time.monotonic() - began, weights(folder / "whole")
    lines = (folder / "whole" / "metrics.jsonl").read_bytes().count(b"\n")
    case = 0
    while counts["kills"] < number:
        name, case = f"killed{case}", case + 1
        first = ["resume=" + name] if (folder / name).exists() else [*RUN, f"hydra.run.dir={name}"]
        for _ in range(20):
            process = start(*first, cwd=folder)
            try:
                process.wait(draw.uniform(0.4, 1.0) * seconds)
            except subprocess.TimeoutExpired:
                os.kill(process.pid, signal.SIGKILL)
                process.wait()
                counts["kills"] += 1
                counts["after a checkpoint" if (folder / name / "checkpoint.pt").is_file() else "before one"] += 1
            assert process.stderr is not None
            said = process.stderr.read().decode()
            process.stderr.close()
            if process.returncode == 0:
                break
            if process.returncode != -signal.SIGKILL:
                faults.append(f"{name}: {process.returncode} {said[-500:]}")
                break
            first = [f"resume={name}"] if (folder / name / ".hydra" / "overrides.yaml").is_file() else first
        else:
            process = start(*first, cwd=folder)
            said = str(process.communicate())
            if process.returncode:
                faults.append(f"{name}: {process.returncode} {said[-500:]}")
        if process.returncode == 0:
            counts["runs"] += 1
            same = all(
                torch.equal(a, b) for a, b in zip(expected.values(), weights(folder / name).values(), strict=True)
            )
            if not same or (folder / name / "metrics.jsonl").read_bytes().count(b"\n") != lines:
                faults.append(f"{name}: weights {'equal' if same else 'differ'}, or other lines")
    return counts, faults
