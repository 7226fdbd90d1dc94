"""What no_sync is worth, by the bandwidth between two hosts: two network namespaces, joined by a link that tc limits.

    sudo python experiments/bandwidth/measure.py

Needs root, ip and tc (Linux). Both ranks make gradlab's own update of four micro-batches, with its no_sync and without,
so that every micro-batch is reduced, in turn, at every bandwidth; rank 0 writes README.md and results.json beside this
file. A few minutes.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path

HERE = Path(__file__).parent
RATES = (0, 1000, 300, 100, 30)
"""Mbit/s; 0: no limit."""
ROUNDS, WARMUP, STEPS = 7, 1, 4
MODEL = [
    "model=transformer",
    "model.width=128",
    "data=text",
    "data.length=64",
    "data.samples=50000",
    "data.batch_size=2",
]
QUIET = ["logger=none", "monitor=none", "trainer.progress=none", "trainer.device=cpu", "trainer.epochs=1"]
TRAINED = [f"accumulation.steps={STEPS}", "optimizer=adamw"]
ABOUT = """\
# bandwidth: no_sync and the link between two hosts

Two ranks (gloo, a core each) in two network namespaces; `tc` limits what each sends. An update of {parameters}
parameters in fp32, {megabytes:.1f} MB of gradients, from {steps} micro-batches of 2 x 64 tokens a rank: gradlab's own,
with its no_sync, and with no_sync taken away. Seconds of the clock, in turn, medians and quartiles of {rounds} rounds.

```bash
sudo python experiments/bandwidth/measure.py
```

runs this and writes this page. On {machine}, otherwise idle:

| link | one all-reduce, s | with no_sync, s | without, s | without / with, in turn |
|---|---|---|---|---|
"""

LAW = """
Without no_sync an update waits for three more all-reduces: of C seconds of arithmetic and R of one all-reduce it is
(C + 4R) / (C + R) times as long, where they do not overlap. That is at most 4, and 3.3 where R is 3.3 times C.
"""


def start(command: str) -> None:
    subprocess.run(command.split(), check=True)


def spaces(parent: int) -> list[str]:
    return [f"gradlab{parent}_{i}" for i in (0, 1)]


def joined() -> None:
    """Make the namespaces, run a rank in each, and take them away."""
    names, ends = spaces(os.getpid()), ["glv0", "glv1"]
    ranks: list[subprocess.Popen[bytes]] = []
    try:
        for name in names:
            start(f"ip netns add {name}")
        start(f"ip link add {ends[0]} netns {names[0]} type veth peer name {ends[1]} netns {names[1]}")
        for i, (name, end) in enumerate(zip(names, ends, strict=True)):
            start(f"ip -n {name} addr add 10.77.0.{i + 1}/24 dev {end}")
            start(f"ip -n {name} link set {end} up")
            start(f"ip -n {name} link set lo up")
        for i, (name, end) in enumerate(zip(names, ends, strict=True)):
            own = {"RANK": f"{i}", "WORLD_SIZE": "2", "MASTER_ADDR": "10.77.0.1", "MASTER_PORT": "29577"}
            given = os.environ | own | {"GLOO_SOCKET_IFNAME": end, "OMP_NUM_THREADS": "1"}
            command = ["ip", "netns", "exec", name, sys.executable, __file__, end]
            ranks.append(subprocess.Popen(command, env=given))
        for rank in ranks:
            if rank.wait():
                raise SystemExit(rank.returncode)
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False)


def limit(end: str, rate: int) -> None:
    """Of what this rank sends."""
    subprocess.run(["tc", "qdisc", "del", "dev", end, "root"], check=False, capture_output=True)
    if rate:
        start(f"tc qdisc add dev {end} root tbf rate {rate}mbit burst {max(64, rate // 2)}kb latency 200ms")


def measured(end: str) -> None:
    """A rank."""
    import torch

    from gradlab.base import distributed
    from gradlab.config.compose import compose
    from gradlab.config.schema import to_config
    from gradlab.train.sink import FileSink
    from gradlab.train.trainer import Trainer

    world = distributed.world()
    config = to_config(compose([*MODEL, *QUIET, *TRAINED]))
    trainer = Trainer(config, Path(tempfile.mkdtemp()), world, (FileSink(),), say=lambda text: None)
    for sink in trainer.sinks:
        sink.begin(trainer, [0, 0])
    model, no_sync = trainer.model, trainer.model.no_sync
    elements = sum(p.numel() for p in trainer.module.parameters())
    alone = torch.zeros(elements)

    def seconds(what: str) -> float:
        """By rank 0's clock, from when both are there until both are done."""
        model.no_sync = no_sync if what == "with" else nullcontext
        world.barrier()
        begun = time.perf_counter()
        if what == "reduce":
            torch.distributed.all_reduce(alone)
        else:
            trainer.one_update()
        world.barrier()
        return time.perf_counter() - begun

    found: dict[int, list[dict[str, float]]] = {}
    for rate in RATES:
        limit(end, rate)
        world.barrier()
        rounds = [{what: seconds(what) for what in turn(i)} for i in range(WARMUP + ROUNDS)]
        found[rate] = rounds[WARMUP:]
        if world.main:
            print(rate, *(round(statistics.median(r[what] for r in found[rate]), 4) for what in turn(0)), flush=True)
    if world.main:
        written(found, elements)
    trainer.close()
    distributed.leave()
    os._exit(0)  # a thread of the process group may abort the interpreter as it ends


def turn(i: int) -> tuple[str, ...]:
    return ("reduce", "with", "without") if i % 2 == 0 else ("without", "with", "reduce")


def spread(values: list[float], digits: int = 3) -> str:
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return f"{middle:.{digits}g} ({low:.{digits}g} to {high:.{digits}g})"


def name_of(rate: int) -> str:
    return f"{rate} Mbit/s" if rate else "no limit"


def written(found: dict[int, list[dict[str, float]]], elements: int) -> None:
    sys.path.insert(0, str(HERE.parent))
    from page import machine

    ratios = {rate: [r["without"] / r["with"] for r in rounds] for rate, rounds in found.items()}
    usual = {rate: statistics.median(values) for rate, values in ratios.items()}
    sizes = {"parameters": elements, "megabytes": elements * 4 / 1e6, "steps": STEPS, "rounds": ROUNDS}
    text = ABOUT.format(machine=machine(), **sizes)
    for rate, rounds in found.items():
        cells = [spread([r[what] for r in rounds]) for what in turn(0)]
        text += "| " + " | ".join([name_of(rate), *cells, spread(ratios[rate])]) + " |\n"
    inside = [rate for rate, ratio in usual.items() if 2 <= ratio <= 4]
    claim = {
        "claim": f"between two hosts no_sync makes an update of {STEPS} micro-batches 2 to 4 times faster",
        "source": "GM: Performance comparison",
        "verdict": "refuted" if not inside else "confirmed" if len(inside) == len(usual) else "depends",
        "measured": "; ".join(f"{name_of(rate)}: {ratio:.2f} times" for rate, ratio in usual.items())
        + f" ({elements * 4 / 1e6:.1f} MB of gradients, two ranks)",
    }
    text += (
        LAW + f"\n| claim | source | here | measured |\n|---|---|---|---|\n| {claim['claim']} | {claim['source']} | "
    )
    text += f"**{claim['verdict']}** | {claim['measured']} |\n"
    (HERE / "README.md").write_text(text)
    results = {"title": "no_sync and the link between two hosts", "machine": machine(), "claims": [claim]}
    (HERE / "results.json").write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    if len(sys.argv) == 1:
        joined()
    else:
        measured(sys.argv[1])
