"""Where a run stands in W&B: its group, its name, and the earlier parts of it in its folder."""

from __future__ import annotations

import functools
import os
import struct
from collections.abc import Iterator
from pathlib import Path

BLOCK = 1 << 15
FIRST, LAST, FULL = 2, 4, 1


def sweep_of(folder: Path) -> Path | None:
    """The folder of the sweep that a run is a job of."""
    parents = list(folder.resolve().parents)[:4]
    return next((parent for parent in parents if (parent / "multirun.yaml").is_file()), None)


@functools.lru_cache(maxsize=8)
def common(sweep: Path) -> frozenset[str]:
    """The overrides that all jobs of a sweep share."""
    import yaml

    try:
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        return frozenset(
            yaml.load((sweep / "multirun.yaml").read_text(encoding="utf-8"), loader)["hydra"]["overrides"]["task"]
        )
    except (OSError, yaml.YAMLError, KeyError, TypeError):
        return frozenset()


def group_of(folder: Path, experiment: str) -> str:
    """The experiment, or of a sweep's job its sweep."""
    sweep = sweep_of(folder)
    return group_in(sweep, experiment) if sweep else experiment[:128]


def group_in(sweep: Path, experiment: str) -> str:
    return f"{experiment} {sweep.resolve().name}"[:128]


def name_of(folder: Path, overrides: list[str]) -> str:
    """The folder's name; in a sweep, where that is a number, with what is the job's own."""
    sweep = sweep_of(folder)
    own = [o for o in overrides if o not in common(sweep)] if sweep else []
    return " ".join([folder.name, *own])[:128]


def earlier(folder: Path) -> list[Path]:
    """The parts that a run has written before, each a folder of W&B's, from the first to the last."""
    return sorted(folder.glob("wandb/*run-*-*"), key=lambda path: path.name.partition("run-")[2])


def id_of(parts: list[Path]) -> str | None:
    """The id of the W&B run that these are parts of."""
    return parts[-1].name.rpartition("-")[2] if parts else None


def waits(part: Path) -> bool:
    """Whether a part was written offline and was not sent since."""
    return part.name.startswith("offline-") and not any(part.glob("*.wandb.synced"))


def records(data: bytes) -> Iterator[tuple[bytes, int]]:
    """The records of a .wandb file, and where each ends: LevelDB's log format after a header of 7 bytes.

    What a kill has cut short is left out.
    """
    position, whole = 7, b""
    while position + 7 <= len(data):
        if (left := BLOCK - position % BLOCK) < 7:
            position += left
            continue
        _, length, kind = struct.unpack_from("<IHB", data, position)
        whole = (b"" if kind in (FULL, FIRST) else whole) + data[position + 7 : position + 7 + length]
        position += 7 + length
        if position > len(data):
            return
        if kind in (FULL, LAST):
            yield whole, position


def truncate_partial_record(part: Path) -> None:
    """Cut what a kill has left half-written at the end of a part: `wandb sync` would stop there, before later parts."""
    for file in part.glob("*.wandb"):
        data = file.read_bytes()
        end = max((end for _, end in records(data)), default=len(data))
        if end < len(data):
            os.truncate(file, end)


def logged(parts: list[Path]) -> int:
    """Lines of metrics that the parts of a run hold: the step of the next one."""
    from google.protobuf.message import DecodeError
    from wandb.proto import wandb_internal_pb2 as proto

    step = 0
    for file in (file for part in parts for file in part.glob("*.wandb")):
        for data, _ in records(file.read_bytes()):
            record = proto.Record()  # type: ignore[attr-defined]
            try:
                record.ParseFromString(data)
            except DecodeError:
                break
            if record.WhichOneof("record_type") == "history":
                step = max(step, record.history.step.num + 1)
    return step
