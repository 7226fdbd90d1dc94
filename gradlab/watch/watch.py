"""The context manager around a training loop."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import nn

from gradlab.measure.monitor import Summary
from gradlab.watch import arguments
from gradlab.watch.faults import Fault, FaultLog, FaultRecord, print_message
from gradlab.watch.instrumentation import Instrumentation, Observer
from gradlab.watch.loop_state import LoopState
from gradlab.watch.observers import compiled_steps
from gradlab.watch.observers.all_reduce import AllReduceObserver
from gradlab.watch.observers.backward import BackwardObserver
from gradlab.watch.observers.clipping import ClippingObserver
from gradlab.watch.observers.forward import ForwardObserver
from gradlab.watch.observers.grad_scaler import GradScalerObserver
from gradlab.watch.observers.hooks import HookObserver
from gradlab.watch.observers.loaders import LoaderObserver
from gradlab.watch.observers.lr_schedule import ScheduleObserver
from gradlab.watch.observers.module_flags import FlagObserver
from gradlab.watch.observers.optimizer_discovery import OptimizerDiscovery
from gradlab.watch.observers.optimizer_step import OptimizerStepObserver
from gradlab.watch.observers.state_dicts import StateDictObserver
from gradlab.watch.observers.update_calls import UpdateCallsObserver
from gradlab.watch.observers.zero_grad import ZeroGradObserver
from gradlab.watch.output import summary
from gradlab.watch.output.output_folder import OutputFolder
from gradlab.watch.rules import eval_mode, far_rates, reach
from gradlab.watch.tracking.optimizer_tracker import OptimizerTracker, listed

INTERRUPTIONS = (KeyboardInterrupt, SystemExit, GeneratorExit)


def end_status(error: BaseException | None) -> tuple[str, str | None]:
    """How a loop ended: completed, failed or interrupted, and the error as text.

    A generator that is closed and an exit with code 0 are regular ends.
    """
    if error is None or isinstance(error, GeneratorExit) or (isinstance(error, SystemExit) and not error.code):
        return "completed", None
    text, name = " ".join(str(error).split())[:1000], type(error).__name__
    if isinstance(error, Fault):
        text = f"{error.code} (strict=True)"
    return "interrupted" if isinstance(error, INTERRUPTIONS) else "failed", f"{name}: {text}" if text else name


class Watch:
    """Context manager around a loop. `faults` are the mistakes that it detects; it writes its files to `folder`."""

    def __init__(
        self,
        model: nn.Module | Sequence[nn.Module],
        optimizer: Any = None,
        scaler: Any = None,
        schedule: Any = None,
        folder: str | Path | None = None,
        strict: bool = False,
        every: int = 5,
        step_every: int = 50,
        quiet: bool = False,
    ) -> None:
        """model, optimizer, schedule: one, or several. Without an optimizer, all that train the models are tracked; a
        scaler that is not given is followed from its first call. folder: for the files; None: a new one in
        outputs/watch. strict: raise `Fault` at the first error. every, step_every: updates between two records of each
        layer's gradient norm, and of its relative update (0: never). quiet: print nothing while the loop runs.

        Raises TypeError or ValueError that names the argument, what was given and what is expected.
        """
        monitor = Summary(
            arguments.checked_count("every", every, 1), arguments.checked_count("step_every", step_every, 0)
        )
        self.quiet = arguments.checked_flag("quiet", quiet)
        models, optimizers = arguments.checked_models(model), arguments.checked_optimizers(optimizer)
        scaler, schedules = arguments.checked_scaler(scaler), arguments.checked_schedules(schedule)
        self.output_folder = OutputFolder(folder)
        faults = FaultLog(arguments.checked_flag("strict", strict), self.report_now)
        self.loop = LoopState(models, optimizers, scaler, schedules, self.output_folder, monitor, faults)
        self.instrumentation = Instrumentation(self.report_now, self.after_fork, self.loop.seen)
        self.loop.followed.guarded = self.instrumentation.guarded
        self.discovery = OptimizerDiscovery(self.loop, track=optimizer is None)
        self.schedule_observer, self.flag_observer = ScheduleObserver(self.loop), FlagObserver(self.loop)
        self.hook_observer = HookObserver(self.loop)
        self.observers: list[Observer] = [
            ForwardObserver(self.loop),
            BackwardObserver(self.loop),
            ZeroGradObserver(self.loop),
            ClippingObserver(self.loop),
            GradScalerObserver(self.loop),
            OptimizerStepObserver(self.loop),
            self.schedule_observer,
            self.flag_observer,
            AllReduceObserver(self.loop),
            StateDictObserver(self.loop),
            self.hook_observer,
            UpdateCallsObserver(self.loop),
            LoaderObserver(self.loop),
        ]
        self.status = "completed"
        self.error: str | None = None

    @property
    def faults(self) -> list[FaultRecord]:
        return self.loop.faults.records

    @property
    def folder(self) -> Path:
        """The folder of its files; it is created when the watch is entered."""
        return self.output_folder.path

    @property
    def broken(self) -> bool:
        """Whether an exception inside this package has ended the watch, or one of its readers."""
        return self.instrumentation.broken or bool(self.loop.seen.switched_off)

    @property
    def main(self) -> bool:
        """Whether this is rank 0, or the only process."""
        return self.output_folder.main

    def __enter__(self) -> Watch:
        if self.instrumentation.active:
            raise RuntimeError("watch: it is running already; gradlab.watch(...) makes another one")
        try:
            self.discovery.install(self.instrumentation)
            for output in self.loop.outputs:
                output.open()
                output.tracker.reset()
            for observer in self.observers:
                observer.install(self.instrumentation)
            self.loop.on_new_optimizer.append(self.open_output)
        except BaseException:
            self.instrumentation.stop()
            for output in self.loop.outputs:
                output.lock.close()
            raise
        self.instrumentation.start()
        self.instrumentation.guarded(self.loop.follow_order)
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self.instrumentation.run_last(self.finish)
        self.instrumentation.stop()
        self.loop.activations.close()
        self.loop.followed.end()
        if self.instrumentation.forked:
            return
        self.status, self.error = end_status(error)
        scaler = self.loop.scaler
        for output in self.loop.outputs:
            try:
                output.close(scaler.value(), self.faults_of(output.tracker), self.status, self.error, scaler.enabled)
            except Exception as failed:
                output.set_incomplete(f"{type(failed).__name__}: {failed}")
        for output in self.loop.outputs:
            faults, several = self.faults_of(output.tracker), len(self.loop.outputs) > 1
            report = output.report(faults, scaler.enabled, several)
            output.write(summary.facts(output, self.loop.outputs, faults, report, self.loop.update_calls.facts()))
        for message in dict.fromkeys(o.write_error for o in self.loop.outputs if o.write_error):
            self.report_now(message)

    def report(self) -> str:
        """The verdicts, mistakes and findings so far, as text."""
        self.instrumentation.guarded(self.loop.finish_updates)
        outputs = self.loop.outputs
        lines = summary.report_lines(outputs, self.faults_of, self.loop.scaler.enabled)
        if outputs and not any(o.started for o in outputs):
            return "nothing was observed yet: the watch begins with `with`"
        if not lines:
            return "nothing was observed: no optimizer of the model's parameters was found"
        if self.faults:
            lines.append(f"python -m gradlab.audit --explain {self.faults[0].code} explains why")
        elif self.loop.update_calls.calls and any(o.final is not None and o.final.unhealthy for o in outputs):
            lines.append("no mistake was found in the loop: watch.update_calls() lists what one update does")
        lines += dict.fromkeys(o.write_error for o in outputs if o.write_error)
        return "\n".join([*lines, *[f"folder: {self.folder}"] * (self.output_folder.absolute is not None)])

    def update_calls(self) -> str:
        """The calls of one update, the sixth, in their order: line, call, what it did; empty before it."""
        calls = self.loop.update_calls.facts()
        width = max((len(call["place"]) for call in calls), default=0)
        times = [f" ({call['times']} times)" if call["times"] > 1 else "" for call in calls]
        return "\n".join(f"{c['place']:{width}}  {c['text']}{n}" for c, n in zip(calls, times, strict=True))

    def finish(self) -> None:
        """The loop is over."""
        loop, self.loop.faults.strict = self.loop, False  # there is no line to stop at any more
        loop.end_followed()
        ask = loop.seen.ask
        for tracker in loop.trackers:
            compiled_steps.detect(loop, tracker)
            loop.add_violations(tracker, reach.at_end(tracker, loop.trackers, loop.seen), at_end=True)
            loop.add_violations(tracker, eval_mode.at_end(tracker, loop.models, loop.modes), at_end=True)
            loop.add_violations(tracker, ask(loop.cuts.at_end, tracker, default=[]), at_end=True)
            zeros = ask(loop.zeros.at_end, tracker, set(loop.cuts.found), default=[])
            loop.add_violations(tracker, zeros, at_end=True)
            drawn = ask(reach.frozen_as_drawn, tracker, loop.initial, loop.seen, loop.names(), default=[])
            loop.add_violations(tracker, drawn, at_end=True)
            still = ask(loop.still_targets.at_end, tracker, set(loop.tracker_of), default=[])
            loop.add_violations(tracker, still, at_end=True)
            metrics = loop.outputs[tracker.index].metrics
            for site, zeroed in metrics.zeroed_names().items():
                detail = f"none is left of {listed(zeroed)}"
                loop.add_fault("zero-before-step", site, tracker, detail, update=metrics.zeroed_from)
            if tracker.feeding.unreached >= reach.OFTEN and self.discovery.is_only_one(tracker):
                since = tracker.attempts - tracker.feeding.unreached + 1
                detail = f"from update {since} on"
                loop.add_fault("step-without-gradient", tracker.step_site, tracker, detail, update=since)
        for tracker, violation in ask(
            far_rates.at_end, loop.trackers, loop.initial, loop.models, loop.need_not_fall, default=[]
        ):
            loop.add_violations(tracker, [violation], at_end=True)
        for tracker in loop.trackers[:1]:
            loop.add_violations(tracker, ask(loop.statistics.at_end, loop.reads.writes, default=[]), at_end=True)
        if (origin := loop.not_finite.found) is not None and origin.tracker is not None:
            loop.add_fault("not-finite", origin.site, origin.tracker, origin.words, update=origin.update)
        names = ask(loop.unheld.names)
        starved = any(record.name == "step-without-gradient" for record in self.faults)
        for tracker, weights in ask(loop.unheld.at_end, starved, default=[]):
            detail = listed([names[p] for p in weights])
            loop.add_violations(tracker, [reach.held_by_none(tracker, loop.models, weights, detail)], at_end=True)
        for each in (self.discovery, self.schedule_observer, self.flag_observer, self.hook_observer):
            ask(each.at_end)

    def faults_of(self, tracker: OptimizerTracker) -> list[FaultRecord]:
        return self.loop.faults.of(tracker.index)

    def open_output(self, tracker: OptimizerTracker) -> None:
        """An optimizer was discovered while the loop runs: an error must not end the training."""
        output = self.loop.outputs[tracker.index]
        try:
            output.open()
        except ValueError as error:
            output.write_error = str(error)

    def after_fork(self) -> None:
        """In a forked copy of the process: leave the files to the first one."""
        for output in self.loop.outputs:
            output.files.abandon()
            output.lock.close()

    def report_now(self, text: str) -> None:
        if not self.quiet:
            print_message(text)
