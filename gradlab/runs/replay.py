"""From a failed run's folder to its failing update replayed; what is printed of it, and replay.json.

replay.json:
- `attempt`, `epoch`, `error`: which update of the run it was, and what ended the run;
- `precision`, `loss_scale`, `device`: of the replay;
- `finite`: whether the replayed update could have been applied;
- `recorded`, `replayed`: `loss` and `grad_norm`, of the run and of the replay (null where it was not begun);
- `first`: see `overflow.Overflow`: phase, module, kind, call, micro_batch, operation, ranges, ...;
  null if nothing was found;
- `cause`: the same, of the first that reaches the gradient, where the first of all was absorbed; else null;
- `modules`: `module`, `kind`, `call`, `micro_batch`, `output` and `gradient` (largest magnitudes, null where there is
  none) in the order in which they ended: the last finite ones, with --all every one;
- `notes`: what is not as it was.
Numbers that are not finite are strings, as in metrics.jsonl.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradlab.base.json_lines import write_json
from gradlab.base.option import Invalid
from gradlab.base.visible import one_line
from gradlab.runs.record import RunRecord

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from gradlab.config.schema import Config
    from gradlab.diagnosis.replay.replay import Replay

NEEDED = ("model", "update", "batches", "random", "attempt", "epoch")
"""What a failed update cannot be replayed without."""
LAST = 8
"""Modules shown before the failure."""


def check_folder(folder: Path) -> None:
    """Raise `Invalid` where there is nothing to replay, and say why."""
    if not folder.is_dir():
        raise Invalid("FOLDER", folder, "no such folder")
    if (folder / "crash.pt").is_file() and (folder / ".hydra" / "overrides.yaml").is_file():
        return
    jobs = sorted(str(p.parent.relative_to(folder)) for p in folder.rglob("crash.pt"))
    if not (folder / ".hydra" / "overrides.yaml").is_file():
        below = f"; a crash.pt is in {', '.join(jobs[:5])}" if jobs else ""
        raise Invalid("FOLDER", folder, f"must be the folder of a run (it holds no .hydra/overrides.yaml){below}")
    there = ", ".join(sorted(p.name for p in folder.iterdir()))
    raise Invalid("FOLDER", folder, f"holds no crash.pt: {why_none(folder)} (it holds {there})")


def why_none(folder: Path) -> str:
    """Why a run left no crash.pt."""
    run = RunRecord(folder)
    if not run.diagnosis:
        return "the run has not ended, or was killed"
    if run.status == "failed":
        return "the run failed after an update that was applied"
    if run.status is None:
        return f"the run has no measurement: {run.diagnosis.get('sentence')}"
    return f"the run did not fail: it was {run.status}, its verdict {run.verdict}"


def run(folder: Path, limit: float | None, everything: bool) -> int:
    """Replay, write, print; returns the exit code."""
    from omegaconf import OmegaConf

    from gradlab.config.schema import to_config
    from gradlab.train import build, checkpoint

    composed = recomposed(folder)
    config = to_config(composed)
    config.resume, config.pretrain, config.init_from = str(folder), None, None  # its weights are in crash.pt
    crash = checkpoint.load("crash.pt", folder / "crash.pt", needed=NEEDED)
    now: Any = OmegaConf.to_container(composed, resolve=True)
    with build.threads(config.trainer.threads), checkpoint.taken("crash.pt", folder / "crash.pt"):
        notes = changed(crash.get("config") or {}, now)
        found, scale, device = again(config, crash, limit, notes)
    recorded = next((x for x in RunRecord(folder).lines if x.get("attempt") == crash["attempt"]), {})
    content = {
        "attempt": crash["attempt"],
        "epoch": crash["epoch"],
        "error": crash.get("error"),
        "precision": type(config.precision).__name__.lower(),
        "loss_scale": scale,
        "device": device,
        "finite": found.finite,
        "recorded": {"loss": recorded.get("train/loss"), "grad_norm": recorded.get("grad/norm")},
        "replayed": {"loss": found.loss, "grad_norm": found.grad_norm},
        "first": asdict(found.first) if found.first else None,
        "cause": asdict(found.cause) if found.cause else None,
        "modules": table(found, everything),
        "notes": notes,
    }
    write_json(folder / "replay.json", content)
    print(*summary_lines(found, content, everything), f"replay: {one_line(str(folder / 'replay.json'))}", sep="\n")
    return int(found.finite or found.first is None)


def recomposed(folder: Path) -> DictConfig:
    """The configuration of a run, composed again from what was typed, its remedies included."""
    from gradlab.config.compose import compose
    from gradlab.config.remedy import treated

    run = RunRecord(folder)
    name = (run.hydra.get("job") or {}).get("config_name") or "config"
    return treated(compose([*run.typed, f"hydra.searchpath={run.config_dirs}"], name), run.typed).composed


def again(config: Config, crash: dict[str, Any], limit: float | None, notes: list[str]) -> tuple[Replay, float, str]:
    """The failing update on the model that the configuration builds; the loss scale, and the device."""
    import torch

    from gradlab.base import randomness
    from gradlab.base.distributed import World
    from gradlab.data.tree import mapped
    from gradlab.diagnosis.replay.replay import replay
    from gradlab.train import build, build_data

    if config.trainer.device == "cuda" and not torch.cuda.is_available():
        config.trainer.device = "cpu"
    device = build.pick_device(config, World())
    ran = crash.get("device", device.type)
    if ran != device.type:
        notes.append(f"the run was on {ran}, this is {device.type}: sums are rounded in another order")
    size = crash.get("world_size", 1)
    if size > 1:
        notes.append(f"the run had {size} ranks; their micro-batches run here one after another: {crash['ranks']}")
    build.deterministic(config.trainer.deterministic)
    randomness.seed_all(config.seed)
    data, loss = build_data.load_data(config, device)
    model = build.build_model(config, data, loss, device, World()).module
    build.load_weights("crash.pt", "model", model, crash)
    precision = config.precision.build(device)
    precision.load_state_dict(crash["update"]["precision"])
    batches = [mapped(lambda t: t.to(device), batch) for batch in crash["batches"]]
    randomness.set_random_state(crash["random"])
    return replay(model.train(), loss, precision, batches, size, limit), precision.scale.item(), device.type


def changed(before: dict[str, Any], now: dict[str, Any], path: str = "") -> list[str]:
    """Where the configuration that is composed today is not the one that ran."""
    notes = []
    for key in sorted({*before, *now} - ({"resume", "story"} if not path else set())):
        a, b = before.get(key), now.get(key)
        if isinstance(a, dict) and isinstance(b, dict):
            notes += changed(a, b, f"{path}{key}.")
        elif a != b and before:
            notes.append(f"{path}{key} is {b} in the configuration composed today; the run had {a}")
    return notes


def table(found: Replay, everything: bool) -> list[dict[str, Any]]:
    """Every call of a module, or the last finite ones before the first failure."""
    calls = [c for c in found.calls if c.number]
    if not everything:
        order = found.first_order
        calls = [c for c in calls if order is None or c.done < order]
        calls = [c for c in calls if c.output is not None and c.output - c.output == 0][-LAST:]
    return [
        {
            "module": c.name,
            "kind": c.kind,
            "call": c.number,
            "micro_batch": c.batch + 1,
            "output": c.output,
            "gradient": c.grad,
        }
        for c in calls
    ]


def summary_lines(found: Replay, content: dict[str, Any], everything: bool) -> list[str]:
    """The lines that are printed, and the table of modules."""
    where = f"update {content['attempt']}, epoch {content['epoch']}"
    lines = [f"{where}, replayed: {content['precision']}, loss scale {content['loss_scale']:g}, {content['device']}"]
    lines += [f"note: {note}" for note in content["notes"]]
    lines += [f"recorded: {numbers(content['recorded'])}; replayed: {numbers(content['replayed'])}"]
    if found.first is None:
        lines.append("the replayed update is finite: what is in crash.pt does not lead to the failure")
    else:
        lines += [str(found.first), *(f"  {r}" for r in found.first.ranges)]
        if found.first.healthy is not None:
            lines.append(
                f"last finite: {found.first.healthy or 'the model'}, at most {found.first.healthy_max or 0:.4g}"
            )
        if found.finite:
            lines.append("yet the update is finite: that was absorbed, and does not reach the gradient")
        elif found.cause is not None:
            lines.append(f"that was absorbed; the first that reaches the gradient: {found.cause}")
    if rows := content["modules"]:
        lines.append("every module, in the order of execution:" if everything else "the last modules that were finite:")
        width = max(len(row["module"] or "(the model)") for row in rows)
        kinds = max(len(row["kind"]) for row in rows)
        lines.append(f"  {'module':{width}}  {'kind':{kinds}}  batch  call  largest output  its gradient")
        for row in rows:
            name, call = row["module"] or "(the model)", f"{row['micro_batch']:>5}  {row['call']:>4}"
            shown = f"{number(row['output']):>14}  {number(row['gradient']):>12}"
            lines.append(f"  {name:{width}}  {row['kind']:{kinds}}  {call}  {shown}")
    return lines


def number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def numbers(pair: dict[str, float | None]) -> str:
    return f"loss {number(pair['loss'])}, gradient norm {number(pair['grad_norm'])}"
