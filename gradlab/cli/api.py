"""For notebooks and programs: the commands as functions, with objects where a configuration has names.

    run = gradlab.run("+experiment=exploding", "optimizer.lr=0.1", model=Net(), data=(x, y), loss=my_loss)
    run.verdict, run.metrics, run.layers
    run.again("optimizer.lr=0.01").verdict
    run.fix()["proven"]
    gradlab.compare(run, run.again("optimizer.lr=0.01"))

Errors are raised with the words of the command. Hydra knows one program at a time, so that calls from several threads
wait for each other.
"""

from __future__ import annotations

import copy
import functools
import html
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from gradlab.base import errors
from gradlab.base.importing import GIVEN, PROGRAM, load_object
from gradlab.base.option import Invalid
from gradlab.runs.outcome_class import HEALTHY
from gradlab.runs.record import RunRecord

if TYPE_CHECKING:
    import torch
    from pandas import DataFrame

QUIET = ("hydra/job_logging=disabled", "hydra/hydra_logging=disabled")
"""Hydra would set up logging for the whole program."""
TURN = threading.Lock()


class Objects(TypedDict, total=False):
    """What a program gives in place of names: see `run`."""

    model: torch.nn.Module | Callable[..., torch.nn.Module]
    data: Any
    loss: Callable[..., Any]


class Run:
    """A run and what came out of it, read from its folder."""

    def __init__(self, folder: str | Path, objects: Objects | None = None) -> None:
        """objects: what a program gave in place of names. Raises `Invalid` unless `folder` is that of a run."""
        self.record = RunRecord.at(Path(folder), "metrics.jsonl", "diagnosis.json")
        self.objects = objects or Objects()

    @property
    def folder(self) -> Path:
        return self.record.path

    @property
    def verdict(self) -> str | None:
        """The first cause, or that the run is healthy; None of a run that has not ended."""
        return self.record.verdict

    @property
    def healthy(self) -> bool:
        return self.verdict in HEALTHY

    @property
    def evidence(self) -> list[str]:
        """What was found, the first cause first: a sentence each, with its numbers."""
        return [found["sentence"] for found in self.record.diagnosis.get("findings") or []]

    @property
    def suggestions(self) -> list[list[str]]:
        """Changes to try, the likeliest first: overrides for `again`."""
        found = self.record.diagnosis.get("remedies") or []
        return [list(one["overrides"]) for one in found if one.get("overrides")]

    @property
    def metrics(self) -> DataFrame:
        """A row for each line of metrics.jsonl."""
        return frame(self.record.lines)

    @property
    def layers(self) -> DataFrame:
        """The gradient norm of each parameter: a column each, and a row for each update that was recorded."""
        names = self.record.layer_header["names"]
        rows = [
            {"attempt": line["attempt"], **dict(zip(names, line["grad/layer"], strict=True))}
            for line in self.record.layer_records
        ]
        return frame(rows).set_index("attempt") if rows else frame(rows)

    def again(self, *changes: str) -> Run:
        """The same run with overrides that replace its own."""
        from gradlab.base.command import pasted

        return run(*pasted(self.record.overrides, list(changes)), **self.objects)

    def fix(self, runs: float = 4.0, seeds: int = 2, seconds: float | None = None) -> dict[str, Any]:
        """Look for the smallest change that cures it, and prove it, as `python -m gradlab.fix FOLDER` does.

        Returns the content of fix.json, whose `proven` is None where nothing cured it. Raises `Invalid` of a run that
        has nothing to be cured of.
        """
        from gradlab.cli import fix
        from gradlab.sweep.search import fix_plan

        def search(arguments: list[str]) -> int:
            return max(command(arguments).exit_codes, default=0)

        with given(self.objects):
            fix.fix(search, self.folder, runs, seconds, seeds)
        return fix_plan.kept(fix_plan.place(self.record))

    def __repr__(self) -> str:
        return f"<Run {self.folder}: {self.verdict or self.record.state}>"

    def _repr_html_(self) -> str:
        """The run's page, in a frame."""
        return page(self.folder / "report.html") or f"<p>{html.escape(repr(self))}</p>"


class Sweep:
    """The jobs of a sweep."""

    def __init__(self, folder: str | Path, objects: Objects | None = None) -> None:
        self.folder, self.objects = Path(folder), objects or Objects()
        if not (self.folder / "multirun.yaml").is_file():
            raise Invalid("FOLDER", folder, "must be the folder of a sweep (it holds no multirun.yaml)")

    @property
    def results(self) -> DataFrame:
        """A row for each job: results.csv."""
        return pandas().read_csv(self.folder / "results.csv")

    @property
    def runs(self) -> list[Run]:
        from gradlab.runs.sweep_record import SweepRecord

        return [Run(job.path, self.objects) for job in SweepRecord(self.folder).jobs]

    def __repr__(self) -> str:
        return f"<Sweep {self.folder}>"

    def _repr_html_(self) -> str:
        return page(self.folder / "report.html") or f"<p>{html.escape(repr(self))}</p>"


def run(*overrides: str, **objects: Unpack[Objects]) -> Run:
    """Train one configuration and diagnose it, as `python -m gradlab OVERRIDES` does.

    model: a `torch.nn.Module`, of which each run trains a copy, or a function or class that makes one
    data: pairs of an input and a target, a tuple of a training and a test set, or a function that returns these
    loss: a function of (outputs, targets)

    Raises `ValueError` with what is wrong in the overrides, and whatever a user's own code raises.
    """
    with given(objects) as chosen:
        session = command([*chosen, *overrides])
    if len(session.folders) != 1:
        raise ValueError("these overrides are a sweep: gradlab.multirun(...)")
    return Run(session.folders[0], objects)


def multirun(*overrides: str, launcher: str | None = None, **objects: Unpack[Objects]) -> Sweep:
    """Train several configurations, as `python -m gradlab --multirun OVERRIDES` does; see `run` for the objects.

    launcher: such as "vectorized", which trains them together; None: one after the other.
    """
    chosen_launcher = [f"hydra/launcher={launcher}"] if launcher else []
    with given(objects) as chosen:
        session = command(["--multirun", *chosen, *overrides, *chosen_launcher])
    return Sweep(next(iter(session.sweeps)), objects)


def compare(*runs: Run | Sweep | str | Path) -> DataFrame:
    """A row for each run: the fields of its configuration that are not those of all, its verdict, and its numbers.

    The numbers are those of `python -m gradlab.list`. runs: what `run`, `multirun` and `load` return, or folders; of a
    sweep its runs.
    """
    opened = [load(one) if isinstance(one, str | Path) else one for one in runs]
    records = [r.record for one in opened for r in (one.runs if isinstance(one, Sweep) else [one])]
    if not records:
        raise ValueError("compare(...) needs runs")
    names = dict.fromkeys(name for record in records for name in record.fields)
    differ = [n for n in names if any(r.fields.get(n) != records[0].fields.get(n) for r in records)]
    rows = [{n: r.fields.get(n) for n in differ} | {"verdict": r.verdict} | r.numbers for r in records]
    return frame(rows).set_axis([str(record.path) for record in records])


def load(folder: str | Path) -> Run | Sweep:
    """What is in a folder that a command, or a program, left."""
    return Sweep(folder) if (Path(folder) / "multirun.yaml").is_file() else Run(folder)


def command(arguments: list[str]) -> Any:
    """Run the arguments of `python -m gradlab`; returns the session. Raises what a command prints."""
    from hydra.core.global_hydra import GlobalHydra

    from gradlab.cli import main
    from gradlab.cli.session import RAISES, current
    from gradlab.config.compose import forget

    with TURN, environment("HYDRA_FULL_ERROR", "1"):
        if GlobalHydra.instance().is_initialized():
            raise ValueError("gradlab cannot run inside of another program of Hydra")
        forget()
        token = RAISES.set(True)
        try:
            main.command([*arguments, *QUIET])
        except Exception as error:
            raised(error)
        finally:
            RAISES.reset(token)
        session = current()
    for failure in session.failures:
        raised(failure)
    return session


def raised(error: BaseException) -> None:
    """Raise an error in the words of the command, if it is a user's."""
    message = errors.explain(error)
    if message is None:
        raise error
    raise ValueError(message) from error


@contextmanager
def given(objects: Objects) -> Iterator[list[str]]:
    """What a program gave stands for names of the configuration meanwhile; gives the overrides that choose it."""
    for name in objects:
        if name not in ("model", "data", "loss"):
            raise TypeError(f"{name}: must be one of model, data, loss; all else is an override, such as 'seed=1'")
    token = GIVEN.set({name: maker(name, one) for name, one in objects.items()})
    try:
        yield [o for name, one in objects.items() for o in (f"{name}=custom", f"{name}.target={target(name, one)}")]
    finally:
        GIVEN.reset(token)


def maker(name: str, one: Any) -> Callable[..., Any]:
    """What a target names: called for each run."""
    import torch

    if name == "model" and isinstance(one, torch.nn.Module):
        return functools.partial(copy.deepcopy, one)
    return one if callable(one) and (name != "data" or not hasattr(one, "__getitem__")) else lambda: one


def target(name: str, one: Any) -> str:
    """The name under which a command could import an object, so that what is printed can be pasted; else that a program
    gave it."""
    module, path = getattr(one, "__module__", None), getattr(one, "__qualname__", None)
    named = f"{module}:{path}"
    if module in (None, "__main__") or not path or not callable(one):
        return f"{PROGRAM}:{name}"
    try:
        return named if load_object(name, named) is one else f"{PROGRAM}:{name}"
    except Invalid:
        return f"{PROGRAM}:{name}"


@contextmanager
def environment(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def pandas() -> Any:
    try:
        import pandas as found
    except ImportError:
        raise ImportError("tables need pandas: pip install 'gradlab[notebook]'") from None
    return found


def frame(rows: list[dict[str, Any]]) -> DataFrame:
    made: DataFrame = pandas().DataFrame(rows)
    return made


def page(path: Path) -> str | None:
    if not path.is_file():
        return None
    whole = html.escape(path.read_text(encoding="utf-8"))
    return f'<iframe srcdoc="{whole}" sandbox="allow-scripts" style="width:100%;height:720px;border:0"></iframe>'
