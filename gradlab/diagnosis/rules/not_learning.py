"""Rules over a loss that falls too little, or on the training data alone."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import Any, ClassVar

from gradlab.diagnosis.finding import Finding
from gradlab.diagnosis.finished_run import CLASSES, FinishedRun
from gradlab.diagnosis.history import History
from gradlab.diagnosis.initial_sizes import SMALL
from gradlab.diagnosis.rules.rule import Rule, rule
from gradlab.diagnosis.trends import falls_to_the_last
from gradlab.diagnosis.update_sizes import LARGE_UPDATE, SMALL_UPDATE
from gradlab.diagnosis.wording import best_evaluation, gain_of, judged_by, progress, without_largest

SLOW = "the learning rate is too low, or the run too short"
"""Of a loss that falls to the end."""
TARGETS = "the targets do not belong to the inputs: shuffled, shifted, or broadcast by the loss"
PAIRS = "the targets do not belong to the inputs"
FEW = "too few samples for the size of the model"
UNLIKE = "evaluation data that are unlike the training data"
RUNNING = "batch norm's running statistics, which evaluations use, are not those of the data"
ONLY_TRAINING = "what only training does"
SHORT = "the run is too short"
"""The same of a run whose updates fp16 does not hold as it is."""
GONE = 1e-6
"""Usual gradient norm over the largest one, below which updates have taken the gradient away."""


def follows(run: FinishedRun) -> bool:
    """Whether evaluations tell that the targets follow from the inputs, however little of it is learnt.

    They fall to the last, below the best constant answer to their own samples, and at least half as far as the training
    losses do: what is learnt of targets that belong to other inputs helps no others.
    """
    evaluated = run.history.evaluated
    if run.constant is None or run.eval_constant is None or not falls_to_the_last(evaluated):
        return False
    told = run.eval_constant - evaluated[-1]
    return told > max(0.0, (run.constant - run.history.end[0]) / 2)


def part(loss: float, constant: float, floor: float) -> float:
    """What is left of the way from a constant answer's loss to the lowest that there can be."""
    return (loss - floor) / (constant - floor)


def training_alone(run: FinishedRun) -> float:
    """By how much the last losses are further above their constant answer's than the last evaluation; 0: not much."""
    evaluated, (end, error) = run.history.evaluated, run.history.end
    if run.constant is None or run.eval_constant is None or run.constant_found or not evaluated:
        return 0.0
    gap = (end - run.constant) - (evaluated[-1] - run.eval_constant)
    return gap if gap > max(run.learning * run.constant, 3 * error) else 0.0


@rule("stalled", position=190)
@dataclass
class Stalled(Rule):
    """The weights hardly move (`diagnosis.still`), the model does not learn, and no other rule explains it.

    Also of a model that learns at first, if its learning rate then comes to nothing: where all updates of the run are
    worth less than two windows (`diagnosis.window`) at its highest rate.
    """

    fallback = True
    needs = ("long", "steps")
    causes = ("the learning rate is too low", "the gradient does not reach the weights")
    fixes = ("raise the learning rate", "check that the gradient reaches the weights")

    def find(self, run: FinishedRun) -> Finding | None:
        h, cut_short = run.history, run.cut_short
        if run.status == "interrupted" or not run.frozen or (run.learns and not cut_short):
            return None
        if run.thrown and run.stuck:  # update_too_large
            return None
        ratio = h.update_ratios.median
        course = f"the loss went from {h.losses.initial:.4g} to {h.losses.final:.4g}" if run.learns else progress(run)
        little = f"changes the weights by {ratio:.2g} times their norm" if ratio else "leaves the weights as they are"
        sentence = f"an update usually {little}, and {course}"
        found = self.found("critical", sentence, ratio=ratio)
        if h.layers and all(h.layers):
            found.causes = found.causes[:1]
        if cut_short:
            found.sentence += f"; the learning rate came to nothing: the {h.attempts} updates of the run are worth"
            found.sentence += f" {h.full_updates:.3g} at its highest"
            found.evidence["full_updates"] = h.full_updates
        if cut_short or (h.lr_last < run.still * h.lr_highest and h.update_ratios.largest > SMALL_UPDATE):
            found.causes = ["a schedule that takes the learning rate to nothing"]
        return found


@rule("not_learning", position=195)
@dataclass
class NotLearning(Rule):
    """The run ends no better than the best constant answer, however far its loss fell, and no other rule explains it.

    That answer is the same for every input: the shares of the classes, the mean of the values. Its loss is known for
    cross_entropy, mse and bce, and is found for a loss of your own by minimising it; in a watched loop it is that of
    the labels of mean cross-entropies. Elsewhere the run is judged by its own beginning and evaluations alone: the
    finding is then a warning, since training that begins at its best does not improve either. Nothing is said of a loss
    whose targets the model may make, or that fell relative to targets that grew (see `diverged`). Weight decay is named
    as the cause where the weights have shrunk to half at least, and no further than decay alone would have taken them.
    """

    fallback = True
    needs = ("long",)
    causes = (
        "the learning rate is too high, or too low",
        TARGETS,
        "inputs of wild scale",
        "the gradient does not reach the weights",
    )
    fixes = (
        "try learning rates a tenth and ten times as high",
        "check that samples and targets belong together, and the shapes that the loss is given",
        "normalise the inputs",
    )
    reach: float = 0.02
    """An improvement over the constant answer of less than this fraction is critical; of less than `learning`, a
    warning."""
    far: float = 10.0
    """First losses over the constant answer's, above which a loss that falls throughout began far off."""
    repeated: ClassVar[int] = 3
    """Evaluations below the constant answer by `reach` that are no chance."""
    records: int = 5
    """Records of layers from which on a gradient that is exactly zero in each is the first cause."""

    def begin(self) -> None:
        self.zero: set[int] = set()
        self.seen = 0

    def observe(self, line: dict[str, Any], layers: dict[str, list[Any]] | None, history: History) -> None:
        if layers:
            zero = {i for i, norm in enumerate(layers["grad/layer"]) if norm == 0}
            self.zero = self.zero & zero if self.seen else zero
            self.seen += 1

    def never_reached(self, run: FinishedRun) -> list[str]:
        """Parameters of layers none of which ever had a gradient but zero; the rest of the model had one."""
        names = run.history.names
        zero = {names[i] for i in self.zero} if self.seen >= self.records else set()
        others = {name.rpartition(".")[0] for name in names if name not in zero}
        return [name for name in names if name in zero and name.rpartition(".")[0] not in others] if others else []

    def find(self, run: FinishedRun) -> Finding | None:
        h = run.history
        if run.status == "interrupted" or run.beats_constant or run.memorises or run.undecided or not h.finite:
            return None
        if h.broken or not h.applied:  # nan_loss; or nothing was trained
            return None
        if run.frozen:  # stalled
            return None
        return self.beside_its_beginning(run) if run.constant is None else self.beside_constant(run, run.constant)

    def beside_its_beginning(self, run: FinishedRun) -> Finding | None:
        h, (end, _) = run.history, run.history.end
        judged = [*h.first, *h.at_the_end]
        both_signs = min(judged, default=0.0) < 0 < max(judged, default=0.0)  # no part of it is progress
        if run.steady or both_signs or run.makes_targets or run.targets_outgrew_loss:
            return None
        return self.caused(run, self.found("warning", f"{progress(run)} ({judged_by(run)})", first=h.began, end=end))

    def beside_constant(self, run: FinishedRun, constant: float) -> Finding:
        h, (end, error) = run.history, run.history.end
        seen: dict[str, Any] = {"constant": constant, "end": end, "standard_error": error, "first": h.loss_first}
        level, against, sentence = end, constant, progress(run)
        if h.evaluated and run.eval_constant is not None:
            level, against = min(h.evaluated), run.eval_constant
            sentence += best_evaluation(run) * (best_evaluation(run) not in sentence)
            seen |= {"evaluation": level, "evaluation_constant": against}
        doubt = 2 * error if h.evaluated else 0.0  # an evaluation is of all samples, and says enough
        close = min(part(level, against, run.lowest), part(end + doubt, constant, run.lowest)) > 1 - self.reach
        severe = not run.beats_constant_anywhere if run.constant_found else close
        found = self.found("critical" if severe else "warning", sentence, **seen)
        if run.decayed is not None:
            return self.by_decay(found, *run.decayed)
        return self.from_afar(run, found) if run.times_constant > self.far else self.caused(run, found)

    @staticmethod
    def by_decay(found: Finding, first: float, last: float) -> Finding:
        found.sentence += f"; weight decay has taken the weights from a norm of {first:.3g} to {last:.3g}"
        found.evidence |= {"weights_first": first, "weights_last": last}
        found.causes = ["weight decay that outweighs the gradient"]
        return found

    @staticmethod
    def from_afar(run: FinishedRun, found: Finding) -> Finding:
        """Of a loss that falls from many times that of a constant answer."""
        times, classes = run.times_constant, run.history.classes
        shares = classes and run.history.loss_early <= math.log(CLASSES)  # more than equal shares of all would have
        found.sentence += f"; the first losses were {times:.3g} times that of the constant answer to the training data,"
        found.sentence += " and the loss was falling to the end"
        found.evidence |= {"times": times, **({"classes": True} if classes else {})}
        found.evidence |= {"shares": True} if shares else {}
        targets = ["targets whose mean or size is far from that of the outputs"] * (not classes)
        targets += ["classes whose shares are far from those that the outputs begin with"] * shares
        initial = [] if run.ordinary["the initial weights"] else ["initial weights that are too large"]
        found.causes = [*targets, *initial, SHORT if run.history.lowered_at else SLOW]
        return found

    def caused(self, run: FinishedRun, found: Finding) -> Finding:
        """With the rate as the first cause in the direction that the updates show; else as the last, if it is one.

        Before all others what is the same for every sample, and layers whose gradient is zero throughout.
        """
        if run.inspection and (m := next((m for m in run.inspection.activations if m.same), None)):
            found.sentence += (
                f"; what goes into {m.where} is the same for every one of {run.inspection.samples} samples"
            )
            small = bool(run.sizes) and statistics.median(run.sizes) < SMALL
            found.causes = ["initial weights that are too small: what goes in shrinks at every layer"] * small
            found.causes += ["a mask that is inverted, or a layer whose output does not depend on its input"]
            found.evidence["same"] = m.name
            if run.sizes and not any(run.sizes):  # nothing passes them, whatever else there is
                found.causes, found.evidence["weights_of_zero"] = ["initial weights of zero"], True
            return found
        if names := self.never_reached(run):
            first = ", ".join(names[:3]) + f" and {len(names) - 3} more"
            listed = first if len(names) > 3 else " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
            found.causes = [
                f"{listed} never get{'s' * (len(names) == 1)} a gradient",
                *(cause for cause in self.causes[1:3] if cause in self.possible(run)),
            ]
            found.sentence += f"; the gradient of {listed} is exactly zero in each of {self.seen} records"
            found.evidence["zero"] = names
            return found
        h, others = run.history, self.possible(run)
        usual = h.update_ratios.median
        if usual > LARGE_UPDATE or usual < SMALL_UPDATE:
            rate = f"the learning rate is too {'high' if usual > LARGE_UPDATE else 'low'}"
            if usual < SMALL_UPDATE and (run.steady or follows(run)):  # nothing can be said of the data yet
                others = [cause for cause in others if cause != TARGETS]
                found.evidence["slow"] = True
            some = run.beats_constant_anywhere  # as of the training data: then they are learnt at this rate
            found.causes = [*others, rate] if some else [rate, *others]
            found.sentence += f"; an update usually changes the weights by {usual:.2g} times their norm, where"
            found.sentence += f" {SMALL_UPDATE:g} to {LARGE_UPDATE:g} is usual"
            found.evidence |= {"ratio": usual, **({"some": True} if some else {})}
        elif h.usual_norm < GONE * h.largest:
            found.causes = ["the learning rate is too high: updates took the gradient away", *others]
            found.evidence["taken"] = True
            found.sentence += f"; the gradient norm was {h.largest:.2g} at update {h.largest_at},"
            found.sentence += f" and {h.usual_norm_said}"
        elif follows(run):
            found.causes = [SHORT if h.lowered_at else SLOW]
            found.evidence["slow"] = True
            gain = gain_of(h.evaluated[-1], run.eval_constant or 0.0)
            found.sentence += f"; the evaluations fell to the last, to {gain:.1%} below their constant answer:"
            found.sentence += " too little yet to count as learnt"
            found.sentence += f"; fp16 overflowed as late as update {h.lowered_at}" * bool(h.lowered_at)
        elif usual == usual:
            found.causes = others
            if run.falls_throughout and run.constant is not None and h.end[0] > run.constant:
                found.causes = [SHORT if h.lowered_at else SLOW, *others]
                found.evidence["slow"] = True
            if gap := training_alone(run):
                of = "its last losses are further above a constant answer's than the last evaluation"
                found.causes = [f"{ONLY_TRAINING}, as dropout: {of}, by {gap:.2g}", *found.causes]
                found.evidence["training"] = gap
        return found

    def told(self, run: FinishedRun) -> bool:
        """Whether several evaluations are below their constant answer: something of the targets follows."""
        constant = run.eval_constant
        if constant is None:
            return False
        return sum(constant - v > self.reach * abs(constant) for v in run.history.evaluated) >= self.repeated

    def possible(self, run: FinishedRun) -> list[str]:
        """The causes besides the rate that nothing measured excludes."""
        excluded = {
            TARGETS: run.constant is None or run.misses_constant or self.told(run),  # without one there may be none
            self.causes[3]: self.seen >= self.records and not self.zero,
        }
        return [cause for cause in self.causes[1:] if not excluded.get(cause)]


@rule("memorising", position=197)
@dataclass
class Memorising(Rule):
    """The training loss improves, and no evaluation was ever better than the best constant answer.

    Nor did any tell classes apart: what is learnt holds for the training data alone.
    """

    needs = ("long",)
    causes = (
        PAIRS,
        FEW,
        UNLIKE,
    )
    fixes = (
        "check that samples and targets belong together",
        "train on more samples, or a smaller model",
        "check that both sets are prepared alike",
    )
    apart: ClassVar[float] = 3.0
    """Best evaluation of values over the loss of their mean, above which they are others: answers to other inputs,
    which are as far from their mean, have twice that loss."""
    least: ClassVar[int] = 10
    """Losses of the first epoch from which on their mean says something."""

    def find(self, run: FinishedRun) -> Finding | None:
        h, end = run.history, run.history.end[0]
        if run.status == "interrupted" or run.undecided or not run.memorises:
            return None
        best, against = min(h.evaluated), f"(a constant answer: {run.eval_constant:.4g})"
        losses = f"the last training losses{without_largest(h)} have a mean of {end:.4g}"
        sentence = f"{losses}, and the best evaluation is {best:.4g} {against}"
        found = self.found("warning", sentence, train=end, evaluation=best, constant=run.eval_constant)
        squares = run.eval_constant is not None and not (h.classes or run.constant_found)
        if squares and best > self.apart * (run.eval_constant or 0.0):
            found.causes = [UNLIKE]
        elif (unseen := self.unseen(run)) is not None:
            found.sentence += "; at the end of the first epoch losses of samples that no update had seen"
            found.sentence += f" have a mean of {unseen:.4g}"
            found.causes, found.evidence["unseen"] = [UNLIKE], unseen
        elif falls_to_the_last(h.evaluated):  # what is learnt helps them
            found.causes = [UNLIKE, FEW]
        return found

    def unseen(self, run: FinishedRun) -> float | None:
        """The mean loss of training samples that no update had seen, where it is better than a constant answer's.

        None where epochs are not counted, as in a watched loop, whose lines are all of one.
        """
        losses = run.history.unseen
        if len(losses) < self.least or run.constant is None or run.history.epochs < 2:
            return None
        mean, error = statistics.fmean(losses), statistics.stdev(losses) / len(losses) ** 0.5
        return mean if run.better(mean + 2 * error, run.constant, error) else None
