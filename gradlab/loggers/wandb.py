"""Weights & Biases. Whatever happens to its service, the training goes on."""

from __future__ import annotations

import logging
import math
import os
import netrc
from pathlib import Path
from typing import Any

from gradlab.loggers.options import WandbOption

log = logging.getLogger(__name__)


def account() -> bool:
    """Whether this machine holds a W&B key, in the environment or in ~/.netrc."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    try:
        host = os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai").split("//")[-1].split("/")[0].split(":")[0]
        return netrc.netrc().authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False


def mode(wanted: str) -> str:
    """online with an account, offline without one, disabled in CI; WANDB_MODE decides before that."""
    if wanted != "auto":
        return wanted
    if os.environ.get("WANDB_MODE"):
        return os.environ["WANDB_MODE"]
    if os.environ.get("CI"):
        return "disabled"
    return "online" if account() else "offline"


class WandbSink:
    """One W&B run; `update` is the step metric of everything."""

    def __init__(self, option: WandbOption, folder: Path, config: dict[str, Any], group: str) -> None:
        import wandb

        settings = wandb.Settings(init_timeout=option.timeout, silent=True)
        shared = {
            "project": option.project,
            "entity": option.entity,
            "name": option.name or folder.name,
            "group": group,
            "tags": option.tags or None,
            "dir": str(folder),
            "config": config,
            "settings": settings,
        }
        try:
            self.run = wandb.init(mode=mode(option.mode), **shared)  # type: ignore[arg-type]
        except Exception as error:  # whatever the service does, the run goes on, written locally
            log.warning("W&B cannot be reached (%s): this run is written offline", str(error).splitlines()[0])
            self.run = wandb.init(mode="offline", **shared)  # type: ignore[arg-type]
        self.run.define_metric("update")
        self.run.define_metric("*", step_metric="update")

    def log(self, metrics: dict[str, Any]) -> None:
        """NaN and Inf stay visible: their count is a metric of its own, since charts leave them out."""
        bad = [k for k, v in metrics.items() if isinstance(v, float) and not math.isfinite(v)]
        self.run.log(metrics | {f"nonfinite/{name}": 1 for name in bad})

    def finish(self, summary: dict[str, Any]) -> None:
        self.run.summary.update(summary)
        self.run.finish(exit_code=0)
