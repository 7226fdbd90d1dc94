"""A run that is over, read from its folder: its configuration, its updates, and when it began to fail."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gradlab.base.conf import conf_dir
from gradlab.base.json_lines import read_lines
from gradlab.base.option import Invalid
from gradlab.runs import contents as folders
from gradlab.runs.files import runs_below

ARCHITECTURES = {
    "rnn": ("weight_hh", "lstm", "gru", "rnn"),
    "transformer": ("attention", "attn", "q_proj", "transformer"),
    "cnn": ("conv", "resnet", "downsample"),
}
"""Words in the names of parameters and of the model."""
DEEP = 100
"""Layers beyond which a network counts as very deep."""


@dataclass
class Run:
    """What is read of a run."""

    folder: Path
    config: dict[str, Any]
    choices: dict[str, str]
    lines: list[dict[str, Any]]
    """The lines of updates."""
    failed_at: int | None = None
    """The first update of the failure that ended the run, or of the fall of the loss scale."""
    verdict: str | None = None
    names: list[str] = field(default_factory=list)
    """Of the parameters."""
    ratios: list[float] = field(default_factory=list)

    @property
    def before(self) -> list[dict[str, Any]]:
        """The updates that were applied before the failure."""
        at = math.inf if self.failed_at is None else self.failed_at
        return [x for x in self.lines if x["attempt"] < at and not x.get("update/skipped")]

    @property
    def architecture(self) -> str | None:
        """A key of USUAL; None if it cannot be told."""
        model = self.config.get("model") or {}
        words = " ".join([self.choices.get("model", ""), str(model.get("target") or ""), *self.names]).lower()
        others = " ".join(str(self.choices.get(group, "")) for group in ("data", "loss"))
        if any(word in others for word in ("policy", "cartpole", "reinforce")):
            return "policy"
        if (model.get("layers") or model.get("depth") or 0) > DEEP:
            return "deep"
        return next((kind for kind, known in ARCHITECTURES.items() if any(word in words for word in known)), None)


def read(folder: Path) -> Run:
    """Raise `Invalid` where there is no run, or none that can be read."""
    if not folder.is_dir():
        raise Invalid("FOLDER", folder, "no such folder")
    if not (folder / "metrics.jsonl").is_file():
        says = f"must be the folder of a run (it holds no metrics.jsonl){runs_below(folder)}"
        raise Invalid("FOLDER", folder, says)
    told = folders.read(folder, most=0)
    try:
        lines = [x for x in read_lines(folder / "metrics.jsonl") if "train/loss" in x]
        layers = list(read_lines(folder / "layers.jsonl"))
    except ValueError as error:
        raise Invalid("FOLDER", folder, f"holds a file that cannot be read ({' '.join(str(error).split())})") from None
    run = Run(folder, told.config, told.choices, lines)
    run.verdict, run.failed_at = told.diagnosis.get("verdict"), first_failure(lines, told.diagnosis)
    run.names = next((x["names"] for x in layers if "names" in x), [])
    at = math.inf if run.failed_at is None else run.failed_at
    run.ratios = [line["update/ratio"] for line in lines if "update/ratio" in line and line["attempt"] < at]
    return run


def first_failure(lines: list[dict[str, Any]], result: dict[str, Any]) -> int | None:
    """From diagnosis.json; without one, the first of the skipped updates that the run ends with."""
    evidence, outcome = result.get("evidence") or {}, result.get("outcome") or {}
    if outcome.get("status") == "failed":
        known = [evidence.get("scale_fell_from"), outcome.get("first_failed_attempt")]
        return min((at for at in known if at is not None), default=None)
    last: int | None = None
    for line in reversed(lines):
        if not line.get("update/skipped"):
            break
        last = line["attempt"]
    return last


def pretraining_rate(run: Run) -> float | None:
    """optimizer.lr of the run that this one began with, where its configuration can be found."""
    import yaml

    name, origin = run.config.get("pretrain"), run.config.get("init_from")
    folders: list[Path] = []
    if origin:
        path = Path(origin)
        folders.append(path if path.is_dir() else path.parent)
    if name:
        for root in (Path.cwd(), *run.folder.resolve().parents):
            folders += sorted((root / "outputs" / "pretrained").glob(f"{name}-*"), reverse=True)
    files = [file for f in folders for file in (f / ".hydra" / "config.yaml", f / "config.yaml")]
    files += [conf_dir() / "experiment" / f"{name}.yaml"] * bool(name)
    for file in files:
        if file.is_file():
            lr = ((yaml.safe_load(file.read_text()) or {}).get("optimizer") or {}).get("lr")
            return None if lr is None else float(lr)
    return None
