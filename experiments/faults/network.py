"""Two ranks in two network namespaces, whose packets are late and lost: a run ends as it does over a good network.

    sudo python experiments/faults/network.py [--delay MS] [--loss SHARE] [--seed S]

Needs root, ip, and /dev/net/tun (Linux). This process carries the packets, and prints how many, and whether the weights
are equal.
"""

from __future__ import annotations

import argparse
import ctypes
import fcntl
import heapq
import os
import random
import select
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

import torch

ROOT = Path(__file__).parents[2]
RUN = (
    *("model.layers=2", "model.width=8", "data.samples=64", "data.batch_size=8", "trainer.updates=60"),
    *("trainer.epochs=40", "trainer.progress=none", "trainer.checkpoint_every=7", "expect=any"),
)
SPACES = ("gradlab_0", "gradlab_1")


def sh(command: str) -> None:
    subprocess.run(command.split(), check=True)


def opened(number: int) -> int:
    """A tunnel's end in its namespace, as a file."""
    here = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    enter(os.open(f"/run/netns/{SPACES[number]}", os.O_RDONLY))
    tunnel = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(tunnel, 0x400454CA, struct.pack("16sH", b"tun0", 0x0001 | 0x1000))  # TUNSETIFF: IFF_TUN, IFF_NO_PI
    enter(here)
    for command in (f"addr add 10.9.0.{number + 1}/24 dev tun0", "link set tun0 up", "link set lo up"):
        sh(f"ip -n {SPACES[number]} {command}")
    return tunnel


def enter(space: int) -> None:
    """Have this thread be in a network namespace."""
    if ctypes.CDLL(None, use_errno=True).setns(space, 0x40000000):  # CLONE_NEWNET; Python has it from 3.12 on
        raise OSError(ctypes.get_errno(), "setns")


def carry(ends: list[int], delay: float, loss: float, draw: random.Random, counts: Counter[str]) -> None:
    """Packets from either end to the other, each late by a random time around the delay, some never."""
    late: list[tuple[float, int, int, bytes]] = []
    while True:
        wait = max(0.0, late[0][0] - time.monotonic()) if late else 1.0
        for end in select.select(ends, [], [], wait)[0]:
            packet = os.read(end, 65536)
            counts["packets"] += 1
            if draw.random() < loss:
                counts["lost"] += 1
                continue
            when = time.monotonic() + delay * draw.uniform(0.5, 1.5)
            heapq.heappush(late, (when, counts["packets"], ends[1 - ends.index(end)], packet))
        while late and late[0][0] <= time.monotonic():
            *_, to, packet = heapq.heappop(late)
            os.write(to, packet)


def trained(folder: Path, spaces: tuple[str, ...], address: str, interface: str) -> dict[str, torch.Tensor]:
    env = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "WORLD_SIZE": "2", "MASTER_ADDR": address}
    env |= {"MASTER_PORT": "29511", "GLOO_SOCKET_IFNAME": interface, "XDG_STATE_HOME": str(folder / "state")}
    command = [sys.executable, "-m", "gradlab", *RUN, f"hydra.run.dir={folder}/run"]
    started = [
        subprocess.Popen(
            [*(["ip", "netns", "exec", spaces[rank]] if spaces else []), *command],
            env=env | {"RANK": str(rank), "LOCAL_RANK": "0"},
            stdout=subprocess.DEVNULL,
        )
        for rank in range(2)
    ]
    codes = [one.wait(timeout=500) for one in started]
    if any(codes):
        raise SystemExit("a rank failed")
    return torch.load(folder / "run" / "checkpoint.pt", weights_only=True)["model"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--delay", type=float, default=20, metavar="MS", help="of a packet, on average")
    parser.add_argument("--loss", type=float, default=0.02, metavar="SHARE", help="of packets that never come")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    counts = Counter[str]()
    with tempfile.TemporaryDirectory() as path:
        good = trained(Path(path) / "good", (), "127.0.0.1", "lo")
        try:
            for name in SPACES:
                sh(f"ip netns add {name}")
            ends = [opened(0), opened(1)]
            given = (ends, args.delay / 1000, args.loss, random.Random(args.seed), counts)
            threading.Thread(target=carry, args=given, daemon=True).start()
            began = time.monotonic()
            bad = trained(Path(path) / "bad", SPACES, "10.9.0.1", "tun0")
        finally:
            for name in SPACES:
                subprocess.run(["ip", "netns", "del", name], capture_output=True)
    equal = good.keys() == bad.keys() and all(torch.equal(good[name], bad[name]) for name in good)
    print(
        f"{args.delay:g} ms, {dict(counts)}, {time.monotonic() - began:.0f} s: weights {'equal' if equal else 'differ'}"
    )
    return int(not equal)


if __name__ == "__main__":
    sys.exit(main())
