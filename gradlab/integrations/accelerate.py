"""For loops that use Accelerate."""

from __future__ import annotations

from typing import Any

from gradlab.integrations.held import PARTS
from gradlab.watch.parts import check
from gradlab.watch.session import Watch


def accelerate_watch(accelerator: Any, model: Any, optimizer: Any, schedule: Any = None, **given: Any) -> Watch:
    """A watch of what `accelerator.prepare` gave, with its scaler. given: the other arguments of `gradlab.watch`."""
    check(Watch.__init__, given, without=PARTS)
    return Watch(model, optimizer, accelerator.scaler, schedule, **given)
