"""What a run runs on: environment.json in its folder, for whoever wants to run it again or asks why it differs."""

from __future__ import annotations

import functools
import json
import os
import platform
import subprocess
import sys
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

from gradlab.base.conf import PACKAGE
from gradlab.base.json_lines import write_whole

PACKAGES = ("gradlab", "torch", "torchvision", "numpy", "hydra-core", "omegaconf", "wandb", "gymnasium")
"""Packages whose versions are recorded, where they are installed."""
SECONDS = 2.0
"""Longest wait for an answer of git."""


def record(folder: Path, device: Any, world_size: int = 1, resumed: bool = False, planned: int = 0) -> None:
    """Write environment.json; what a resumed run ran on before stands under `before`. A full disk costs it alone.

    planned: updates.
    """
    path = folder / "environment.json"
    content = described(str(device), world_size, os.getcwd(), str(PACKAGE)) | {"planned": planned}
    with suppress(OSError, ValueError):
        if resumed and path.is_file():
            content = content | {"before": json.loads(path.read_text(encoding="utf-8"))}
        write_whole(path, json.dumps(content, indent=2) + "\n")


@functools.cache
def described(device: str, world_size: int, here: str, package: str) -> dict[str, Any]:
    """What a run runs on, the same for every run of a process: a sweep asks once."""
    import torch

    where = torch.device(device)
    name = torch.cuda.get_device_name(where) if where.type == "cuda" else processor()
    return {
        "python": platform.python_version(),
        "packages": versions(),
        "system": platform.platform(),
        "device": device,
        "device_name": name,
        "cuda": torch.version.cuda if where.type == "cuda" else None,
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "threads": torch.get_num_threads(),
        "world_size": world_size,
        "program": Path(sys.argv[0]).name if sys.argv else "",
        "git": git(here),
        "gradlab_git": git_of_the_package(package),
    }


@functools.cache
def versions() -> dict[str, str]:
    """Versions of the installed packages among PACKAGES."""
    found = {}
    for name in PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def processor() -> str:
    """The processor's name, as far as the system reports it."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


@functools.cache
def git_of_the_package(folder: str) -> dict[str, Any] | None:
    """Asked once, wherever its runs are."""
    return git(folder)


def git(folder: str) -> dict[str, Any] | None:
    """Commit, branch, and whether files differ from it; None outside of a repository, or where git does not answer."""
    command = [
        "git",
        "--no-optional-locks",
        "-C",
        folder,
        "status",
        "--porcelain=v2",
        "--branch",
        "--untracked-files=no",
    ]
    try:
        lines = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=True).stdout.splitlines()
    except (OSError, subprocess.SubprocessError):
        return None
    branch = dict(line[2:].split(" ", 1) for line in lines if line.startswith("# branch."))
    changed = sum(not line.startswith("#") for line in lines)
    return {"commit": branch.get("branch.oid"), "branch": branch.get("branch.head"), "changed_files": changed}
