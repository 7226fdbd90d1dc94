"""A watched loop: what it calls is told to those who follow it, and all is put right when it ends."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import nn

from gradlab.measure.monitor import Summary
from gradlab.watch import parts, telling, unseen
from gradlab.watch.backward import Backwards
from gradlab.watch.clearing import Clearing
from gradlab.watch.clipping import Clipping
from gradlab.watch.faults import Fault, Faults, Seen, printed
from gradlab.watch.follower import Follower
from gradlab.watch.forward import Forward
from gradlab.watch.listening import Listener, Listening
from gradlab.watch.loop import Loop
from gradlab.watch.meeting import Meeting
from gradlab.watch.place import Place
from gradlab.watch.reducing import Reducing
from gradlab.watch.scaling import Scaling
from gradlab.watch.scheduling import Scheduling
from gradlab.watch.stepping import Stepping

BROKEN_OFF = (KeyboardInterrupt, SystemExit, GeneratorExit)


def ended(error: BaseException | None) -> tuple[str, str | None]:
    """How a loop ended: completed, failed or interrupted, and with which words. A generator that is closed, and an exit
    that tells of no failure, are ends like others."""
    if error is None or isinstance(error, GeneratorExit) or (isinstance(error, SystemExit) and not error.code):
        return "completed", None
    says, name = " ".join(str(error).split())[:1000], type(error).__name__
    if isinstance(error, Fault):
        says = f"{error.code} (strict=True)"
    return "interrupted" if isinstance(error, BROKEN_OFF) else "failed", f"{name}: {says}" if says else name


class Watch:
    """Context manager around a loop. What it sees is in `faults`, and what was measured in `folder` at the end."""

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
        """model, optimizer, schedule: one, or several. Where no optimizer is named, all that train the models are
        followed; a scaler is followed from where it is met. folder: for what was measured; None: one of its own in
        outputs/watch. strict: raise `Fault` at the first error. every, step_every: updates between two records of each
        layer's gradient, and of how far it moves (0: never). quiet: say nothing while the loop runs.

        Raises TypeError or ValueError for what does not fit, naming argument, given and expected.
        """
        monitor = Summary(parts.count("every", every, 1), parts.count("step_every", step_every, 0))
        self.quiet = parts.flag("quiet", quiet)
        models, optimizers = parts.models_of(model), parts.optimizers_of(optimizer)
        given = parts.scaler_of(scaler), parts.schedules_of(schedule)
        self.place = Place(folder)
        self.loop = Loop(
            models, optimizers, *given, self.place, monitor, Faults(parts.flag("strict", strict), self.say)
        )
        self.listening = Listening(self.say, self.left)
        self.meeting = Meeting(self.loop, wanted=optimizer is None)
        self.scheduling = Scheduling(self.loop)
        self.listeners: list[Listener] = [
            Forward(self.loop),
            Backwards(self.loop),
            Clearing(self.loop),
            Clipping(self.loop),
            Scaling(self.loop),
            Stepping(self.loop),
            self.scheduling,
            Reducing(self.loop),
        ]
        self.status = "completed"
        self.error: str | None = None

    @property
    def faults(self) -> list[Seen]:
        return self.loop.faults.all

    @property
    def folder(self) -> Path:
        """Where it writes, once it is entered."""
        return self.place.path

    @property
    def broken(self) -> bool:
        """Whether it ended by a mistake of its own."""
        return self.listening.broken

    @property
    def main(self) -> bool:
        """Whether this is the first of the ranks, or the only one."""
        return self.place.main

    def __enter__(self) -> Watch:
        if self.listening.active:
            raise RuntimeError("watch: it is under way already; another one is made by gradlab.watch(...)")
        try:
            self.meeting.listen(self.listening)
            for output in self.loop.outputs:
                output.open()
                output.follower.forget()
            for listener in self.listeners:
                listener.listen(self.listening)
            self.loop.followed.append(self.met)
        except BaseException:
            self.listening.end()
            for output in self.loop.outputs:
                output.held.close()
            raise
        self.listening.begin()
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self.listening.finish(self.finish)
        self.listening.end()
        if self.listening.copied:
            return
        self.status, self.error = ended(error)
        scale = self.loop.scale
        for output in self.loop.outputs:
            try:
                output.close(scale.now(), self.of(output.follower), self.status, self.error, scale.on)
            except Exception as failed:
                output.unwritten = f"{self.folder} is not whole: {type(failed).__name__}: {failed}"
        for output in self.loop.outputs:
            faults, several = self.of(output.follower), len(self.loop.outputs) > 1
            report = output.report(faults, scale.on, several)
            output.write(telling.facts(output, self.loop.outputs, faults, report))
        for says in dict.fromkeys(o.unwritten for o in self.loop.outputs if o.unwritten):
            self.say(says)

    def report(self) -> str:
        """What was found, as text."""
        self.listening.guarded(self.loop.settle)
        outputs, scaled = self.loop.outputs, self.loop.scale.on
        lines = telling.lines(outputs, self.of, scaled)
        if self.loop.outputs and not any(o.began for o in outputs):
            return "nothing was seen yet: the watch begins with `with`"
        if not lines:
            return "nothing was seen: no optimizer of the model's parameters was met"
        if self.faults:
            lines.append(f"python -m gradlab.audit --explain {self.faults[0].code} tells why")
        lines += dict.fromkeys(o.unwritten for o in outputs if o.unwritten)
        return "\n".join([*lines, *[f"all of it: {self.folder}"] * (self.place.taken is not None)])

    def finish(self) -> None:
        """The loop is over."""
        for f in self.loop.followers:
            unseen.catch_up(self.loop, f)
        self.scheduling.finish()

    def of(self, f: Follower) -> list[Seen]:
        return self.loop.faults.of(f.index)

    def met(self, f: Follower) -> None:
        output = self.loop.outputs[f.index]
        try:
            output.open()
        except ValueError as error:  # in the midst of a training
            output.unwritten = str(error)

    def left(self) -> None:
        """In a copy of the process."""
        for output in self.loop.outputs:
            output.files.abandon()
            output.held.close()

    def say(self, text: str) -> None:
        if not self.quiet:
            printed(text)
