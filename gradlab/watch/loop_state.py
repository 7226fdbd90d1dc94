"""The state of a watched loop, shared by the observers of its calls."""

from __future__ import annotations

import linecache
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import nn

from gradlab.diagnosis.inspection import Inspection
from gradlab.measure.monitor import Monitor
from gradlab.watch.arguments import is_fsdp1, parameter_names
from gradlab.watch.call_site import CallSite, call_site, call_stack
from gradlab.watch.events import BackwardPass, ForwardPasses, Mode, Seen, Violation
from gradlab.watch.faults import FaultLog, FaultRecord
from gradlab.watch.followed_update import FOLLOWED, LATE, AskingReader, FollowedUpdate, Reader
from gradlab.watch.order_sites import order_site
from gradlab.watch.output.optimizer_output import OptimizerOutput
from gradlab.watch.output.output_folder import OutputFolder
from gradlab.watch.readers.aliases import Aliases
from gradlab.watch.readers.broadcasts import Broadcasts
from gradlab.watch.readers.constant_targets import ConstantTargets
from gradlab.watch.readers.drawn_values import ORDERING, DrawnValues
from gradlab.watch.readers.fresh_weights import FreshWeights
from gradlab.watch.readers.gradient_reads import GradientReads
from gradlab.watch.readers.graph_cuts import GraphCuts
from gradlab.watch.readers.graph_sites import GraphSites
from gradlab.watch.readers.hard_values import HardValues
from gradlab.watch.readers.idle_terms import IdleTerms
from gradlab.watch.readers.learnt_spreads import LearntSpreads
from gradlab.watch.readers.learnt_weights import LearntWeights
from gradlab.watch.readers.loss_arguments import LossArguments
from gradlab.watch.readers.loss_sites import LossSites
from gradlab.watch.readers.loss_terms import LossTerms
from gradlab.watch.readers.mean_derivatives import MeanDerivatives
from gradlab.watch.readers.not_finite import NotFinite
from gradlab.watch.readers.output_ranges import OutputRanges
from gradlab.watch.readers.own_targets import OwnTargets
from gradlab.watch.readers.padding_masks import PaddingMasks
from gradlab.watch.readers.reversed_losses import ReversedLosses
from gradlab.watch.readers.sample_axes import SampleAxes
from gradlab.watch.readers.score_directions import ScoreDirections
from gradlab.watch.readers.share_axes import ShareAxes
from gradlab.watch.readers.still_targets import StillTargets
from gradlab.watch.readers.thrown_losses import ThrownLosses
from gradlab.watch.readers.token_masks import TokenMasks
from gradlab.watch.readers.unused_terms import UnusedTerms
from gradlab.watch.readers.update_calls import UpdateCalls
from gradlab.watch.readers.zero_gradients import ZeroGradients
from gradlab.watch.rules import accumulation
from gradlab.watch.tracking.activation_windows import ActivationWindows
from gradlab.watch.tracking.followers import CHECKED, Followers
from gradlab.watch.tracking.idle_statistics import IdleStatistics
from gradlab.watch.tracking.initial_weights import InitialWeights
from gradlab.watch.tracking.optimizer_tracker import OptimizerTracker
from gradlab.watch.tracking.scaler_tracker import ScalerTracker
from gradlab.watch.tracking.unheld_weights import UnheldWeights

WANTED = {*FOLLOWED, LATE}
"""Updates after which the next one is followed."""
COMPILERS = ("torch._inductor.compiler_bisector", "torch._dynamo.backends.debugging")
"""Modules that `torch.compile` imports, of one backend and of the others, before anything is compiled."""
OF_ORDER = {"unscale-twice", "unscale-every-micro-batch", "update-every-micro-batch", "zero-grad-missing"}
"""Mistakes of when a call is made, or of one that is missing beside it."""
KNOWN_AFTER_STEP = {"clip-after-step", "update-missing"}
"""Mistakes about an update that is counted already when they are detected."""


class LoopState:
    """Models, optimizers with their trackers and outputs, loss scale, and the mistakes that were detected."""

    def __init__(
        self,
        models: list[nn.Module],
        optimizers: Sequence[torch.optim.Optimizer],
        scaler: Any,
        schedules: list[Any],
        output_folder: OutputFolder,
        monitor: Monitor,
        faults: FaultLog,
    ) -> None:
        self.models, self.schedules, self.seen = models, schedules, Seen()
        self.output_folder, self.monitor, self.faults = output_folder, monitor, faults
        self.scaler, self.forwards = ScalerTracker(scaler), ForwardPasses()
        self.ddp: Any = next((m for m in models if hasattr(m, "require_backward_grad_sync")), None)
        self.fsdp1 = is_fsdp1(models)
        self.trackers: list[OptimizerTracker] = []
        self.outputs: list[OptimizerOutput] = []
        self.unheld = UnheldWeights([] if self.fsdp1 else models, self.trackers)
        self.cuts = GraphCuts()
        self.zeros, self.reads, self.followers = (
            ZeroGradients(),
            GradientReads(models, self.trackers),
            Followers(self.trackers),
        )
        self.not_finite, self.statistics = NotFinite(), IdleStatistics(models, self.trackers)
        self.own_targets, self.update_calls, self.initial = OwnTargets(), UpdateCalls(), InitialWeights()
        self.still_targets, self.drawn = StillTargets(self.initial), DrawnValues()
        readers: list[Reader] = [self.cuts, Broadcasts(), LossArguments(), LossTerms(), HardValues(), self.zeros]
        readers += [
            self.reads,
            SampleAxes(models),
            TokenMasks(),
            PaddingMasks(),
            IdleTerms(models),
            self.drawn,
            LearntWeights(),
            OutputRanges(),
            ShareAxes(),
            self.own_targets,
            self.still_targets,
            MeanDerivatives(),
            self.update_calls,
            ScoreDirections(self.trackers),
            LearntSpreads(),
        ]
        self.asking: list[AskingReader] = [
            self.not_finite,
            ThrownLosses(self.trackers),
            UnusedTerms(),
            ReversedLosses(),
            FreshWeights(models, self.trackers),
            ConstantTargets(self.trackers),
        ]
        """Readers that may want the next update too."""
        self.followed = FollowedUpdate([GraphSites(), Aliases(), *readers, *self.asking, LossSites()], self.seen)
        self.tracker_of: dict[int, OptimizerTracker] = {}
        """id of a parameter -> tracker of its optimizer."""
        self.modes = [Mode() for _ in models]
        self.backward_depth = 0
        """Backward passes that are running within each other."""
        self.running: BackwardPass | None = None
        """The backward pass that is running."""
        self.fp16 = False
        """Whether anything ran in fp16."""
        self.no_sync: CallSite | None = None
        """Call site of the latest `no_sync`."""
        self.trainer_site: CallSite | None = None
        """Call site of a library's trainer."""
        self.user_site: CallSite | None = None
        """A function of the user's that the trainer calls: reported in place of `trainer_site`."""
        self.activations = ActivationWindows(models[0])
        self.on_new_optimizer: list[Callable[[OptimizerTracker], None]] = []
        """Called with the tracker of each optimizer that is added later."""
        self.on_check: list[Callable[[OptimizerTracker], None]] = []
        """Called once with each optimizer's tracker, after the first of the updates at which followers are checked."""
        self.lists_step: tuple[Callable[[OptimizerTracker], None], Callable[[OptimizerTracker], None]] | None = None
        """Called before and after steps, until the calls of one update are listed."""
        for optimizer in optimizers:
            self.track(optimizer)

    def track(self, optimizer: torch.optim.Optimizer) -> OptimizerTracker:
        """Follow an optimizer from here on."""
        tracker = OptimizerTracker(len(self.trackers), optimizer, self.names())
        self.trackers.append(tracker)
        self.outputs.append(OptimizerOutput(self.output_folder, self.monitor, self.models[0], tracker, self.seen))
        self.unheld.weights = None
        self.outputs[-1].need_not_fall = lambda: self.need_not_fall(tracker)
        self.outputs[-1].makes_targets = lambda: self.makes_targets(tracker)
        self.outputs[-1].inspection = lambda: self.inspection(tracker)
        self.outputs[-1].metrics.replaced = lambda site, update: self.add_fault(
            "not-finite-replaced", site, tracker, update=update
        )
        self.tracker_of = self.tracker_of | {id(p): tracker for p in tracker.params}
        self.initial.note(tracker)
        for call in self.on_new_optimizer:
            call(tracker)
        return tracker

    def inspection(self, tracker: OptimizerTracker) -> Inspection | None:
        """Of the first model's activations, for an optimizer of its weights."""
        own = any(id(p) in tracker.ids for p in self.models[0].parameters())
        return self.activations.inspection() if own else None

    def need_not_fall(self, tracker: OptimizerTracker) -> str:
        """Why its loss need not fall, as that of a policy, or where weights of two optimizers are in one loss: see
        `Measurements.need_not_fall`."""
        if any(group.get("maximize") for group in tracker.optimizer.param_groups):
            return "is what its optimizer maximizes"
        if len(self.trackers) > 1 and sum(p.numel() for p in tracker.params) == 1:
            return "is that of a single number, which follows what another optimizer makes"
        if tracker.is_policy:
            return "is that of a policy, whose level does not say what is learnt"
        if any(t.attempts and t.ids == tracker.ids for t in self.trackers[: tracker.index]):
            return "is that of weights that another optimizer has trained, too"
        if tracker.others.opposes_itself:
            return "depends on weights that it trains by another loss"
        if tracker.others.opponents:
            return "depends on weights that another optimizer moves by another loss"
        others = any(tracker.index in other.others.opponents for other in self.trackers)
        if others:
            return "is that of an optimizer whose weights the loss of another one depends on"
        contrasted = self.seen.contrasted & tracker.ids
        return "is a difference of one network's outputs, whose level does not say what is learnt" if contrasted else ""

    def makes_targets(self, tracker: OptimizerTracker) -> str:
        """Whether a model with this optimizer's weights ran without gradients too, half as often as with them, or what
        it put out was a target: see `Measurements.makes_targets`."""
        pairs = zip(self.models, self.modes, strict=True)
        often = [m for m, mode in pairs if 2 * mode.num_ungraded >= tracker.num_backwards > 0]
        if any(id(p) in tracker.ids for m in often for p in m.parameters()):
            return "the model also runs without gradients, as where it makes its data or targets"
        own = tracker.index in self.own_targets.makers
        return "its own outputs, which were detached, are targets of its loss" if own else ""

    @property
    def world_size(self) -> int:
        initialized = torch.distributed.is_available() and torch.distributed.is_initialized()
        return torch.distributed.get_world_size() if initialized else 1

    def names(self) -> dict[torch.Tensor, str]:
        return parameter_names(self.models)

    def follow_update(self, tracker: OptimizerTracker) -> None:
        """After a step: follow the calls of the next update, if a reader wants to."""
        thrown = tracker.thrown.updates == accumulation.THROWN
        check = tracker.attempts in CHECKED and self.seen.ask(self.followers.after_step, tracker, default=False)
        self.reads.wanted = check or thrown
        pending = any(each.is_pending and not self.seen.is_off(each) for each in self.asking)
        without = [p for output in self.outputs for p in output.metrics.without]
        pending = pending or (bool(without) and self.seen.ask(self.cuts.wants, tracker, without, default=False))
        wanted = tracker.attempts in WANTED or self.reads.wanted or pending
        if wanted and self.ddp is None and not self.fsdp1:
            self.followed.begin(tracker, without)

    def follow_order(self) -> None:
        """The loop begins: if its text draws orders, what they pick is followed to the first optimizer's step.

        Later updates of an epoch draw none. Nothing is followed if anything may be compiled before.
        """
        files = {code.co_filename for code, _ in call_stack()}
        text = "".join(line for file in files for line in linecache.getlines(file))
        compiles = "compile" in text or any(each in sys.modules for each in COMPILERS)
        if (
            any(each in text for each in ORDERING)
            and not compiles
            and self.trackers
            and self.ddp is None
            and not self.fsdp1
        ):
            self.followed.begin(self.trackers[0], [], self.drawn)

    def end_followed(self, tracker: OptimizerTracker | None = None) -> bool:
        """Before a step, or at the end: that update is over. Whether it was followed."""
        followed, found = self.followed.end(tracker)
        if followed is not None:
            self.add_violations(followed, found)
        return followed is not None

    def update_parameters(self, tracker: OptimizerTracker) -> None:
        """An optimizer's parameters have changed."""
        tracker.set_parameters(self.names())
        self.unheld.weights = None
        self.outputs[tracker.index].metrics.set_parameters(tracker.names, tracker.params)
        self.tracker_of = self.tracker_of | {id(p): tracker for p in tracker.params}

    def finish_updates(self) -> None:
        """Complete the metrics of the latest updates, unless a scaler still has to move."""
        for output in self.outputs:
            if not self.scaler.enabled and not output.tracker.started:
                output.metrics.finish_update(self.scaler.value())

    def add_violations(self, tracker: OptimizerTracker, violations: Iterable[Violation], at_end: bool = False) -> None:
        for name, site, detail, *since in violations:
            self.add_fault(name, site, tracker, detail, at_end, *since)

    def add_fault(
        self,
        name: str,
        site: CallSite | None,
        tracker: OptimizerTracker,
        detail: str = "",
        at_end: bool = False,
        update: int | None = None,
    ) -> None:
        """at_end: the whole loop is judged. update: from which one on, where that is not the one under way."""
        if site is not None and site == self.trainer_site:
            site = self.user_site or site
        elif name in OF_ORDER and site == call_site():  # the call is running
            site = order_site()
        if update is None and not at_end:
            counted = name in KNOWN_AFTER_STEP and tracker.attempts > 0
            update = tracker.attempts + (not counted)
        self.faults.add(FaultRecord(name, site, update, detail, tracker.index))
