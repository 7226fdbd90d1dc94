"""Jobs composed once for all against Hydra composing each."""

import copy
import io
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest
from helpers import sampled
from hydra import initialize_config_dir
from hydra._internal.callbacks import Callbacks
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import run_job, setup_globals
from hydra.errors import HydraException
from hydra.types import HydraContext, RunMode
from omegaconf import OmegaConf, open_dict

from gradlab.base.conf import conf_dir
from gradlab.base.option import Invalid
from gradlab.config.compose import register
from gradlab.config.schema import to_config
from gradlab.sweep.grid import job_config
from gradlab.sweep.grid.config_loader import SweepConfigLoader


@pytest.fixture(scope="module")
def loader() -> Iterator[Any]:
    before = HydraConfig.instance().cfg
    register()
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        setup_globals()
        yield GlobalHydra.instance().config_loader()
    HydraConfig.instance().cfg = before


@pytest.fixture(scope="module")
def composer(loader: Any) -> SweepConfigLoader:
    """One for all tests, since each kind of job costs tenths of a second: what it composed before must not matter."""
    return SweepConfigLoader(loader)


def begun(loader: Any, folder: Path, *overrides: str) -> Any:
    """The sweep's own configuration."""
    typed = ["hydra.mode=MULTIRUN", f"hydra.sweep.dir={folder}", "hydra/launcher=vectorized", *overrides]
    master = loader.load_configuration("config", typed, run_mode=RunMode.MULTIRUN)
    HydraConfig.instance().set_config(master)
    return master


def by_hydra(loader: Any, cfg: Any, number: int) -> Path:
    """The folder that Hydra makes of a job, as its own launcher has it made."""
    with open_dict(cfg):
        cfg.hydra.job.id = cfg.hydra.job.num = number
    seen: list[Path] = []

    def task(cfg: Any) -> None:
        seen.append(Path(HydraConfig.get().runtime.output_dir))

    run_job(
        hydra_context=HydraContext(config_loader=loader, callbacks=Callbacks()),
        task_function=task,
        config=cfg,
        job_dir_key="hydra.sweep.dir",
        job_subdir_key="hydra.sweep.subdir",
        configure_logging=False,
    )
    return seen[0]


class Composed:
    """A loader that has composed a job before."""

    def __init__(self, cfg: Any) -> None:
        self.cfg = cfg

    def load_sweep_config(self, master: Any, overrides: list[str]) -> Any:
        return self.cfg


def files(folder: Path) -> dict[str, str]:
    return {p.name: p.read_text() for p in (folder / ".hydra").iterdir()}


JOBS = [
    ["optimizer.lr=0.1", "seed=0"],
    ["optimizer.lr=0.2", "seed=1"],
    ["optimizer.lr=1e-3", "seed=2"],
    ["seed=2", "optimizer.lr=1e-3"],  # the same in another order
    ["optimizer.lr=0.1", "optimizer.lr=0.5"],  # the last one counts
    ["optimizer.lr=0.5", "optimizer.lr=0.1"],
    ["optimizer=sgd", "optimizer.lr=0.1"],
    ["optimizer=sgd", "optimizer.lr=0.3", "optimizer.momentum=0.5"],
    ["expect=healthy"],
    ["expect=null"],
    ["story='a long story: with # signs, \"quotes\" and ${seed} in it'", "seed=3"],
    ["story='another, of seed ${seed} and rate ${optimizer.lr}'", "seed=4", "optimizer.lr=2.5"],
    ["story=" + "word-" * 60],
    ["story='ä, ü and ∇'"],
    ["optimizer.fused=true"],
    ["optimizer.fused=null"],
    ["+experiment=exploding", "optimizer.lr=0.1", "model.gain=2"],
    ["+experiment=exploding", "optimizer.lr=0.7", "model.gain=3"],
    ["+remedy=clip_norm", "optimizer.lr=0.7"],
    ["+remedy=lower_lr", "optimizer.lr=0.8"],
    ["+remedy=[clip_norm,warmup]", "optimizer.lr=0.9"],
    ["+pitfall=no_clip", "clip=norm", "clip.max_norm=3"],
    ["++optimizer.lr=0.4", "seed=5"],
    ["++optimizer.lr=0.6", "seed=5"],
    ["~story", "seed=6"],
    ["model=custom", "model.target=nets:Tiny", "+model.kwargs.width=3"],
    ["model=custom", "model.target=nets:Tiny", "+model.kwargs.width=4", "seed=9"],
    ["diagnosis.exploding={lost:5}"],
    ["diagnosis.exploding={growth:3}"],  # nothing is left of the one before
    ["model=custom", "model.target=nets:Tiny", "model.args=[1,[2,3]]"],
    ["model=custom", "model.target=nets:Tiny", "model.args=[4]"],
    [],
]


@pytest.mark.slow
def test_each_jobs_files_are_those_that_hydra_writes(
    loader: Any, composer: SweepConfigLoader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """config.yaml, hydra.yaml and overrides.yaml, to the letter, whatever was composed before."""
    master = begun(loader, tmp_path)
    composer.known.clear()  # whose folder is that of another sweep
    for number, overrides in enumerate(JOBS):
        HydraConfig.instance().set_config(master)
        cfg = loader.load_sweep_config(master, overrides)
        monkeypatch.setattr(composer, "loader", Composed(copy.deepcopy(cfg)))
        with redirect_stdout(io.StringIO()):
            wanted = files(by_hydra(loader, cfg, number))
        shutil.rmtree(tmp_path / str(number))
        HydraConfig.instance().set_config(master)
        composed = composer.compose(master, overrides)
        folder = composed.activate(number)
        composed.write(folder)
        assert folder == tmp_path / str(number)
        assert (folder / "gradlab.log").is_file()
        assert files(folder) == wanted, overrides
    assert len(composer.known) < len(JOBS)  # some were composed once for several


@pytest.mark.slow
def test_each_jobs_objects_are_those_of_its_own_configuration(
    loader: Any, composer: SweepConfigLoader, tmp_path: Path
) -> None:
    """A field that is wrong in one job is wrong in that one alone."""
    master = begun(loader, tmp_path)
    wrong = [["optimizer.lr=-1", "seed=0"], ["optimizer.lr=0.1", "seed=-1"], ["clip=norm", "clip.max_norm=-2"]]
    right = [["optimizer.lr=0.4", "seed=7"], ["clip=norm", "clip.max_norm=2"]]
    for overrides in [*wrong, *right, *wrong[:1], *[job for job in JOBS if "~story" not in job], *right]:
        composed = composer.compose(master, overrides)
        composed.activate(0)
        if overrides in wrong:
            with pytest.raises(Invalid) as wanted:
                to_config(composed.task)
            with pytest.raises(Invalid) as got:
                composed.config()
            assert str(got.value) == str(wanted.value)
            continue
        config, plain = composed.config()
        assert config == to_config(composed.task) and plain == OmegaConf.to_container(composed.task, resolve=True)


def test_the_folder_is_where_the_sweep_says(loader: Any, tmp_path: Path) -> None:
    where = "hydra.sweep.subdir='${hydra.job.num}_${hydra.job.override_dirname}'"
    master, composer = begun(loader, tmp_path, where), SweepConfigLoader(loader)
    names = []
    for number, lr in enumerate((0.1, 0.2)):
        composed = composer.compose(master, [f"optimizer.lr={lr}", "clip=norm", "seed=1"])
        names.append(composed.activate(number).name)
    assert names == ["0_clip=norm,optimizer.lr=0.1", "1_clip=norm,optimizer.lr=0.2"]


@pytest.mark.parametrize(
    "bad", sampled(["model.widht=3", "seed=null", "trainer.epochs=1.5", "optimizer.lr=abc", "clip=foo"], 4)
)
def test_a_wrong_value_is_told_in_hydras_words_and_spoils_nothing(
    loader: Any, composer: SweepConfigLoader, tmp_path: Path, bad: str
) -> None:
    master = begun(loader, tmp_path)
    name = bad.split("=")[0]
    good = {"clip": "clip=norm", "model.widht": "model.width=3"}.get(name, f"{name}=3")
    before = OmegaConf.to_yaml(composer.compose(master, [good, "noise=gaussian"]).task)
    with pytest.raises(HydraException) as wanted:
        loader.load_sweep_config(master, [bad, "noise=gaussian"])
    with pytest.raises(HydraException) as got:
        composer.compose(master, [bad, "noise=gaussian"])
    assert str(got.value) == str(wanted.value)
    assert OmegaConf.to_yaml(composer.compose(master, [good, "noise=gaussian"]).task) == before


def test_what_the_sweeper_checks_is_composed_by_the_same_way(
    loader: Any, composer: SweepConfigLoader, tmp_path: Path
) -> None:
    master = begun(loader, tmp_path)
    cfg = composer.load_sweep_config(master, ["optimizer.lr=0.25"])
    assert cfg.optimizer.lr == 0.25 and list(cfg.hydra.overrides.task) == ["optimizer.lr=0.25"]
    assert composer.get_search_path() is loader.get_search_path()  # everything else is the loader's own


def test_a_grid_costs_its_values_and_not_its_jobs(loader: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One number of a field is checked for all; of a job that is planned only what differs is done again."""
    grid = [[f"optimizer.lr={i}", f"model.gain={j}", "model.init=he"] for i in range(1, 11) for j in range(1, 11)]
    master, composer, calls = begun(loader, tmp_path), SweepConfigLoader(loader), Counter[str]()

    def counted(name: str, inner: Any) -> Any:
        def call(*arguments: Any, **more: Any) -> Any:
            calls[name] += 1
            return inner(*arguments, **more)

        return call

    composer.load_sweep_config(master, grid[0])  # which Hydra composes
    monkeypatch.setattr(job_config.OmegaConf, "update", staticmethod(counted("update", OmegaConf.update)))
    monkeypatch.setattr(job_config.JobConfig, "fill_hydra", counted("fill_hydra", job_config.JobConfig.fill_hydra))
    monkeypatch.setattr(job_config.OmegaConf, "to_object", staticmethod(counted("to_object", OmegaConf.to_object)))
    for job in grid:
        composer.load_sweep_config(master, job)
    assert not calls, "numbers that are checked take the place of numbers"
    for other in ("optimizer.lr=abc", "optimizer.lr=null", "optimizer.lr=[1]"):
        with pytest.raises(HydraException):
            composer.load_sweep_config(master, [other, *grid[0][1:]])
    calls.clear()
    for number, job in enumerate(grid):
        planned = composer.compose(master, job)
        assert planned.activate(number) == tmp_path / str(number)
        config, plain = planned.config()
        assert (config.optimizer.lr, config.model.gain) == (plain["optimizer"]["lr"], plain["model"]["gain"])  # type: ignore
        assert [f"optimizer.lr={config.optimizer.lr:g}", f"model.gain={config.model.gain:g}"] == job[:2]  # type: ignore
    assert calls["fill_hydra"] == 0 and calls["update"] <= 2 * (100 + 2 * 10) and calls["to_object"] < 200


@pytest.mark.parametrize(
    "text", ["0", "-3", "+3", "1_000", "007", "1.5", "-1.5e-3", "1e5", "1.", ".5", "0.1e400", "1e"]
)
def test_a_number_is_read_as_hydra_reads_it(composer: SweepConfigLoader, text: str) -> None:
    wanted = composer.parser.parse_override(f"optimizer.lr={text}")
    composer.parsed("optimizer.lr=7"), composer.parsed("optimizer.lr=0.7")
    got = composer.parsed(f"optimizer.lr={text}")
    assert (got.value(), type(got.value()), got.input_line) == (wanted.value(), type(wanted.value()), wanted.input_line)
