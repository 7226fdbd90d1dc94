"""Processes that train lanes: each is handed one chunk of jobs after the other, and tells what becomes of them."""

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
"""Seconds between two signs of life."""


@dataclass
class Chunk:
    """Jobs of one program that are trained together."""

    program: int
    places: list[int]
    """Places among the program's jobs."""


Work = Callable[[Chunk, Callable[[int, int], None], Callable[[int], None]], None]
"""Trains a chunk: is handed what to call with each job (its place) and its exit code, and with updates made since."""


class Orphan(Exception):
    """The process that hands out the work is gone."""


def serve(work: Work, pipe: Connection) -> None:
    """A worker's life: ask, train, tell, until there is nothing left."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends this process
    gc.freeze()  # what was there before is not looked through again and again
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
            while not pipe.poll(1.0):  # this process too holds the other end: it would wait for ever
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
    """Some processes, forked from this one: they share what it has composed, and nothing is sent but numbers."""

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
        lost: Callable[[Chunk, list[int], str], None],
    ) -> None:
        """Hand out all chunks. ended: a job and its exit code; lost: the jobs of a chunk that have no end, and why."""
        waiting, at = list(chunks), dict[Any, Chunk]()
        left: dict[Any, list[int]] = {}
        open_: set[Any] = set(self.pipes)
        while open_:
            ready: list[Any] = wait(list(open_), timeout=1.0)
            for pipe in ready:
                try:
                    kind, *told = pipe.recv()
                except (EOFError, ConnectionError):
                    open_.discard(pipe)
                    if left.get(pipe):
                        self.pipes[pipe].join(5)
                        lost(at[pipe], left.pop(pipe), f"its process ended ({self.pipes[pipe].exitcode})")
                    continue
                if kind == "updates":
                    updates(told[0])
                elif kind == "ended":
                    left[pipe].remove(told[0])
                    ended(at[pipe], *told)
                elif kind == "failed" and left.get(pipe):
                    lost(at[pipe], left.pop(pipe), told[0])
                elif kind == "ready":
                    if left.get(pipe):
                        lost(at[pipe], left.pop(pipe), "it was not trained")
                    chunk = waiting.pop(0) if waiting else None
                    if chunk is not None:
                        at[pipe], left[pipe] = chunk, list(chunk.places)
                    else:
                        open_.discard(pipe)
                    pipe.send(chunk)
        for chunk in waiting:  # no process is left
            lost(chunk, chunk.places, "no process was left to train it")

    def end(self) -> None:
        """End the processes that are still there."""
        for process in self.pipes.values():
            process.terminate()
            process.join()
