"""Put off `import torch` (seconds) until its first use, so that errors in the configuration are reported at once.

`importlib.util.LazyLoader` does not serve: before Python 3.12 the import statement reads `__spec__`, which loads.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any


class _Lazy(ModuleType):
    """Stands in `sys.modules` for a module until an attribute is asked for."""

    def __getattr__(self, attribute: str) -> Any:
        name = self.__name__
        if sys.modules.get(name) is self:
            del sys.modules[name]
        module = importlib.import_module(name)
        self.__dict__.update(module.__dict__)  # from now on a plain dictionary lookup
        return getattr(module, attribute)


def lazy_import(name: str) -> None:
    """From now on `import name` binds a stand-in that loads the module at its first use."""
    if name not in sys.modules:
        sys.modules[name] = _Lazy(name)
