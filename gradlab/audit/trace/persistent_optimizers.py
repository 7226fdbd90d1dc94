"""Objects that keep their optimizers from call to call."""

from __future__ import annotations

import ast
import re

from gradlab.audit.source.project import Function, Module, Project
from gradlab.audit.trace.training_loop import TrainingLoop
from gradlab.audit.trace.values import Value

GRADIENTS = re.compile(r"\.grad(\.data)?(\.zero_| = )")
ZEROING = re.compile(r"zero_?grad|\.grad\b|zero_\(|set_to_none")
"""What there is where gradients are set to zero, or may be."""


def acts_alone(loop: TrainingLoop, owner: Value | None, node: Function, module: Module, project: Project) -> bool:
    """Whether a method does all that happens to the gradients of the optimizers that its object keeps."""
    if owner is None or owner.framework or owner.lightning:
        return False
    kept = [o for o in loop.optimizers() if any(o is held for held in owner.attributes.values())]
    if len(kept) < len(loop.optimizers()) or any(o.maker.endswith("LBFGS") for o in kept):
        return False
    takes_batch = len(node.args.args) > 1
    return zeroes_own_gradients(loop, module) or (takes_batch and never_zeroes(loop, owner, module, project))


def zeroes_own_gradients(loop: TrainingLoop, module: Module) -> bool:
    """Whether a function zeroes gradients itself, and nothing else in its file does."""
    zeros = {id(e.node) for e in loop.events if e.kind == "zero"}
    calls = [n for n in module.source.nodes.of(ast.Call) if getattr(n.func, "attr", "") == "zero_grad"]
    return bool(zeros) and all(id(n) in zeros for n in calls) and not GRADIENTS.search(module.source.text)


def never_zeroes(loop: TrainingLoop, owner: Value, module: Module, project: Project) -> bool:
    """Whether an object computes a loss with its own network, and neither its files nor a caller's zero gradients."""
    networks = {v.root() for v in owner.attributes.values() if v.kind in ("model", "ddp") and not v.root().given}
    stepped = loop.optimizers()
    made = all(o.maker.startswith("torch.optim.") and networks & {m.root() for m in o.trained} for o in stepped)
    passes = {e.value.root() for e in loop.events if e.kind == "forward" and e.value is not None}
    if not made or not passes & networks or any(e.kind == "zero" for e in loop.events):
        return False
    callers = project.callers(module, {one.name for one in owner.lineage})
    return not any(ZEROING.search(one.source.text) for one in (module, *owner.modules, *callers))
