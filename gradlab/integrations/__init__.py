"""`gradlab.watch` in the trainers of other libraries, with one line each. A library is imported when it is used.

lightning.Trainer(callbacks=[gradlab.integrations.LightningWatch()])
transformers.Trainer(callbacks=[gradlab.integrations.TransformersWatch()])
with gradlab.integrations.accelerate_watch(accelerator, model, optimizer, schedule): ...
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gradlab.integrations.accelerate import accelerate_watch as accelerate_watch
    from gradlab.integrations.lightning import LightningWatch as LightningWatch
    from gradlab.integrations.transformers import TransformersWatch as TransformersWatch

LAZY = {
    "LightningWatch": "gradlab.integrations.lightning",
    "TransformersWatch": "gradlab.integrations.transformers",
    "accelerate_watch": "gradlab.integrations.accelerate",
}


def __getattr__(name: str) -> Any:
    if name not in LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *LAZY])
