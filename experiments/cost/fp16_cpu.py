"""How many times faster `gradlab.update.fp16_cpu` makes an fp16 forward and backward pass on a CPU.

    python experiments/cost/fp16_cpu.py

Native and fast run in turn in one process, so that a busy machine slows both; each pair gives one ratio. Prints the
median and the quartiles, for people and as one JSON line a model. About a minute, on one thread.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable

import torch
import torchvision
from torch import Tensor, nn
from torch.nn import functional as F

from gradlab.update.fp16_cpu import context

SECONDS, MAX_PAIRS = 35.0, 31  # per model, whichever is reached first


class Block(nn.Module):
    """A pre-norm transformer block, (B, T, D) to (B, T, D)."""

    def __init__(self, width: int = 64, num_heads: int = 4) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.attention_norm, self.mlp_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.qkv(self.attention_norm(x)).unflatten(-1, (3, self.num_heads, -1)).unbind(2)
        query, key, value = (part.transpose(1, 2) for part in (query, key, value))  # (B, H, T, D / H)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.project(mixed.transpose(1, 2).flatten(-2))
        return x + self.mlp(self.mlp_norm(x))


def seconds(model: nn.Module, inputs: Tensor, scaler: torch.amp.GradScaler, cpu_gemm: str) -> float:
    model.zero_grad()
    start = time.perf_counter()
    with context(cpu_gemm):
        with torch.autocast("cpu", dtype=torch.float16):
            loss = model(inputs).float().square().mean()
        scaler.scale(loss).backward()
    return time.perf_counter() - start


def measure(model: nn.Module, inputs: Tensor) -> list[tuple[float, float]]:
    """Pairs of (native, fast) seconds, the order swapped from pair to pair; the first pair warms up."""
    scaler = torch.amp.GradScaler("cpu")
    pairs: list[tuple[float, float]] = []
    start = time.perf_counter()
    while len(pairs) < 4 or (time.perf_counter() - start < SECONDS and len(pairs) <= MAX_PAIRS):
        order = ("native", "fast") if len(pairs) % 2 else ("fast", "native")
        taken = {cpu_gemm: seconds(model, inputs, scaler, cpu_gemm) for cpu_gemm in order}
        pairs.append((taken["native"], taken["fast"]))
    return pairs[1:]


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], float]] = {
    "transformer, 4 blocks of width 64, batch 16 x 64": (
        lambda: nn.Sequential(*(Block() for _ in range(4))),
        (16, 64, 64),
        3.0,
    ),
    "nn.TransformerEncoderLayer(256), batch 4 x 64": (
        lambda: nn.TransformerEncoderLayer(256, 4, 512, dropout=0.0, batch_first=True),
        (4, 64, 256),
        3.0,
    ),
    "resnet18, batch 8 x 3 x 32 x 32": (
        lambda: torchvision.models.resnet18(num_classes=10),
        (8, 3, 32, 32),
        10.0,
    ),
}


def main() -> None:
    torch.set_num_threads(1)  # two threads on a busy machine wait for each other: 20 ms become 1000
    results = []
    for name, (build, shape, target) in MODELS.items():
        torch.manual_seed(0)
        pairs = measure(build(), torch.randn(*shape))
        low, ratio, high = statistics.quantiles([native / fast for native, fast in pairs], n=4, method="inclusive")
        native, fast = (1e3 * statistics.median(column) for column in zip(*pairs, strict=True))
        print(f"{name}: native {native:.1f} ms, fast {fast:.1f} ms", end=", ")
        print(f"{ratio:.1f} times faster ({low:.1f} to {high:.1f}; {len(pairs)} pairs; target {target:g})", flush=True)
        rounded = {key: round(value, 2) for key, value in (("ratio", ratio), ("low", low), ("high", high))}
        results.append({"name": f"fp16_cpu: {name}", **rounded, "target": target})
    for result in results:
        print(json.dumps(result))


if __name__ == "__main__":
    main()
