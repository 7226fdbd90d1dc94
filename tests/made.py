"""Folders of runs for pages, as runs leave them, with what is in them known."""

import json
import math
from pathlib import Path
from typing import Any

from gradlab.base.json_lines import Lines


def line(attempt: int, loss: float, **more: Any) -> dict[str, Any]:
    """A line of metrics."""
    values = {"update": attempt, "attempt": attempt, "epoch": 1, "train/loss": loss, "grad/norm": 2.0 * abs(loss)}
    rest = {"clip/coefficient": 1.0, "clip/fraction": 0.0, "amp/scale": 1.0, "update/skipped": False, "lr": 0.1}
    return values | rest | more


def diagnosis(verdict: str | None = "healthy", **more: Any) -> dict[str, Any]:
    """What diagnosis.json says."""
    outcome = {"status": "completed", "error": None, "attempts": 3, "applied": 3, "epochs_completed": 1, "seconds": 1.5}
    told = {"verdict": verdict, "sentence": "as it should be", "evidence": {"updates": 3}, "findings": [], "ill": False}
    rest = {"checked": ["exploding"], "unchecked": {}, "outcome": outcome, "first_overflow": None, "exit_code": 0}
    return told | rest | {"overrides": [], "planned": 3, "remedy": None, "remedies": []} | more


def layers(count: int, attempts: list[int], norm: Any) -> list[dict[str, Any]]:
    """Lines of layers.jsonl; norm(layer, attempt): of the gradient."""
    names = [f"layers.{i}.weight" for i in range(count)]
    header = {"names": names, "order": [f"layers.{i}" for i in range(count)], "modules": [], "recurrent": []}
    return [header, *({"attempt": at, "grad/layer": [norm(i, at) for i in range(count)]} for at in attempts)]


def run(
    folder: Path,
    lines: list[dict[str, Any]],
    told: dict[str, Any] | None = None,
    of_layers: list[dict[str, Any]] | None = None,
    config: str = "clip:\n  max_norm: 1.5\nseed: 0\nexpect: null\n",
    choices: str = "      clip: norm\n",
) -> Path:
    (folder / ".hydra").mkdir(parents=True)
    (folder / ".hydra" / "config.yaml").write_text(config)
    (folder / ".hydra" / "hydra.yaml").write_text(f"hydra:\n  runtime:\n    choices:\n{choices}  verbose: false\n")
    (folder / ".hydra" / "overrides.yaml").write_text("- clip=norm\n")
    for name, content in (("metrics", lines), ("layers", of_layers or [])):
        file = Lines(folder / f"{name}.jsonl")
        for one in content:
            file.write(one)
        file.close()
    if not of_layers:
        (folder / "layers.jsonl").unlink()
    if told is not None:
        (folder / "diagnosis.json").write_text(json.dumps(told))
    return folder


def collapse(folder: Path, updates: int = 100) -> Path:
    """Two epochs; an evaluation; the scale grows once, then every update from 81 on is skipped, its loss NaN."""
    lines, scale, applied = [], 64.0, 0
    for at in range(1, updates + 1):
        skipped = at > 80
        applied += not skipped
        scale = scale / 2 if skipped else scale * 2 if at == 40 else scale
        loss = math.nan if skipped else 3 - at / 100
        norm = math.inf if at == 50 else math.nan if skipped else 2.0 + at % 7
        state = {"amp/scale": scale, "update/skipped": skipped, "epoch": 1 + (at > 60), "update": applied}
        lines.append(
            line(at, loss, **state | {"grad/norm": norm, "clip/coefficient": 1.5 / norm if norm > 1.5 else 1.0})
        )
        if at == 60:
            lines.append({"update": 60, "attempt": 60, "epoch": 1, "eval/loss": 2.5, "eval/accuracy": 0.25})
    finding = {
        "code": "scale_collapse",
        "severity": "critical",
        "sentence": "no loss scale helps",
        "began": 81,
        "evidence": {"smallest_scale": 2.0**-13},
        "causes": ["the learning rate is too high"],
    }
    outcome = {
        "status": "failed",
        "error": "grad_scale is too small",
        "attempts": 100,
        "applied": 80,
        "epochs_completed": 1,
    }
    remedies = [{"name": "lower_lr", "overrides": ["optimizer.lr=0.01"], "why": "slower"}]
    told = diagnosis(
        "scale_collapse", ill=True, findings=[finding], outcome=outcome | {"seconds": 2.0}, remedies=remedies
    )
    told |= {"sentence": "no loss scale helps", "overrides": ["clip=norm", "optimizer.lr=0.03"], "planned": 200}
    norms = layers(4, list(range(1, updates + 1, 5)), lambda i, at: math.nan if at > 80 else 10.0 ** (i - 3))
    return run(folder, lines, told, norms)
