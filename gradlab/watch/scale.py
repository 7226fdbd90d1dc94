"""The loss scale of a watched loop."""

from __future__ import annotations

import weakref
from typing import Any

from torch import Tensor

from gradlab.watch.follower import Follower
from gradlab.watch.graph import Weight, weigh


class Scale:
    """Of no scaler, or of a disabled one, it is 1."""

    def __init__(self, scaler: Any) -> None:
        self.scaler = scaler
        self.calls = self.updates = 0
        self.scaling: Follower | None = None
        """Whose step the scaler makes just now."""
        self.scaled: list[tuple[weakref.ref[Tensor], Tensor, Weight]] = []
        """Losses that were scaled, as they were before, and what those were weighed with."""

    @property
    def on(self) -> bool:
        return self.scaler is not None and bool(self.scaler.is_enabled())

    @property
    def tensor(self) -> Tensor | None:
        return getattr(self.scaler, "_scale", None) if self.scaler is not None else None

    def now(self) -> Any:
        """The loss scale as it is; a device's is copied, since the scaler changes it in place."""
        scale = self.tensor if self.on else None
        if scale is None:
            return 1.0
        return scale.item() if scale.device.type == "cpu" else scale.clone()

    def within(self, f: Follower) -> Any:
        """What the gradients of an optimizer are still multiplied with, or None."""
        inside = f.held and not f.unscaled and all(b.scaled for b in f.held)
        return self.now() if inside and self.on else None

    def keep(self, scaled: Tensor, loss: Tensor, weight: Weight) -> None:
        self.scaled = [s for s in self.scaled if s[0]() is not None][-16:]
        self.scaled.append((weakref.ref(scaled), loss.detach(), weight))

    def known(self, loss: Any) -> bool:
        return any(out() is loss for out, _, _ in self.scaled)

    def weighed(self, root: Tensor) -> tuple[Any, Weight, bool]:
        """The loss without the scale, where it is one number; what it was weighed with; whether it was scaled."""
        for out, loss, weight in self.scaled:
            if out() is root:
                return (loss.reshape(()) if loss.numel() == 1 else None), weight, True
        weight = weigh(root, self.tensor)
        number = root.detach().reshape(()) if root.numel() == 1 else None
        if number is not None and weight.scaled and self.tensor is not None:
            number = number / self.tensor
        return number, weight, weight.scaled > 0
