"""The buffers of a module, such as running statistics, which a skipped update must leave as they were."""

from __future__ import annotations

import torch


class Buffers:
    """Saved before a forward pass, restored after one that overflowed: it leaves NaN in running statistics."""

    def __init__(self, module: torch.nn.Module) -> None:
        self.module = module
        self.there = True
        """Whether the module has any."""
        self.of_each = [part._buffers for part in module.modules()]
        self.initially_none = {(id(held), name) for held in self.of_each for name in held if held[name] is None}
        self.saved: dict[str, torch.Tensor] = {}

    def save(self) -> None:
        if not self.there:
            return
        buffers = dict(self.module.named_buffers())  # again: a module may have replaced one
        saved = self.saved
        if {name: b.shape for name, b in buffers.items()} != {name: b.shape for name, b in saved.items()}:
            saved = self.saved = {name: torch.empty_like(b) for name, b in buffers.items()}
        if buffers:
            torch._foreach_copy_(list(saved.values()), list(buffers.values()))

    def restore_(self, skipped: torch.Tensor, readable: bool) -> None:
        """Restore what was saved where () skipped is true. readable: whether reading it waits for no device."""
        if not self.there and not any(self.of_each):
            return  # the first one may have been registered in this forward pass
        buffers = dict(self.module.named_buffers())
        self.there = bool(buffers)
        if readable and not skipped:
            return
        for name, buffer in buffers.items():
            before = self.saved.get(name)
            if before is not None and before.shape == buffer.shape:
                buffer.copy_(torch.where(skipped, before, buffer))
            elif skipped:  # registered in this forward pass, or of another shape since
                inside, _, last = name.rpartition(".")
                part = self.module.get_submodule(inside)
                if before is None and (id(part._buffers), last) not in self.initially_none:
                    delattr(part, last)
                else:
                    setattr(part, last, None if before is None else before.clone())
