"""Weights & Biases. Whatever happens to its service, the training goes on, and ends no later than the time-out."""

from __future__ import annotations

import logging
import math
import netrc
import os
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gradlab.loggers.options import About, Layers, WandbOption
from gradlab.loggers.summary import summary

log = logging.getLogger(__name__)


def server() -> str:
    """Address of W&B's service, or of a company's own."""
    return os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")


def account() -> bool:
    """Whether this machine holds a W&B key, in the environment or in ~/.netrc."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    try:
        host = server().split("//")[-1].split("/")[0].split(":")[0]
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


def answers(url: str, seconds: float) -> bool:
    """Whether a server answers, whatever it says."""
    try:
        urllib.request.urlopen(url, timeout=seconds).close()
    except urllib.error.HTTPError:
        return True
    except (OSError, ValueError):  # refused, unknown, timed out; not an address
        return False
    return True


def within(seconds: float, action: Callable[[], Any]) -> bool:
    """Whether an action ends in time; if not, it is left to itself and dies with this process."""
    thread = threading.Thread(target=action, daemon=True)
    thread.start()
    thread.join(seconds)
    return not thread.is_alive()


class WandbSink:
    """One W&B run; `update` is the step metric of everything."""

    def __init__(self, option: WandbOption, about: About) -> None:
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # at exit its reporter waits 30 s for a dead network
        import wandb

        self.timeout, folder, config = option.timeout, about.folder, about.config
        earlier = sorted(folder.glob("wandb/*run-*-*")) if config.get("resume") else []
        shared: dict[str, Any] = {
            "project": option.project,
            "entity": option.entity,
            "name": option.name or folder.name,
            "group": about.experiment,
            "tags": option.tags or None,
            "dir": str(folder),
            "config": config,
            "id": earlier[-1].name.rpartition("-")[2] if earlier else None,
            "resume": "allow" if earlier else None,
            "settings": wandb.Settings(
                init_timeout=option.timeout, finish_timeout=option.timeout, silent=True, console="off"
            ),
        }
        wanted: Any = mode(option.mode)
        if wanted == "online" and not answers(server(), option.timeout):
            log.warning("%s does not answer: this W&B run is written offline", server())
            wanted = "offline"
        try:
            self.run = wandb.init(mode=wanted, **shared)
        except Exception as error:
            log.warning("W&B failed (%s): this run is written offline", str(error).splitlines()[0])
            self.abandon()
            self.run = wandb.init(mode="offline", **shared)
        self.run.define_metric("update")
        self.run.define_metric("*", step_metric="update")

    def log(self, metrics: dict[str, Any], layers: Layers | None) -> None:
        """NaN and Inf stay visible: each is counted by a metric of its own too, since charts leave them out."""
        bad = [k for k, v in metrics.items() if isinstance(v, float) and not math.isfinite(v)]
        self.run.log(metrics | {f"nonfinite/{name}": 1 for name in bad})

    def finish(self, told: dict[str, Any], folder: Path) -> None:
        """Send what is left; what cannot be sent in time stays in the run's folder, for `wandb sync`."""
        self.run.summary.update(values := summary(told))
        if not within(
            self.timeout + 1, lambda: self.run.finish(exit_code=int(values.get("status") in ("failed", "error")))
        ):
            log.warning("W&B does not answer: send this run later with `wandb sync`")
            self.abandon()

    def abandon(self) -> None:
        """Leave W&B's background process to itself: at exit, it would be waited for without an end."""
        import wandb

        within(0.5, wandb.teardown)
        os.environ.pop("WANDB_SERVICE", None)
