"""The root of the configuration, typed; and the way from a composed configuration to objects.

Importing this module imports neither Hydra nor (on the command line, see `gradlab.base.lazy`) PyTorch.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, Optional

from omegaconf import MISSING, DictConfig, OmegaConf

from gradlab.base import components
from gradlab.base.option import FIELDS, OPTIONS, Invalid, require, within
from gradlab.base.suggestions import no_such_field
from gradlab.config.remedy_option import Remedy
from gradlab.config.trainer import TrainerOption
from gradlab.data.base import Data
from gradlab.diagnosis.options import DiagnosisOption
from gradlab.loggers.base import LoggerOption
from gradlab.measure.monitor import Monitor
from gradlab.models.base import ModelOption
from gradlab.pitfalls.base import Pitfall
from gradlab.update.accumulation import Accumulation
from gradlab.update.clip import Clip
from gradlab.update.loss import Loss
from gradlab.update.noise import Noise
from gradlab.update.optimizer import OptimizerOption
from gradlab.update.precision import PrecisionOption
from gradlab.update.schedule import Schedule

components.load()


@dataclass
class Config:
    """Everything that decides a run."""

    model: ModelOption = MISSING
    data: Data = MISSING
    loss: Loss = MISSING
    optimizer: OptimizerOption = MISSING
    schedule: Schedule = MISSING
    precision: PrecisionOption = MISSING
    clip: Clip = MISSING
    accumulation: Accumulation = MISSING
    noise: Noise = MISSING
    monitor: Monitor = MISSING
    diagnosis: DiagnosisOption = MISSING
    trainer: TrainerOption = MISSING
    logger: dict[str, LoggerOption] = field(default_factory=dict)
    """Loggers by name, beside the local files: logger=wandb, or several, logger=[wandb,tensorboard]."""
    pitfall: Optional[Pitfall] = None
    """A wrong way of updating, run for real."""
    seed: int = 0
    """Decides the initial weights, the order of the data, dropout and noise."""
    expect: Any = None
    """null: fail if the run is unhealthy; a verdict or a list: fail unless the run has one of them; any: never fail."""
    objective: Any = None
    """What a job returns to a sweeper that minimises: a metric, METRIC:best, -METRIC, or a list; null: eval/loss."""
    pretrain: Optional[str] = None
    """An experiment whose final weights this run begins with; it is run once, and kept under outputs/pretrained/."""
    init_from: Optional[str] = None
    """A run's folder or checkpoint, or a state_dict as torch.save writes it, whose weights this run begins with."""
    resume: Optional[str] = None
    """A run's folder to continue, in its own configuration and in place."""
    fix: bool = False
    """After a run that is unhealthy: look for the smallest change that cures it, as `python -m gradlab.fix` does."""
    remedy: dict[str, Remedy] = field(default_factory=dict)
    """Remedies by name, in the order in which they are applied to everything else (see gradlab.config.remedy)."""
    story: str = ""
    """What an experiment trains, in words that hold whatever is changed in it; printed as it begins."""

    def __post_init__(self) -> None:
        require(0 <= self.seed < 2**31, "seed", self.seed, "in [0, 2^31)")
        for name in self.objective if isinstance(self.objective, list) else [self.objective]:
            known = name is None or (isinstance(name, str) and re.fullmatch("-?[^:-][^:]*(:best|:last)?", name))
            require(bool(known), "objective", name, "METRIC, METRIC:last or METRIC:best, or the same after a minus")
        if self.pretrain and self.init_from:
            raise Invalid("init_from", self.init_from, "cannot be given together with pretrain")


FIELDS.extend(f.name for f in fields(Config))


def register() -> None:
    """Hand every option's dataclass to Hydra, once a process: as `<group>/<name>`, or `schema/<group>/<name>`."""
    from hydra.core.config_store import ConfigStore

    store = ConfigStore.instance()
    if "schema.yaml" in store.repo:
        return
    # Hydra copies it for each composition, and each node that it takes from it once more: a quarter of the time
    setattr(ConfigStore, "__deepcopy__", lambda self, known: self)  # noqa: B010
    store.store(name="schema", node=Config)
    groups = [f.name for f in fields(Config)]
    for (group, name), cls in OPTIONS.items():
        if group not in groups:
            continue
        store.store(group=group, name=name, node=cls, package=f"logger.{name}" if group == "logger" else None)
        if issubclass(cls, ModelOption) and cls.usual_data:
            store.store(group="data/default", name=name, node={"defaults": [f"/data/{cls.usual_data}@_here_"]})
    store.repo["schema"] = {group: store.repo[group] for group in groups if group in store.repo}  # for users' own files


def to_config(composed: DictConfig, known: Config | None = None, differ: Collection[str] = ()) -> Config:
    """The typed tree of a composed configuration; `Invalid` names the full field, such as clip.max_norm.

    known: that of another one, which has the same in all fields but those of `differ`.
    """
    values: dict[str, Any] = {}
    names = [f.name for f in fields(Config)]
    for name in composed:
        if name not in names:
            raise Invalid(str(name), OmegaConf.select(composed, str(name)), no_such_field(str(name)))
    for key in names:
        if known is not None and key not in differ:
            values[key] = getattr(known, key)
            continue
        if OmegaConf.is_missing(composed, key):
            because = ", since this model has no usual_data" if key == "data" and not values["model"].usual_data else ""
            raise Invalid(key, "???", f"must be chosen{because}: {', '.join(options(key))}")
        with within(key):
            values[key] = typed(composed[key])
    return Config(**values)


def choices(config: Config) -> dict[str, str]:
    """Group -> option, for each group with one: what Hydra's choices are once remedies have been applied."""
    return {group: name for (group, name), cls in OPTIONS.items() if type(getattr(config, group, None)) is cls}


def typed(node: Any) -> Any:
    """A node as the object that it describes; several options of a group as a dictionary of theirs."""
    if not isinstance(node, DictConfig):
        return OmegaConf.to_object(node) if OmegaConf.is_list(node) else node
    if is_dataclass(chosen := OmegaConf.get_type(node)):
        no_extras(node, [f.name for f in fields(chosen)])
        return OmegaConf.to_object(node)
    made = {}
    for name in node:
        with within(str(name)):
            made[str(name)] = typed(node[name])
    return made


def no_extras(node: DictConfig, known: list[str]) -> None:
    """Refuse a field that was appended with a plus and that nothing would read."""
    for name in node:
        if name not in known:
            allowed = ", ".join(known) or "none"
            given = OmegaConf.select(node, str(name))
            raise Invalid(str(name), given, f"no such field; there are {allowed}")


def options(group: str) -> list[str]:
    """Names of a group's options that gradlab ships."""
    return [name for g, name in OPTIONS if g == group]
