"""What can be wrong with a loop and be seen while it runs: the codes, what each means, and how bad it is.

Names and numbers are those of the rules of `gradlab.audit`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from gradlab.diagnosis.finding import Finding
from gradlab.watch.where import Site, told

CRITICAL = {"error": "critical", "warning": "warning", "advice": "info"}
"""How bad -> what a diagnosis says. error: a wrong result. warning: probably. advice: right, and could be better."""


@dataclass(frozen=True)
class Kind:
    """One kind of mistake."""

    rule: str
    """Its code in `gradlab.audit`, which finds the same mistakes in the text of a script, where it can."""
    severity: str
    sentence: str
    mend: str


KINDS = {
    "clip-after-step": Kind(
        "GL101",
        "error",
        "the gradient is clipped after the step that used it: nothing is clipped",
        "clip between backward and optimizer.step()",
    ),
    "clip-before-backward": Kind(
        "GL102",
        "error",
        "the gradient is clipped before backward has made one: nothing is clipped",
        "clip between backward and optimizer.step()",
    ),
    "clip-before-unscale": Kind(
        "GL201",
        "error",
        "the gradient is clipped while it is still multiplied with the loss scale",
        "call scaler.unscale_(optimizer) before clipping",
    ),
    "unscale-twice": Kind(
        "GL202",
        "error",
        "the gradient is unscaled twice for one step",
        "call scaler.unscale_(optimizer) once an update, after the last backward",
    ),
    "unscale-every-micro-batch": Kind(
        "GL203",
        "error",
        "the gradient is unscaled after each micro-batch: it adds up scaled ones to unscaled ones",
        "call scaler.unscale_(optimizer) once an update, after the last backward",
    ),
    "loss-not-scaled": Kind(
        "GL207",
        "error",
        "the scaler steps on gradients of a loss that it has not scaled: they are divided by the scale for nothing",
        "call scaler.scale(loss).backward()",
    ),
    "step-past-scaler": Kind(
        "GL204",
        "error",
        "the optimizer steps past the scaler on gradients of a scaled loss: none that overflowed is held back",
        "call scaler.step(optimizer) in place of optimizer.step()",
    ),
    "update-missing": Kind(
        "GL205",
        "error",
        "the scaler has stepped and was not updated since: the loss scale cannot move",
        "call scaler.update() once, after the last scaler.step of an update",
    ),
    "live-lock": Kind(
        "GL206",
        "error",
        "a gradient that overflowed was thrown away without scaler.step and scaler.update: the loss scale never falls, "
        "and the next one will overflow too",
        "leave out the guard: scaler.step skips such an update and scaler.update lowers the scale",
    ),
    "accumulation-unscaled": Kind(
        "GL301",
        "error",
        "mean losses of several micro-batches are added up undivided: the gradient grows with their number",
        "divide each loss by the number of micro-batches, or weigh it by its share of the samples",
    ),
    "loss-divided-twice": Kind(
        "GL302",
        "error",
        "the loss is divided by the number of micro-batches twice: the gradient shrinks with it",
        "divide once",
    ),
    "loss-scaled-twice": Kind(
        "GL214",
        "error",
        "the loss is multiplied with the loss scale twice, and unscaled once",
        "call scaler.scale(loss) once",
    ),
    "clip-every-micro-batch": Kind(
        "GL304",
        "error",
        "the gradient is clipped after each micro-batch and not once for all: early ones count for less",
        "clip once, after the last backward of an update",
    ),
    "zero-grad-missing": Kind(
        "GL305",
        "error",
        "the gradient still holds what an earlier step has used: it was never cleared",
        "call optimizer.zero_grad() once an update, after the step",
    ),
    "zero-grad-in-window": Kind(
        "GL306",
        "error",
        "gradients of earlier micro-batches are cleared before the step: only the last one counts",
        "call optimizer.zero_grad() once an update, after the step",
    ),
    "zero-before-step": Kind(
        "GL103",
        "error",
        "the gradient is cleared between backward and step: the optimizer steps on nothing",
        "call optimizer.zero_grad() after the step, or before backward",
    ),
    "remainder-left": Kind(
        "GL307",
        "error",
        "gradients of micro-batches left over were carried into another update, which holds too many",
        "step on what is left at the end of an epoch, divided by its own number",
    ),
    "remainder-underscaled": Kind(
        "GL308",
        "advice",
        "the last micro-batches of an epoch are fewer, and were divided by the number of a full update",
        "divide what is left by its own number",
    ),
    "schedule-every-micro-batch": Kind(
        "GL401",
        "warning",
        "the schedule moves more often than the optimizer steps: it is at its end too early",
        "call schedule.step() after optimizer.step(), once an update",
    ),
    "schedule-before-step": Kind(
        "GL402",
        "warning",
        "the schedule moves before the optimizer steps: each update uses the rate of the next",
        "call schedule.step() after optimizer.step()",
    ),
    "loss-kept-with-graph": Kind(
        "GL605",
        "warning",
        "losses of earlier updates are kept with their graphs: memory grows with every update",
        "keep loss.detach() or loss.item()",
    ),
    "raw-module-called": Kind(
        "GL504",
        "error",
        "the module inside of DistributedDataParallel is called in its stead: gradients are not averaged over ranks",
        "call the wrapper",
    ),
    "no-sync-missing": Kind(
        "GL501",
        "advice",
        "gradients are averaged over ranks at every micro-batch, though only the last one's average is needed",
        "run forward and backward of all but the last inside model.no_sync()",
    ),
    "no-sync-on-the-last": Kind(
        "GL502",
        "error",
        "the last micro-batch of an update ran inside no_sync: ranks step on gradients of their own",
        "run all but the last inside model.no_sync()",
    ),
    "no-sync-around-backward-only": Kind(
        "GL503",
        "warning",
        "backward runs inside no_sync and its forward pass did not: they are averaged all the same",
        "run both inside model.no_sync()",
    ),
    "backward-inside-autocast": Kind(
        "GL209",
        "advice",
        "backward runs inside autocast, which is for the forward pass and the loss",
        "leave the context before backward",
    ),
    "fp16-without-scaler": Kind(
        "GL210",
        "warning",
        "the forward pass is in fp16 and the loss is not scaled: small gradients become zero",
        "use torch.amp.GradScaler, or bf16",
    ),
}


class Fault(RuntimeError):
    """An error in a loop, raised where it was seen first (`strict=True`)."""

    def __init__(self, seen: Seen) -> None:
        super().__init__(seen.line)
        self.code, self.seen = seen.code, seen


@dataclass
class Seen:
    """A mistake that was seen, where and when first, and how often since."""

    code: str
    site: Site | None
    update: int
    """The optimizer's update, counted from 1, in which it was seen first."""
    detail: str = ""
    optimizer: int = 0
    times: int = 1
    said: dict[str, Any] = field(default_factory=dict)

    @property
    def kind(self) -> Kind:
        return KINDS[self.code]

    @property
    def sentence(self) -> str:
        return f"{self.kind.sentence}{f' ({self.detail})' if self.detail else ''}"

    @property
    def line(self) -> str:
        return (
            f"{told(self.site)}: {self.kind.severity}: {self.kind.rule} {self.code}: {self.sentence}; {self.kind.mend}"
        )

    def finding(self) -> Finding:
        file, line = place(self.site)
        evidence = {"file": file, "line": line, "rule": self.kind.rule, "times": self.times, "mend": self.kind.mend}
        says = f"{told(self.site)}: {self.sentence}"
        return Finding(self.code, CRITICAL[self.kind.severity], says, self.update, evidence, [self.kind.mend])


def place(site: Site | None) -> tuple[str | None, int | None]:
    return (site[0].co_filename, site[1]) if site else (None, None)
