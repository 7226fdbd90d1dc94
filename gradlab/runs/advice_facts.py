"""What advice on a run rests on beside its numbers: when it failed, its architecture, its pretraining."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from gradlab.base.conf import conf_dir
from gradlab.runs.record import RunRecord

ARCHITECTURES = {
    "rnn": ("weight_hh", "lstm", "gru", "rnn"),
    "transformer": ("attention", "attn", "q_proj", "transformer"),
    "cnn": ("conv", "resnet", "downsample"),
}
"""Words in the names of parameters and of the model."""
DEEP = 100
"""Layers beyond which a network counts as very deep."""


def record_for_advice(folder: Path) -> RunRecord:
    """Raise `Invalid` where there is no run, or none that can be read."""
    run = RunRecord.at(folder, "metrics.jsonl")
    run.check("diagnosis.json", "metrics.jsonl", "layers.jsonl", ".hydra/config.yaml")
    return run


def failed_at(run: RunRecord) -> int | None:
    """The first update of the failure that ended the run, or of the fall of the loss scale.

    From diagnosis.json; without one, the first of the skipped updates that the run ends with. A scale that fell from
    the first update on may have begun too high: then it is that of the last streak.
    """
    if run.status == "failed":
        evidence = run.diagnosis.get("evidence") or {}
        fell, streak = evidence.get("scale_fell_from"), run.outcome.get("first_failed_attempt")
        fell = None if fell == 1 and streak is not None and run.outcome.get("applied") else fell
        return min((at for at in (fell, streak) if at is not None), default=None)
    last: int | None = None
    for line in reversed(run.updates):
        if not line.get("update/skipped"):
            break
        last = line["attempt"]
    return last


def before_failure(run: RunRecord) -> list[dict[str, Any]]:
    """The lines of the updates before the failure, skipped ones included."""
    failed = failed_at(run)
    return [line for line in run.updates if line["attempt"] < (math.inf if failed is None else failed)]


def applied_before_failure(run: RunRecord) -> list[dict[str, Any]]:
    return [line for line in before_failure(run) if not line.get("update/skipped")]


def finding(run: RunRecord, code: str | None) -> dict[str, Any]:
    """One of the diagnosis; empty where it was not found."""
    return next((f for f in run.diagnosis.get("findings") or [] if f.get("code") == code), {})


def causes_of_verdict(run: RunRecord) -> list[str]:
    return list(finding(run, run.verdict).get("causes") or [])


def clipped_to(run: RunRecord) -> tuple[float, bool]:
    """The usual part of the gradient that a tight bound leaves, else 1; whether updates are ordinary with it."""
    found = finding(run, "overclipped")
    left = float((found.get("evidence") or {}).get("coefficient") or 1.0)
    return left, found.get("severity") != "critical"


def architecture(run: RunRecord) -> str | None:
    """A key of USUAL; None if it is not known."""
    model = run.config.get("model") or {}
    names = [run.choices.get("model", ""), str(model.get("target") or ""), *run.layer_header["names"]]
    words = " ".join(names).lower()
    others = " ".join(str(run.choices.get(group, "")) for group in ("data", "loss"))
    if any(word in others for word in ("policy", "cartpole", "reinforce")):
        return "policy"
    if (model.get("layers") or model.get("depth") or 0) > DEEP:
        return "deep"
    return next((kind for kind, known in ARCHITECTURES.items() if any(word in words for word in known)), None)


def pretraining_rate(run: RunRecord) -> float | None:
    """optimizer.lr of the run that this one began with, where its configuration can be found."""
    import yaml

    name, origin = run.config.get("pretrain"), run.config.get("init_from")
    folders: list[Path] = []
    if origin:
        path = Path(origin)
        folders.append(path if path.is_dir() else path.parent)
    if name:
        for root in (Path.cwd(), *run.path.resolve().parents):
            folders += sorted((root / "outputs" / "pretrained").glob(f"{name}-*"), reverse=True)
    configs = (RunRecord(folder).config for folder in folders)
    config = next((found for found in configs if found), None)
    if config is None and name and (file := conf_dir() / "experiment" / f"{name}.yaml").is_file():
        config = yaml.safe_load(file.read_text(encoding="utf-8"))
    lr = ((config or {}).get("optimizer") or {}).get("lr")
    return None if lr is None else float(lr)
