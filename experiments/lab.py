"""What every study shares: running its commands, reading the folders of their runs, judging claims, writing it down.

A study is `experiments/<name>/study.py` with a `STUDY`. `python experiments/reproduce.py <name>` runs it.
"""

from __future__ import annotations

import json
import math
import os
import platform
import shlex
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from gradlab.loggers.local import read_lines

HERE = Path(__file__).parent
FOLDER = Path("outputs", "reproduce")
"""Where the runs go, under the working directory."""
VERDICTS = ("confirmed", "refuted", "depends")


@dataclass
class Run:
    """One job's folder."""

    folder: Path
    sweep: str
    """Name of the sweep that it belongs to."""

    @cached_property
    def overrides(self) -> dict[str, str]:
        """What distinguishes it: the last value of each override, without the plus."""
        given = yaml.safe_load((self.folder / ".hydra" / "overrides.yaml").read_text()) or []
        return {o.lstrip("+").partition("=")[0]: o.partition("=")[2] for o in given}

    @cached_property
    def diagnosis(self) -> dict[str, Any]:
        return json.loads((self.folder / "diagnosis.json").read_text())

    @property
    def applies(self) -> bool:
        """Whether its remedy changed anything."""
        return (self.diagnosis.get("remedy") or {}).get("applies", True)

    @property
    def verdict(self) -> str | None:
        return self.diagnosis.get("verdict") if self.applies else "does not apply"

    @property
    def completed(self) -> bool:
        return self.diagnosis.get("outcome", {}).get("status") == "completed"

    @cached_property
    def lines(self) -> list[dict[str, Any]]:
        return list(read_lines(self.folder / "metrics.jsonl"))

    @cached_property
    def layers(self) -> list[dict[str, Any]]:
        """The records of layers; the first line says what their columns are."""
        return list(read_lines(self.folder / "layers.jsonl"))

    def series(self, name: str) -> list[float]:
        """A metric, an update each; of evaluations, one each."""
        return [line[name] for line in self.lines if name in line]

    @property
    def evals(self) -> list[float]:
        return self.series("eval/loss")

    @property
    def eval_loss(self) -> float:
        """The last evaluation's; infinite if it is not a number, or the run failed before one."""
        last = self.evals[-1] if self.evals else math.inf
        return last if math.isfinite(last) and self.completed else math.inf

    @property
    def final(self) -> float:
        """Median of the last 20 training losses; infinite where the run failed."""
        losses = [v for v in self.series("train/loss")[-20:] if math.isfinite(v)]
        return statistics.median(losses) if losses and self.completed else math.inf

    @property
    def norms(self) -> list[float]:
        """Gradient norms that are finite."""
        return [v for v in self.series("grad/norm") if math.isfinite(v)]

    @property
    def seconds(self) -> float:
        """A sample, the usual one."""
        rates = self.series("throughput/samples_per_second")
        return 1 / statistics.median(rates) if rates else math.nan


class Runs(list[Run]):
    """Runs that can be chosen by what they were given."""

    def where(self, sweep: str | None = None, **wanted: Any) -> Runs:
        """Runs of a sweep whose overrides have these values; `__` stands for a dot: optimizer__lr=0.1."""
        names = {name.replace("__", "."): str(value) for name, value in wanted.items()}
        return Runs(
            r
            for r in self
            if (sweep is None or r.sweep == sweep) and all(r.overrides.get(n) == v for n, v in names.items())
        )

    def median(self, value: Callable[[Run], float]) -> float:
        return statistics.median(map(value, self))

    def verdicts(self) -> dict[str, int]:
        """How often each; a claim about runs that are not there, or that did not run, is a fault of the study."""
        if not self or not all(r.applies and r.verdict for r in self):
            raise ValueError(f"no such runs, or some without a verdict: {[str(r.folder) for r in self]}")
        told = [r.verdict or "error" for r in self]
        return {v: told.count(v) for v in dict.fromkeys(told)}

    @property
    def told(self) -> str:
        """Their verdicts in words."""
        return ", ".join(f"{count} {verdict}" for verdict, count in self.verdicts().items())

    def all(self, verdict: str) -> bool:
        return bool(self) and all(r.verdict == verdict for r in self)


Measured = tuple[str, str]
"""confirmed, refuted or depends; and the numbers that say so."""


@dataclass
class Claim:
    """One claim of the sources, and how runs decide it."""

    text: str
    source: str
    """Heading in the sources."""
    measure: Callable[[Runs], Measured]


@dataclass
class Sweep:
    """One command; its runs are kept under its name."""

    name: str
    arguments: list[str]
    ranks: int = 1
    """Processes, of torchrun."""

    @property
    def command(self) -> str:
        start = ["python"] if self.ranks == 1 else ["torchrun", "--standalone", f"--nproc-per-node={self.ranks}"]
        return shlex.join([*start, "-m", "gradlab", *self.arguments])


@dataclass
class Study:
    """What is shown, by which commands, and which claims it decides."""

    title: str
    about: str
    sweeps: list[Sweep]
    claims: list[Claim] = field(default_factory=list)
    conclusion: str = ""
    by: Sequence[str] = ("remedy",)
    """Overrides that name a row of the table and a curve of the figure."""
    figure: tuple[str, ...] = ("train/loss", "grad/norm")
    shown: tuple[str, ...] = ()
    """Names of the sweeps that the figure shows; none: the first."""
    tried: str = ""


def check(condition: bool, text: str) -> Measured:
    """A claim that a measurement confirms or refutes."""
    return ("confirmed" if condition else "refuted"), text


def depends(conditions: Sequence[bool], text: str) -> Measured:
    """A claim that holds in all, none or some of the cases measured."""
    return ("confirmed" if all(conditions) else "depends" if any(conditions) else "refuted"), text


def cured(remedy: str, sweep: str | None = None, verdicts: Sequence[str] = ("healthy", "small_but_healthy")) -> Any:
    """A claim that a remedy cures: every seed is well with it."""

    def measure(runs: Runs) -> Measured:
        chosen = runs.where(sweep, remedy=remedy)
        return check(bool(chosen) and all(r.verdict in verdicts for r in chosen), f"{remedy}: {chosen.told}")

    return measure


def not_cured(remedy: str, sweep: str | None = None) -> Any:
    """A claim that it does not: no seed is well with it."""

    def measure(runs: Runs) -> Measured:
        chosen = runs.where(sweep, remedy=remedy)
        return check(bool(chosen) and all(r.verdict != "healthy" for r in chosen), f"{remedy}: {chosen.told}")

    return measure


def run(name: str, study: Study, fresh: bool = True) -> Runs:
    """Run a study's commands, or read the runs that are there; raises where a job gave no verdict."""
    for sweep in study.sweeps:
        folder = FOLDER / name / sweep.name
        if fresh or not folder.is_dir():
            shutil.rmtree(folder, ignore_errors=True)
            where = [f"hydra.sweep.dir={folder}"] if "-m" in sweep.arguments else [f"hydra.run.dir={folder}"]
            many = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={sweep.ranks}"]
            command = [sys.executable, *many * (sweep.ranks > 1), "-m", "gradlab", *sweep.arguments, *where]
            print(f"$ {sweep.command}", flush=True)
            environment = os.environ | {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
            subprocess.run(command, check=False, env=environment)
    runs = Runs(found(name, study))
    missing = [str(r.folder) for r in runs if not (r.folder / "diagnosis.json").is_file()]
    if missing or not runs:
        raise SystemExit(f"no verdict in {', '.join(missing) or FOLDER / name}")
    return runs


def found(name: str, study: Study) -> Iterator[Run]:
    for sweep in study.sweeps:
        files = (FOLDER / name / sweep.name).rglob(".hydra/overrides.yaml")
        for file in sorted(files, key=lambda f: (len(str(f)), f)):  # 10 comes after 9
            yield Run(file.parent.parent, sweep.name)


def judged(study: Study, runs: Runs) -> list[dict[str, str]]:
    """The claims with what was measured."""
    rows = []
    for claim in study.claims:
        verdict, text = claim.measure(runs)
        if verdict not in VERDICTS:
            raise ValueError(f"{claim.text}: {verdict}")
        rows.append({"claim": claim.text, "source": claim.source, "verdict": verdict, "measured": text})
    return rows


def number_text(value: float) -> str:
    return "-" if value is None or not math.isfinite(value) else f"{value:.3g}"


def table(study: Study, runs: Runs) -> list[str]:
    """A Markdown table: one row a setting, medians over its seeds."""
    groups: dict[tuple[str, ...], Runs] = {}
    for r in runs:
        groups.setdefault((r.sweep, *(r.overrides.get(k, "-") for k in study.by)), Runs()).append(r)
    several = len(study.sweeps) > 1
    head = [*(["sweep"] if several else []), *study.by, "verdicts", "final loss", "eval loss"]
    head += ["norm, median", "norm, largest", "clipped", "skipped", "first skipped"]
    rows = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for key, group in groups.items():
        first = [next((ln["attempt"] for ln in r.lines if ln.get("update/skipped")), math.nan) for r in group]
        cells = [
            number_text(group.median(lambda r: r.final)),
            number_text(group.median(lambda r: r.eval_loss)),
            number_text(group.median(lambda r: statistics.median(r.norms or [math.nan]))),
            number_text(group.median(lambda r: max(r.norms, default=math.nan))),
            f"{group.median(lambda r: (r.series('clip/fraction') or [0.0])[-1]):.0%}",
            number_text(group.median(lambda r: float(r.diagnosis.get("evidence", {}).get("skipped", 0)))),
            number_text(statistics.median(first)) if all(map(math.isfinite, first)) else "-",
        ]
        rows.append(
            "| "
            + " | ".join([*key[0 if several else 1 :], group.told if group[0].applies else "does not apply", *cells])
            + " |"
        )
    return rows


COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's, which people tell apart who see colours differently."""


def draw(study: Study, runs: Runs, path: Path) -> None:
    """Curves of the first seed, one a setting."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    first = {}
    wanted = study.shown or (study.sweeps[0].name,)
    for r in (r for r in runs if r.sweep in wanted and r.applies):
        label = ", ".join([r.sweep] * (len(wanted) > 1) + [r.overrides[k] for k in study.by if k in r.overrides])
        first.setdefault((r.sweep, label), r)
    shown = list(first.items())[: len(COLOURS)]
    plt.rcParams["svg.hashsalt"] = "gradlab"
    figure, axes = plt.subplots(1, len(study.figure), figsize=(5 * len(study.figure), 3.4), squeeze=False)
    for axis, name in zip(axes[0], study.figure, strict=True):
        for i, ((_, label), r) in enumerate(shown):
            points = [(ln["attempt"], ln[name]) for ln in r.lines if name in ln and math.isfinite(ln[name])]
            if points:
                x, y = zip(*points, strict=True)
                style = ("-", "--", ":")[i % 3]
                axis.plot(x, y, style, color=COLOURS[i], linewidth=1.1, label=label, marker="." * (len(x) < 8))
        axis.set_xlabel("update")
        axis.set_ylabel(name)
        if all(line.get_ydata().min() > 0 for line in axis.lines):
            axis.set_yscale("log")
        axis.grid(alpha=0.3)
    axes[0][-1].legend(fontsize=8, frameon=False)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def machine() -> str:
    import torch

    threads = os.environ.get("OMP_NUM_THREADS", "1")
    where = torch.cuda.get_device_name() if torch.cuda.is_available() else f"{os.cpu_count()} CPU cores"
    python = platform.python_version()
    return f"{where}, OMP_NUM_THREADS={threads}, PyTorch {torch.__version__.split('+')[0]}, Python {python}"


def write(name: str, study: Study, runs: Runs) -> None:
    """experiments/<name>/: results.json, README.md and the figure."""
    folder = HERE / name
    claims = judged(study, runs)
    told = {"title": study.title, "machine": machine(), "claims": claims}
    (folder / "results.json").write_text(json.dumps(told, indent=1) + "\n")
    draw(study, runs, folder / "figure.png")
    lines = [f"# {name}: {study.title}", "", study.about.strip(), "", "```bash"]
    lines += [sweep.command for sweep in study.sweeps]
    lines += ["```", "", f"`make reproduce NAME={name}` runs this and writes this page. On {machine()}:", ""]
    lines += [*table(study, runs), "", "Numbers are medians over the seeds; losses are those of the last 20 updates."]
    lines += ["", "![curves of the first seed](figure.png)", ""]
    if claims:
        lines += ["| claim | source | here | measured |", "|---|---|---|---|"]
        lines += [f"| {c['claim']} | {c['source']} | **{c['verdict']}** | {c['measured']} |" for c in claims]
        lines.append("")
    if study.conclusion:
        lines += ["**Conclusion.** " + study.conclusion.strip(), ""]
    if study.tried:
        lines += ["**Tried, and not used.** " + study.tried.strip(), ""]
    (folder / "README.md").write_text("\n".join(lines))


def ledger() -> None:
    """experiments/README.md: every claim that a study decided; those of the two sources, then others."""
    rows = []
    for file in sorted(HERE.glob("*/results.json")):
        rows += [(file.parent.name, c) for c in json.loads(file.read_text())["claims"]]
    ours = [(n, c) for n, c in rows if not c["source"].startswith(("GM:", "GC:"))]
    theirs = [row for row in rows if row not in ours]
    counts = {v: sum(c["verdict"] == v for _, c in theirs) for v in VERDICTS}
    text = LEDGER.format(total=len(theirs), **counts) + HEAD + listed(theirs)
    text += "\n## Other claims\n\nOf common practice, and of gradlab itself.\n\n" + HEAD + listed(ours)
    (HERE / "README.md").write_text(text)
    print(f"{len(theirs)} claims: {counts}; and {len(ours)} others")


def listed(rows: list[tuple[str, dict[str, str]]]) -> str:
    lines = []
    for i, (name, c) in enumerate(rows, 1):
        page = f"[{name}]({name}/README.md)"
        lines.append(f"| {i} | {c['claim']} | {c['source']} | **{c['verdict']}** | {c['measured']} | {page} |\n")
    return "".join(lines)


HEAD = """\
| | claim | source | here | measured | study |
|---|---|---|---|---|---|
"""

LEDGER = """\
# The ledger

What two collections of advice on gradients claim ("GM", a guide to gradient management; "GC", a note on the collapse of
the fp16 loss scale), and what runs of gradlab say. {total} claims: {confirmed} confirmed, {refuted} refuted,
{depends} that depend on the case. Every number is computed from the folders of runs by `experiments/<study>/study.py`;
`make reproduce NAME=<study>` runs a study again and writes its page and this one. A result holds for the model, data
and seeds that its page names.

What gradlab itself costs is in [cost](cost/README.md).

"""
