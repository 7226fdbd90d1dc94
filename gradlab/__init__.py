"""gradlab: a laboratory for gradient failures.

The command is `python -m gradlab`. `gradlab.update`, `measure`, `diagnosis`, `models` and `data` are plain PyTorch that
can be imported alone: `gradlab.update.step` is one update, `gradlab.update.clip` and the others are its parts.

The modules beside this one are commands, such as `python -m gradlab.list`: a few lines each. Everything else is in the
packages.
"""

import sys

if sys.argv[:1] == ["-m"] and {"gradlab.audit", "-mgradlab.audit"} & {*sys.orig_argv} and not sys.flags.safe_path:
    del sys.path[0]  # the working directory: the audit runs nothing of what it reads, whatever its modules are called

from typing import TYPE_CHECKING, Any

import gradlab.base.parent_process  # noqa: F401  (who started this process is known from here on)
from gradlab.base.version import __version__ as __version__

if TYPE_CHECKING:  # what is lazy below
    from gradlab import integrations as integrations
    from gradlab.cli.api import compare as compare
    from gradlab.cli.api import load as load
    from gradlab.cli.api import multirun as multirun
    from gradlab.cli.api import run as run
    from gradlab.diagnosis.gradient_check import check_gradients as check_gradients
    from gradlab.diagnosis.gradient_check import diagnose_gradients as diagnose_gradients
    from gradlab.watch import Fault
    from gradlab.watch.watch import Watch

    class watch(Watch):
        """The package, which can be called."""

        Fault = Fault


LAZY = {
    "check_gradients": "gradlab.diagnosis.gradient_check",
    "compare": "gradlab.cli.api",
    "diagnose_gradients": "gradlab.diagnosis.gradient_check",
    "integrations": "gradlab.integrations",
    "load": "gradlab.cli.api",
    "multirun": "gradlab.cli.api",
    "run": "gradlab.cli.api",
    "watch": "gradlab.watch",
}
"""What can be had from here, and where it is: PyTorch is imported when it is asked for."""


if not TYPE_CHECKING:  # a type checker would take any name

    def __getattr__(name: str) -> Any:
        if name not in LAZY:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        import importlib

        module = importlib.import_module(LAZY[name])
        return module if LAZY[name] == f"{__name__}.{name}" else getattr(module, name)  # `watch` can be called itself


def __dir__() -> list[str]:
    return sorted([*globals(), *LAZY])
