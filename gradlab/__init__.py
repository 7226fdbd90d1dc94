"""gradlab: a laboratory for gradient failures.

The command is `python -m gradlab`. `gradlab.update`, `measure`, `diagnosis`, `models` and `data` are plain PyTorch that
can be imported alone: `gradlab.update.step` is one update, `gradlab.update.clip` and the others are its parts.

The modules beside this one are commands, such as `python -m gradlab.list`: a few lines each. Everything else is in the
packages.
"""

import sys

if sys.argv[:1] == ["-m"] and {"gradlab.audit", "-mgradlab.audit"} & {*sys.orig_argv} and not sys.flags.safe_path:
    del sys.path[0]  # the working directory: the audit runs nothing of what it reads, whatever its modules are called

from typing import Any

import gradlab.base.parent  # noqa: F401  (who started this process is known from here on)

__version__ = "0.1.0"

LAZY = {
    "check_gradients": "gradlab.diagnosis.oneshot",
    "compare": "gradlab.cli.api",
    "diagnose_gradients": "gradlab.diagnosis.oneshot",
    "integrations": "gradlab.integrations",
    "load": "gradlab.cli.api",
    "multirun": "gradlab.cli.api",
    "run": "gradlab.cli.api",
    "watch": "gradlab.watch",
}
"""What can be had from here, and where it is: PyTorch is imported when it is asked for."""


def __getattr__(name: str) -> Any:
    if name not in LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    module = importlib.import_module(LAZY[name])
    return module if LAZY[name] == f"{__name__}.{name}" else getattr(module, name)  # `watch` can be called itself


def __dir__() -> list[str]:
    return sorted([*globals(), *LAZY])
