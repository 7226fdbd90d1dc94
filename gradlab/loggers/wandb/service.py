"""W&B's service: whether there is an account and a server that answers, and how a W&B run begins and ends in time."""

from __future__ import annotations

import logging
import netrc
import os
import tempfile
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from typing import Any

log = logging.getLogger(__name__)
ASKING, SENDING, LEAVING = 0.25, 0.6, 0.05
"""Parts of the time-out at the end: for tables and files, of which the service is asked; for sending what is left; for
leaving W&B's background process to itself."""


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
    """Whether a server answers, whatever the answer."""
    try:
        urllib.request.urlopen(url, timeout=seconds).close()
    except urllib.error.HTTPError:
        return True
    except (OSError, ValueError):  # refused, unknown, timed out; not an address
        return False
    return True


def within(seconds: float, action: Callable[[], Any]) -> bool:
    """Whether an action ends in time; if not, it is left to itself and dies with this process."""

    def quietly() -> None:
        with suppress(Exception):  # of one that is abandoned, whatever becomes of it
            action()

    thread = threading.Thread(target=quietly, daemon=True)
    thread.start()
    thread.join(seconds)
    return not thread.is_alive()


def begin(wanted: str, timeout: float, settings: dict[str, Any], **shared: Any) -> Any:
    """A W&B run, offline where its server does not answer in time."""
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # at exit its reporter waits 30 s for a dead network
    os.environ.setdefault("WANDB_SILENT", "true")  # gradlab prints what matters itself
    import wandb

    find_room()
    quiet: dict[str, Any] = {"silent": True, "console": "off", "symlink": False, "disable_job_creation": True}
    quiet["x_transaction_log_flush_interval"] = 0.5  # seconds of lines that a kill may cost; 15 without
    shared["settings"] = wandb.Settings(init_timeout=timeout, finish_timeout=timeout * SENDING, **quiet, **settings)
    if wanted == "online" and not answers(server(), timeout):
        log.warning("%s does not answer: this W&B run is written offline", server())
        wanted = "offline"
    try:
        return wandb.init(mode=wanted, **shared)  # type: ignore[arg-type]
    except Exception as error:
        if wanted != "online":
            raise
        log.warning("W&B failed (%s): this run is written offline", (str(error).splitlines() or [repr(error)])[0])
        abandon()
        return wandb.init(mode="offline", **shared)


def find_room() -> None:
    """Give W&B a temporary folder for what it keeps in this user's home, where that cannot be written: its background
    process would print its log in place of gradlab's lines, and the run's files would be lost."""
    from platformdirs import user_cache_dir, user_data_dir  # a dependency of W&B

    for name, usual in (("WANDB_CACHE_DIR", user_cache_dir("wandb")), ("WANDB_DATA_DIR", user_data_dir("wandb"))):
        try:
            os.makedirs(os.environ.get(name, usual), exist_ok=True)
        except OSError:
            os.environ[name] = tempfile.mkdtemp(prefix="wandb-")


def print_address(run: Any, *parts: str) -> None:
    """Print the address of a W&B run, or the command that sends its parts, which a shell may expand."""
    if run.offline:
        print(f"W&B: offline; to send it: wandb sync {' '.join(parts)}", flush=True)
    elif run.url:
        print(f"W&B: {run.url}", flush=True)


def end(conclude: Callable[[], Any], timeout: float) -> bool:
    """Send what is left; what cannot be sent in time stays in the run's folder, for `wandb sync`. Whether it ended."""
    if not (ended := within(timeout * (1 - LEAVING), conclude)):
        log.warning("W&B does not answer: send this run later with `wandb sync --include-online` in its folder")
        abandon(timeout * LEAVING)
    return ended


def abandon(seconds: float = 0.5) -> None:
    """Leave W&B's background process to itself: at exit, it would be waited for without an end."""
    import wandb

    within(seconds, wandb.teardown)
    os.environ.pop("WANDB_SERVICE", None)
