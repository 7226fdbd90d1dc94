"""`logger=`: none, one or several, each with its fields; and what one that fails costs."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from helpers import composed, trainer

from gradlab.base import errors
from gradlab.base.distributed import World
from gradlab.base.option import Invalid
from gradlab.config.compose import compose
from gradlab.config.schema import to_config
from gradlab.loggers.base import About, LoggerOption
from gradlab.loggers.local import read_run
from gradlab.loggers.options import WandbOption
from gradlab.loggers.several import TOGETHER, Loggers
from gradlab.loggers.summary import summary
from gradlab.runs.job import Job
from gradlab.train import snapshot

SMALL = ("data.samples=64", "trainer.epochs=1", "model.layers=2", "model.width=8", "clip=norm")


@dataclass
class Kept:
    """A logger that keeps what it receives, and fails on request."""

    lines: list[Any] = field(default_factory=list)
    diagnosis: dict[str, Any] = field(default_factory=dict)
    fails: bool = False
    files: list[str] = field(default_factory=list)

    def log(self, metrics: dict[str, Any], layers: Any) -> None:
        self.lines.append((metrics, layers))
        if self.fails:
            raise RuntimeError("no\nnetwork")

    def finish(self, diagnosis: dict[str, Any], folder: Path) -> None:
        self.diagnosis, self.files = diagnosis, [p.name for p in folder.iterdir()]


@dataclass
class Option(LoggerOption):
    sink: Any = None
    refuses: Exception | None = None

    def build(self, about: About) -> Any:
        self.about = about
        if self.refuses:
            raise self.refuses
        return self.sink


@pytest.mark.parametrize(
    ("overrides", "names"),
    [
        ((), []),
        (("logger=none",), []),
        (("logger=wandb", "logger.wandb.project=mine"), ["wandb"]),
        (("logger=[wandb,none]", "logger.wandb.project=mine"), ["wandb"]),
        (("+experiment=vanishing", "logger=[wandb]", "logger.wandb.project=mine"), ["wandb"]),
    ],
)
def test_loggers_are_named_and_have_their_own_fields(overrides: tuple[str, ...], names: list[str]) -> None:
    made = to_config(composed(*overrides)).logger
    assert list(made) == names
    assert all(isinstance(option, WandbOption) and option.project == "mine" for option in made.values())


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["logger=wand"], "logger=wand: did you mean wandb? It must be one of"),
        (["logger=[wandb,x]"], "logger=x: must be one of"),
        (["logger=[local,wandb]"], "none, tensorboard, wandb; the local files are always written"),
        (["logger.wandb.project=x"], "logger that logger= names; it names none"),
        (["logger=wandb", "logger.project=x"], "logger that logger= names; it names wandb"),
        (["logger=wandb", "logger.wandb.projct=x"], "did you mean project?"),
        (["logger=wandb", "+logger.wandb.more=x"], "logger.wandb.more=x: no such field"),
        (["logger=wandb", "logger.wandb.timeout=0"], "logger.wandb.timeout=0.0: must be > 0"),
    ],
)
def test_a_wrong_logger_is_told_in_a_line(overrides: list[str], said: str) -> None:
    with pytest.raises(Exception) as raised:  # Hydra's, OmegaConf's or gradlab's own
        to_config(compose(overrides))
    told = errors.explain(raised.value)
    assert told is not None and said in told and "\n" not in told


def test_every_logger_is_told_everything_and_one_that_fails_costs_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = to_config(composed(*SMALL))
    bad, good = Kept(fails=True), Kept()
    options = {"bad": Option(bad), "absent": Option(refuses=OSError("full")), "good": Option(good)}
    config.logger = dict(options)
    code = Job(config, {"seed": 0}, tmp_path, [], "run", World()).run()
    local = list(read_run(tmp_path))
    assert code == 0 and good.lines == local and len(bad.lines) == 1
    assert good.diagnosis["verdict"] and "diagnosis.json" in good.files and not bad.diagnosis
    about = options["good"].about
    assert (about.folder, about.config, about.experiment, about.lines) == (tmp_path, {"seed": 0}, "run", 0)
    named = about.layers["names"]
    assert {len(layers["grad/layer"]) for _, layers in local if layers} == {len(named)}
    assert capsys.readouterr().err.splitlines() == [
        "gradlab: logger absent failed, and the run continues without it: full",
        "gradlab: logger bad failed, and the run continues without it: no network",
    ]
    reference = trainer(tmp_path / "quiet", *SMALL)
    reference.run()
    measured = [[m["train/loss"] for m, _ in read_run(p) if "train/loss" in m] for p in (tmp_path, reference.folder)]
    assert measured[0] == measured[1]


def test_loggers_have_seen_all_lines_when_a_checkpoint_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise they wait for others, and a resumed run would not show them again."""
    config, kept = to_config(composed(*SMALL, "trainer.epochs=4", "trainer.checkpoint_every=3")), Kept()
    config.logger = {"kept": Option(kept)}
    job, at = Job(config, {}, tmp_path, [], "run", World()), []
    save = snapshot.save

    def saved(*given: Any) -> None:
        save(*given)
        at.append((len(kept.lines), sum(1 for _ in read_run(tmp_path))))

    monkeypatch.setattr(snapshot, "save", saved)
    job.run()
    assert len(at) > 2 and all(logged == written for logged, written in at)


def test_lines_that_wait_are_logged_in_time_and_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Kept()
    loggers = Loggers({"kept": Option(kept)}, About(Path(), {}, "run"))
    for i in range(TOGETHER):
        assert len(kept.lines) == 0
        loggers.log({"attempt": i}, None)
    assert [line["attempt"] for line, _ in kept.lines] == list(range(TOGETHER))
    loggers.log({"attempt": -1}, None)
    assert len(kept.lines) == TOGETHER
    monkeypatch.setattr("gradlab.loggers.several.SECONDS", -1.0)
    loggers.log({"attempt": -2}, None)
    monkeypatch.undo()
    loggers.log({"attempt": -3}, None)
    loggers.finish({}, Path())
    assert [line["attempt"] for line, _ in kept.lines[TOGETHER:]] == [-1, -2, -3]


def test_a_run_that_raises_tells_its_loggers_so(tmp_path: Path) -> None:
    config, kept = to_config(composed(*SMALL)), Kept()
    config.logger = {"kept": Option(kept)}
    job = Job(config, {}, tmp_path, [], "run", World())

    def fail() -> Any:
        raise MemoryError("no room")

    with pytest.raises(MemoryError):
        job.end(fail)
    assert kept.diagnosis == {"outcome": {"status": "error", "error": "no room"}}
    assert summary(kept.diagnosis) == {"status": "error", "error": "no room"}


def test_a_field_that_is_refused_ends_the_command() -> None:
    with pytest.raises(Invalid):
        Loggers({"it": Option(refuses=Invalid("mode", "x", "must be y"))}, About(Path(), {}, "run"))
