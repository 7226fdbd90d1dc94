"""`python -m gradlab.advise FOLDER...`: max_norm, learning rate and accumulation, from what a run measured.

advice.json: `advice`, a list of `about` (clip, lr, accumulation), `says`, `override` (to be pasted; null where there
was not enough to go by), `rests_on` (the measurement) and `numbers`; `run`: what was read. Numbers that are not finite
are strings, as in metrics.jsonl.
"""

from __future__ import annotations

import json
import math
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from gradlab.command import Parser, exit_code
from gradlab.diagnosis import advise as rules
from gradlab.diagnosis.advise import Advice
from gradlab.loggers.local import plain, read_lines
from gradlab.option import Invalid, require

DESCRIPTION = """\
Advises on max_norm, the learning rate and accumulation, from a run's metrics.jsonl, layers.jsonl and configuration;
each line names the measurement that it rests on, and an override to paste. Writes FOLDER/advice.json."""
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
    import yaml

    if not folder.is_dir():
        raise Invalid("FOLDER", folder, "no such folder")
    if not (folder / "metrics.jsonl").is_file():
        jobs = sorted(str(p.parent.relative_to(folder)) for p in folder.rglob("metrics.jsonl"))
        below = f"; runs are in {', '.join(jobs[:5])}" if jobs else ""
        raise Invalid("FOLDER", folder, f"must be the folder of a run (it holds no metrics.jsonl){below}")
    try:
        lines = [x for x in read_lines(folder / "metrics.jsonl") if "train/loss" in x]
        layers = list(read_lines(folder / "layers.jsonl"))
        config = yaml.safe_load(text(folder / ".hydra" / "config.yaml")) or {}
        hydra = (yaml.safe_load(text(folder / ".hydra" / "hydra.yaml")) or {}).get("hydra") or {}
        result = json.loads(text(folder / "diagnosis.json") or "{}")
    except (ValueError, yaml.YAMLError) as error:
        raise Invalid("FOLDER", folder, f"holds a file that cannot be read ({' '.join(str(error).split())})") from None
    run = Run(folder, config, (hydra.get("runtime") or {}).get("choices") or {}, lines)
    run.verdict, run.failed_at = result.get("verdict"), first_failure(lines, result)
    run.names = next((x["names"] for x in layers if "names" in x), [])
    at = math.inf if run.failed_at is None else run.failed_at
    run.ratios = [line["update/ratio"] for line in lines if "update/ratio" in line and line["attempt"] < at]
    return run


def text(path: Path) -> str:
    return path.read_text() if path.is_file() else ""


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
    here = Path(__file__).parent
    files += [conf / "experiment" / f"{name}.yaml" for conf in (here / "conf", here.parent / "conf") if name]
    for file in files:
        if file.is_file():
            lr = ((yaml.safe_load(file.read_text()) or {}).get("optimizer") or {}).get("lr")
            return None if lr is None else float(lr)
    return None


def advise(run: Run, batch: int | None = None, world_size: int = 1, hours: float | None = None) -> list[Advice]:
    """Everything that the run's measurements say."""
    config, before = run.config, run.before
    failed = run.failed_at is not None or run.verdict in ("exploding", "diverged")
    part = rules.settled([x["grad/norm"] for x in before], failed)
    clip = {"name": run.choices.get("clip")} | (config.get("clip") or {})
    clipped = run.lines[-1].get("clip/fraction") if run.lines else None
    summed = (config.get("loss") or {}).get("reduction") == "sum"
    found = rules.clip_advice(part, run.architecture, clip, clipped, summed)
    base = float((config.get("optimizer") or {}).get("lr") or math.nan)
    line = next((x for x in run.lines if x["attempt"] == run.failed_at), {})
    if (lr := line.get("lr")) is not None:
        found.append(rules.failure_advice(f"update {run.failed_at} was the first to fail", lr, base))
    elif failed and math.isfinite(base):
        found.append(rules.failure_advice(f"the run's verdict is {run.verdict}", base, base))
    found.append(rules.update_advice(run.ratios, base))
    tuned = bool(config.get("pretrain") or config.get("init_from"))
    found += rules.finetuning_advice(pretraining_rate(run) if tuned else None, hours)
    if batch is not None:
        size = (config.get("data") or {}).get("batch_size")
        if size is None:
            found.append(Advice("accumulation", "not enough: the run's batch size is not known", None, "no .hydra"))
        else:
            found += rules.batch_advice(batch, int(size), world_size)
    return found


def write(run: Run, found: list[Advice]) -> None:
    seen = {"updates": len(run.lines), "applied_before_failure": len(run.before), "failed_at": run.failed_at}
    content = {"advice": [asdict(a) for a in found], "run": seen | {"architecture": run.architecture}}
    (run.folder / "advice.json").write_text(json.dumps(plain(content), indent=2, allow_nan=False) + "\n")


def tell(run: Run, found: list[Advice]) -> list[str]:
    lines = [f"== {run.folder}"]
    for advice in found:
        lines.append(f"{advice.about}: {advice.says}")
        lines.append(f"  from: {advice.rests_on}")
        if advice.override is not None:
            lines.append(f"  {advice.override}")
    return lines


def main(arguments: list[str] | None = None) -> int:
    """Returns the exit code."""
    return exit_code(lambda: work(sys.argv[1:] if arguments is None else arguments))


def work(arguments: list[str]) -> int:
    p = Parser("python -m gradlab.advise", description=DESCRIPTION)
    p.add_argument("folders", type=Path, nargs="+", metavar="FOLDER", help="the folder of a run")
    p.add_argument("--batch", type=int, metavar="N", help="the accumulation that makes updates of N samples")
    p.add_argument("--world-size", type=int, default=1, metavar="W", help="on so many ranks (1)")
    p.add_argument("--hours", type=float, metavar="H", help="hours of data to fine-tune on")
    args = p.parse_args(arguments)
    require(args.batch is None or args.batch >= 1, "--batch", args.batch, ">= 1")
    require(args.world_size >= 1, "--world-size", args.world_size, ">= 1")
    require(args.hours is None or args.hours > 0, "--hours", args.hours, "> 0")
    for run in [read(folder) for folder in args.folders]:
        found = advise(run, args.batch, args.world_size, args.hours)
        write(run, found)
        print(*tell(run, found), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
