"""`module.requires_grad = True`: a plain attribute, which changes no parameter. `requires_grad_` does."""

from __future__ import annotations

import dis
import itertools
import weakref
from typing import Any

from torch import nn

from gradlab.watch.call_site import CallSite, call_site
from gradlab.watch.instrumentation import Instrumentation
from gradlab.watch.loop_state import LoopState
from gradlab.watch.patches import PATCHES
from gradlab.watch.source_lines import flag_lines

NAME = "requires_grad"


class PlainAttribute:
    """A descriptor that behaves like the attribute of an object: only where this one is set, something is called."""

    def __get__(self, module: Any, owner: Any) -> Any:
        if module is None or NAME not in vars(module):
            raise AttributeError(NAME)
        return vars(module)[NAME]

    def __set__(self, module: Any, value: Any) -> None:
        vars(module)[NAME] = value

    def __delete__(self, module: Any) -> None:
        if vars(module).pop(NAME, self) is self:
            raise AttributeError(NAME)


class FlagObserver:
    """Remembers where the attribute was set, and compares it with the parameters at the end."""

    def __init__(self, loop: LoopState) -> None:
        self.loop = loop
        self.sites: weakref.WeakKeyDictionary[nn.Module, CallSite | None] = weakref.WeakKeyDictionary()

    def install(self, instrumentation: Instrumentation) -> None:
        if any(NAME in vars(part) for model in self.loop.models for part in model.modules()):
            self.sites.update(flag_lines())
        instrumentation.stack.callback(remove)
        if NAME not in vars(nn.Module):
            nn.Module.requires_grad = PlainAttribute()  # type: ignore[attr-defined]
        instrumentation.patch(PlainAttribute, "__set__", self.on_set)

    def on_set(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.sites[args[1]] = call_site()

    def at_end(self) -> None:
        """Was a part meant to be trained that is frozen, or to be frozen that was trained?"""
        named = {part: name for model in self.loop.models for name, part in model.named_modules()}
        for module, name in named.items():
            flag, params = vars(module).get(NAME), list(module.parameters())
            if not isinstance(flag, bool) or has_own_flag(type(module)):
                continue
            trained = [p for p in params if p.requires_grad]
            ids = {id(p) for p in trained}
            stepped = [t for t in self.loop.trackers if t.attempts and (flag or ids & t.ids)]
            if stepped and params and (not trained if flag else trained):
                detail = f"{name or type(module).__name__}: its weights are {'frozen' if flag else 'trained'}"
                site = self.sites.get(module) or stepped[0].step_site
                self.loop.add_fault("requires-grad-of-module", site, stepped[0], detail, at_end=True)


def remove() -> None:
    """When the last watch ends."""
    if NAME in vars(nn.Module) and (id(PlainAttribute), "__set__") not in PATCHES:
        del nn.Module.requires_grad  # type: ignore[attr-defined]


def has_own_flag(kind: type) -> bool:
    """Whether a class of the user's uses an attribute of this name itself."""
    for each in kind.__mro__ if not kind.__module__.startswith("torch.") else ():
        for function in vars(each).values() if not each.__module__.startswith("torch.") else ():
            code = getattr(function, "__code__", None)
            if code is None or NAME not in code.co_names:
                continue
            for one, two in itertools.pairwise(dis.get_instructions(code)):
                if two.argval == NAME and one.opname.startswith("LOAD_FAST") and one.argval in code.co_varnames[:1]:
                    return True
    return False
