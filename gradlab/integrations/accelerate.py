"""A watch for loops that use Accelerate."""

from __future__ import annotations

from typing import Any, Unpack

from gradlab.integrations.trainer_watch import TRAINER_PARTS, WatchOptions
from gradlab.watch.arguments import check_names
from gradlab.watch.watch import Watch


def accelerate_watch(
    accelerator: Any, model: Any, optimizer: Any, schedule: Any = None, **options: Unpack[WatchOptions]
) -> Watch:
    """Watch what `accelerator.prepare` returned, with its scaler. options: the other arguments of `gradlab.watch`."""
    check_names(Watch.__init__, options, without=TRAINER_PARTS)
    return Watch(model, optimizer, accelerator.scaler, schedule, **options)
