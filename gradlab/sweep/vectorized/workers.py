"""Worker processes that train lanes: each receives one chunk of jobs after the other and reports their ends."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

BEAT = 0.5
"""Seconds between two heartbeats."""


@dataclass
class Chunk:
    """Jobs of one program that are trained together."""

    program: int
    places: list[int]
    """Places among the program's jobs."""


Work = Callable[[Chunk, Callable[[int, int], None], Callable[[int], None]], None]
"""Trains a chunk. Gets two callbacks: (place, exit code) of each job that ended, and the number of updates made."""


class Orphan(Exception):
    """The parent process is gone."""


def serve(work: Work, pipe: Connection) -> None:
    """The loop of a worker: ask for a chunk, train it, report, until there is none left."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends this process
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # by this
    gc.freeze()  # objects of the parent need no collection
    parent, last, updates = os.getppid(), time.monotonic(), 0

    def beat(made: int) -> None:
        nonlocal last, updates
        updates += made
        if time.monotonic() - last > BEAT:
            last = time.monotonic()
            if os.getppid() != parent:
                raise Orphan
            pipe.send(("updates", updates))
            updates = 0

    with contextlib.suppress(EOFError, BrokenPipeError, Orphan):
        while True:
            pipe.send(("ready",))
            while not pipe.poll(1.0):  # this process holds the other end too: recv would wait forever
                if os.getppid() != parent:
                    return
            chunk: Chunk | None = pipe.recv()
            if chunk is None:
                return
            try:
                work(chunk, lambda place, code: pipe.send(("ended", place, code)), beat)
            except (EOFError, BrokenPipeError, Orphan):
                raise
            except Exception:
                pipe.send(("failed", traceback.format_exc()))
            pipe.send(("updates", updates))
            updates = 0


class Workers:
    """Processes forked from this one: they share what it has composed, and only numbers are sent."""

    def __init__(self, work: Work, number: int) -> None:
        context = multiprocessing.get_context("fork")
        self.pipes: dict[Any, Any] = {}
        for _ in range(number):
            mine, its = context.Pipe()
            process = context.Process(target=serve, args=(work, its), daemon=True)
            process.start()
            its.close()
            self.pipes[mine] = process

    def run(
        self,
        chunks: Sequence[Chunk],
        ended: Callable[[Chunk, int, int], None],
        updates: Callable[[int], None],
        jobs_failed: Callable[[Chunk, list[int], str], None],
    ) -> None:
        """Distribute all chunks. ended: gets a job and its exit code; jobs_failed: those that did not end, and why."""
        waiting, at = list(chunks), dict[Any, Chunk]()
        left: dict[Any, list[int]] = {}
        open_: set[Any] = set(self.pipes)
        while open_:
            ready: list[Any] = wait(list(open_), timeout=1.0)
            updates(0)  # so that the elapsed time is shown
            for pipe in ready:
                try:
                    kind, *message = pipe.recv()
                except (EOFError, ConnectionError):
                    open_.discard(pipe)
                    if left.get(pipe):
                        self.pipes[pipe].join(5)
                        jobs_failed(at[pipe], left.pop(pipe), f"its process ended ({self.pipes[pipe].exitcode})")
                    continue
                if kind == "updates":
                    updates(message[0])
                elif kind == "ended":
                    left[pipe].remove(message[0])
                    ended(at[pipe], *message)
                elif kind == "failed" and left.get(pipe):
                    jobs_failed(at[pipe], left.pop(pipe), message[0])
                elif kind == "ready":
                    if left.get(pipe):
                        jobs_failed(at[pipe], left.pop(pipe), "it was not trained")
                    chunk = waiting.pop(0) if waiting else None
                    if chunk is not None:
                        at[pipe], left[pipe] = chunk, list(chunk.places)
                    else:
                        open_.discard(pipe)
                    pipe.send(chunk)
        for chunk in waiting:  # no process is left
            jobs_failed(chunk, chunk.places, "no process was left to train it")

    def end(self) -> None:
        """End the processes that are still there."""
        for process in self.pipes.values():
            process.terminate()
            process.join()
