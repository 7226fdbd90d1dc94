"""Which schedules give their first rate before their first step, as PyTorch's do."""

from __future__ import annotations

import ast
import re

from gradlab.audit.source.project import INSTALLED, Module
from gradlab.audit.source.syntax import dotted, walk
from gradlab.audit.trace.iterables import members
from gradlab.audit.trace.replay import Occurrence
from gradlab.audit.trace.training_loop import TrainingLoop
from gradlab.audit.trace.values import Event, Value

TORCH = re.compile(
    r"torch\.optim\.lr_scheduler|torch\.optim import lr_scheduler|transformers|diffusers|get_\w*schedule"
    r"|Warmup(Linear|Cosine|Constant)\w*Schedule|(^|\.)[A-Z]\w*[a-z]LR$"
)
RATE = re.compile(r"(^|\.)(lr_?|optim\w*_|[a-z]{1,3}_)?sched(uler)?s?(_?[a-z\d]{1,3})?$", re.I)
"""Names of schedules of a learning rate, and of nothing else."""
FROM_ONE = re.compile(
    r"max\((self\.last_epoch|1,)|last_epoch \+ 1|1 \+ self\.last_epoch|step_count|self\.(?!last_epoch)\w+ \+= 1"
)
"""What a schedule counts that does not begin at 0."""
SCHEDULES = re.compile(r"(?i:sched|warm_?up|noam|anneal)|lr_|_lr|[a-z]LR$")
"""Names of what may make a schedule that is not PyTorch's."""


def alternatives(schedule: Value) -> list[Value]:
    """The schedules that a value may be, where it is one."""
    return [found for one in members(schedule) if one.kind != "none" for found in one.among or (one,)]


def made_at(schedule: Value, step: Occurrence) -> ast.Call | None:
    """The call that made a schedule, where its length is; None where that is in another file than its step."""
    return schedule.call if schedule.path == step.event.path else None


def counts_after(loop: TrainingLoop, event: Event) -> bool:
    """Whether a schedule gives its first rate before its first step: one of the project's own may give it in that step.

    The type of an argument is not known; it is taken for PyTorch's unless the file has others, and the message says so.
    """
    schedule = event.value
    if schedule is None or event.arguments or schedule.rewound or event.module is None:
        return False
    if any(e.kind == "schedule" and e.arguments and e.value is schedule for e in loop.events):
        return False
    own = [one for one in alternatives(schedule) if one.lineage]
    if any(one.kind != "scheduler" or one.method("step") or counts_from_one(one) for one in own):
        return False
    makers = {one.maker for one in alternatives(schedule) if not one.lineage}
    if all(TORCH.search(maker) for maker in makers):
        return True
    if sets_rates_itself(event.module):
        return False
    unseen = TORCH.search(event.module.source.text) is not None or handed_in(schedule, event.module)
    return unseen and all(TORCH.search(maker) or not maker for maker in makers)


def counts_from_one(schedule: Value) -> bool:
    """Whether a schedule of the project's may give the rate of its first step before it, too."""
    rates = schedule.method("get_lr")
    return rates is not None and FROM_ONE.search(ast.unparse(rates[0])) is not None


def handed_in(schedule: Value, module: Module) -> bool:
    """Whether a schedule of a rate, by its name, comes from elsewhere, and the file takes none from its own project."""
    if any(not (one.given or one.made) or not RATE.search(one.name) for one in alternatives(schedule)):
        return False
    taken = [name for name, (path, level) in module.imports.items() if level or path.split(".")[0] not in INSTALLED]
    return not any(SCHEDULES.search(name) for name in (*taken, *module.names))


def sets_rates_itself(module: Module) -> bool:
    """Whether a file has a class with a `step` that writes learning rates, and that is none of PyTorch's schedules."""
    for one in module.source.nodes.of(ast.ClassDef):
        plain = not any(re.search(r"Scheduler$|LR$", dotted(base)) for base in one.bases)
        if plain and any(isinstance(part, ast.FunctionDef) and part.name == "step" for part in one.body):
            written = (n for n in walk(one) if isinstance(n, ast.Subscript) and isinstance(n.ctx, ast.Store))
            if any(isinstance(n.slice, ast.Constant) and n.slice.value == "lr" for n in written):
                return True
    return False
