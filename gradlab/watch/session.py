"""A watched loop: what it calls is told to those who follow it, and all is put right when it ends."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import nn

from gradlab.monitor import Summary
from gradlab.watch import parts
from gradlab.watch.backward import Backwards
from gradlab.watch.clearing import Clearing
from gradlab.watch.clipping import Clipping
from gradlab.watch.faults import Faults, Seen, printed
from gradlab.watch.follower import Follower
from gradlab.watch.forward import Forward
from gradlab.watch.listening import Listener, Listening
from gradlab.watch.loop import Loop
from gradlab.watch.meeting import Meeting
from gradlab.watch.reducing import Reducing
from gradlab.watch.scaling import Scaling
from gradlab.watch.scheduling import Scheduling
from gradlab.watch.stepping import Stepping

BROKEN_OFF = (KeyboardInterrupt, SystemExit, GeneratorExit)


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
        """
        monitor = Summary(parts.count("every", every, 1), parts.count("step_every", step_every, 0))
        self.quiet = quiet
        models, optimizers = parts.models_of(model), parts.optimizers_of(optimizer)
        given = parts.scaler_of(scaler), parts.schedules_of(schedule)
        self.folder = parts.folder_of(folder)
        self.loop = Loop(models, optimizers, *given, self.folder, monitor, Faults(strict, self.say))
        self.listening = Listening(self.say)
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
    def broken(self) -> bool:
        """Whether it ended by a mistake of its own."""
        return self.listening.broken

    @property
    def main(self) -> bool:
        """Whether this is the first of the ranks, or the only one."""
        return self.loop.main

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
            raise
        self.listening.active = True
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self.listening.guarded(self.scheduling.finish)
        self.listening.end()
        self.status, self.error = "completed", None
        if error is not None:
            self.status = "interrupted" if isinstance(error, BROKEN_OFF) else "failed"
            self.error = " ".join(str(error).split())[:1000] or type(error).__name__
        scale = self.loop.scale
        try:
            for output in self.loop.outputs:
                output.close(scale.now(), self.of(output.follower), self.status, self.error, scale.on)
        except Exception as failed:
            self.say(f"{self.folder} was not finished: {type(failed).__name__}: {failed}")

    def report(self) -> str:
        """What was found, as text."""
        outputs, scaled = self.loop.outputs, self.loop.scale.on
        lines = [line for o in outputs for line in o.report(self.of(o.follower), scaled)]
        if not lines:
            return "nothing was seen: no optimizer of the model's parameters was met"
        if self.faults:
            lines.append(f"python -m gradlab.audit --explain {self.faults[0].code} tells why")
        return "\n".join([*lines, f"all of it: {self.folder}"])

    def of(self, f: Follower) -> list[Seen]:
        return self.loop.faults.of(f.index)

    def met(self, f: Follower) -> None:
        self.loop.outputs[f.index].open()

    def say(self, text: str) -> None:
        if not self.quiet:
            printed(text)
