"""Objects that keep their optimizers from call to call."""

from __future__ import annotations

import ast
import re

from gradlab.audit.source.project import Module
from gradlab.audit.trace.training_loop import TrainingLoop
from gradlab.audit.trace.values import Value


def zeroes_own_gradients(loop: TrainingLoop, owner: Value | None, module: Module) -> bool:
    """Whether a method zeroes gradients itself, of optimizers that its object keeps, and nothing else does."""
    if owner is None or owner.framework or owner.lightning:
        return False
    kept = [o for o in loop.optimizers() if any(o is held for held in owner.attributes.values())]
    if len(kept) < len(loop.optimizers()) or any(o.maker.endswith("LBFGS") for o in kept):
        return False
    zeros = {id(e.node) for e in loop.events if e.kind == "zero"}
    calls = [n for n in module.source.nodes.of(ast.Call) if getattr(n.func, "attr", "") == "zero_grad"]
    return (
        bool(zeros)
        and all(id(n) in zeros for n in calls)
        and not re.search(r"\.grad(\.data)?(\.zero_| = )", module.source.text)
    )
