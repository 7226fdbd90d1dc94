"""The options of `logger=`: each imports its library when it is built."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

from gradlab.base.option import option
from gradlab.loggers.base import About, RunLogger
from gradlab.loggers.settings import TensorBoardSettings, WandbSettings


@option("logger", "wandb")
@dataclass
class WandbOption(WandbSettings):
    """Weights & Biases: online with an account, offline without."""

    def build(self, about: About) -> Optional[RunLogger]:
        from gradlab.loggers.wandb.logger import WandbLogger

        return WandbLogger(self, about)


@option("logger", "tensorboard")
@dataclass
class TensorBoardOption(TensorBoardSettings):
    """TensorBoard's event files, in the run's folder."""

    def build(self, about: About) -> Optional[RunLogger]:
        from gradlab.loggers.tensorboard import TensorBoardLogger

        return TensorBoardLogger(self, about)
