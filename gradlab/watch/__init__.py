"""Follow the calls of a training loop of one's own: `with gradlab.watch(model, optimizer) as watch: ...`.

This package can be called: that makes a `gradlab.watch.session.Watch`. PyTorch is imported then, and not before.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from gradlab.watch.faults import Fault

if TYPE_CHECKING:
    from gradlab.watch.session import Watch

__all__ = ["Fault"]


class Callable(ModuleType):
    """The type of this module: what a package cannot be otherwise."""

    def __call__(self, *args: Any, **kwargs: Any) -> Watch:
        from gradlab.watch.session import Watch

        return Watch(*args, **kwargs)


sys.modules[__name__].__class__ = Callable
