"""`module.requires_grad = True`: a plain attribute, which changes no parameter. `requires_grad_` does."""

from __future__ import annotations

import dis
import itertools

from torch import nn

from gradlab.watch.call_site import CallSite
from gradlab.watch.instrumentation import Instrumentation
from gradlab.watch.loop_state import LoopState
from gradlab.watch.source_lines import flag_lines, setting_line
from gradlab.watch.tracking.optimizer_tracker import OptimizerTracker

NAME = "requires_grad"


class FlagObserver:
    """Compares the attribute with the parameters at the end, and once before: what it was set to may be set back.

    Where it was set is read in the source of the functions that run when the watch begins and ends. Nothing is set on
    `nn.Module` to observe it: torch.compile looks at all that a module has.
    """

    def __init__(self, loop: LoopState) -> None:
        self.loop = loop
        self.sites: dict[nn.Module, CallSite] = {}
        self.told: set[nn.Module] = set()

    def install(self, instrumentation: Instrumentation) -> None:
        self.loop.on_check.append(self.at_check)
        if self.flagged():
            self.sites = flag_lines()

    def flagged(self) -> dict[nn.Module, str]:
        """Parts with such an attribute, and their names."""
        parts = {part: name for model in self.loop.models for name, part in model.named_modules()}
        return {part: name for part, name in parts.items() if isinstance(vars(part).get(NAME), bool)}

    def at_check(self, tracker: OptimizerTracker) -> None:
        self.compare([False])

    def at_end(self) -> None:
        self.compare([False, True])

    def compare(self, flags: list[bool]) -> None:
        """Was a part meant to be trained that is frozen (True), or to be frozen that is trained (False)?"""
        flagged = {part: name for part, name in self.flagged().items() if vars(part)[NAME] in flags}
        sites = flag_lines() | self.sites if flagged else {}
        for module, name in flagged.items():
            if module in self.told or has_own_flag(type(module)):
                continue
            flag, params = vars(module)[NAME], list(module.parameters())
            trained = [p for p in params if p.requires_grad]
            ids = {id(p) for p in trained}
            stepped = [t for t in self.loop.trackers if t.attempts and (flag or ids & t.ids)]
            if stepped and params and (not trained if flag else trained):
                self.told.add(module)
                detail = f"{name or type(module).__name__}: its weights are {'frozen' if flag else 'trained'}"
                step = stepped[0].step_site
                site = sites.get(module) or (setting_line(step[0], NAME) if step is not None else None) or step
                self.loop.add_fault("requires-grad-of-module", site, stepped[0], detail, at_end=True)


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
