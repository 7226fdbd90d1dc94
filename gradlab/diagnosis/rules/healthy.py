"""Rules that say of a run that it is too short to judge, or small and healthy."""

from __future__ import annotations

from dataclasses import dataclass

from gradlab.diagnosis.finding import Finding
from gradlab.diagnosis.finished_run import FinishedRun
from gradlab.diagnosis.rules.loss_scale import UnderflowFP16
from gradlab.diagnosis.rules.rule import Rule, rule
from gradlab.diagnosis.wording import progress


@rule("too_short", position=205)
@dataclass
class TooShort(Rule):
    """The run has too few updates to be called healthy, and nothing is wrong with it that is certain.

    Rules that compare an end with a beginning need two windows (`diagnosis.window`), 40 updates: diverged, vanishing,
    overclipped, dead_units, stalled and others would be blind before. A run that is no better than the best constant
    answer by then is given `diagnosis.plateau` updates, as many after its learning rate has risen, or more while its
    loss falls fast enough. What is certain is said of any run: values that are not finite, a loss that has tripled and
    rises, a loss scale that does not move.
    """

    fallback = True
    decides = True
    fixes = ("train for more updates",)

    def find(self, run: FinishedRun) -> Finding | None:
        h = run.history
        if not run.undecided and (h.losses.count or h.attempts) >= 2 * run.window:
            return None
        many = "1 update" if h.attempts == 1 else f"{h.attempts} updates"
        if not h.finite:
            course = "its losses are not known"
        elif run.undecided:
            course = f"{progress(run)}; {run.undecided}"
        else:
            course = f"the loss went from {h.losses.initial:.4g} to {h.losses.final:.4g}"
        if h.attempts and not h.applied:
            course = "all of them were skipped"
        least = f", fewer than {2 * run.window}," * (not run.long)
        return self.found("info", f"{many}{least} {'is' if h.attempts == 1 else 'are'} too few to judge: {course}")


@rule("small_but_healthy", position=210)
@dataclass
class SmallButHealthy(Rule):
    """Gradients are small and the model learns: there is no problem."""

    decides = True
    fixes = ("change nothing",)
    needs = ("long",)
    norm: float = 1e-6
    """Usual norm of the gradient below which it is small."""

    def find(self, run: FinishedRun) -> Finding | None:
        h = run.history
        if not 0 < h.usual_norm < self.norm or not run.learns or run.status == "failed" or h.loss_late >= h.loss_early:
            return None
        if run.inspection is not None and (run.inspection.flushed or 0.0) >= UnderflowFP16.fraction:
            return None  # fp16 makes them zero
        sentence = f"gradients are small ({h.usual_norm_said}), and the loss falls: its median over {h.window}"
        sentence += f" updates from {h.loss_early:.4g} to {h.loss_late:.4g}. Small is not a problem"
        return self.found("info", sentence, norm=h.usual_norm)
