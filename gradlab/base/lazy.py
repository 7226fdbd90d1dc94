"""Put off `import torch` (seconds) until its first use, so that errors in the configuration are reported at once.

And `import torch._dynamo`, as many seconds and 150 MB again, until something is compiled.

`importlib.util.LazyLoader` cannot be used: before Python 3.12 the import statement reads `__spec__`, which loads.
"""

from __future__ import annotations

import gc
import importlib
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_loader
from types import ModuleType
from typing import Any


class _Lazy(ModuleType):
    """Stands in `sys.modules` for a module until an attribute is asked for."""

    __file__ = None  # `inspect` looks for it in every module

    def __getattr__(self, attribute: str) -> Any:
        name = self.__name__
        if sys.modules.get(name) is self:
            del sys.modules[name]
        # not the compiler: by then the user's model exists, whose open files a last collection closes
        module = import_uncollected(name) if name == "torch" else importlib.import_module(name)
        self.__dict__.update(module.__dict__)  # from now on a plain dictionary lookup
        return getattr(module, attribute)


class _Loaded(MetaPathFinder, Loader):
    """Finds a submodule that its package has imported while a stand-in was asked for it: else it is loaded twice."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        there = target is None and name in sys.modules and "." in name
        return spec_from_loader(name, self) if there else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        self.own = sys.modules[spec.name].__spec__
        return sys.modules[spec.name]

    def exec_module(self, module: ModuleType) -> None:
        vars(module)["__spec__"] = self.own


class _LazyDynamo(_Lazy):
    """What PyTorch's optimizers use of `torch._dynamo`, which without a compiled function does nothing."""

    def __init__(self) -> None:
        super().__init__("torch._dynamo")
        self.not_compiled: list[Any] = []

    def graph_break(self, msg: str = "") -> None:
        pass

    def disable(self, fn: Any = None, *args: Any, **options: Any) -> Any:
        if fn is None or not args or "reason" in options:  # not by torch._compile, which names `recursive` by position
            return self.__getattr__("disable")(fn, *args, **options)
        self.not_compiled.append(fn)
        sys.modules["torch"]._dynamo = self  # type: ignore[attr-defined]  # looked up at every step of an optimizer
        return fn

    def __getattr__(self, attribute: str) -> Any:
        functions, self.not_compiled = self.not_compiled, []
        for function in functions:
            vars(function).pop("__dynamo_disable", None)  # torch._compile holds the answer there: it asks again
        return super().__getattr__(attribute)


def lazy_import(name: str) -> None:
    """From now on `import name` binds a stand-in that loads the module at its first use."""
    if name not in sys.modules:
        if not any(isinstance(finder, _Loaded) for finder in sys.meta_path):
            sys.meta_path.insert(0, _Loaded())
        sys.modules[name] = _LazyDynamo() if name == "torch._dynamo" else _Lazy(name)


def import_uncollected(name: str) -> ModuleType:
    """Import what stays until the process ends: the garbage collector passes over it, now and from then on.

    A seventh of the processor's time of a short command is spent in collections that find nothing.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        module = importlib.import_module(name)
        gc.freeze()
    finally:
        if enabled:
            gc.enable()
    return module
