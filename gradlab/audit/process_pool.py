"""Many files audited, by several processes where they are very many; what they found put together."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gradlab.audit import rules
from gradlab.audit.file_audit import audit
from gradlab.audit.finding import Finding
from gradlab.audit.result import Result
from gradlab.audit.source.exclusion import Excluded
from gradlab.audit.source.files import Source, read
from gradlab.audit.source.ignore_comments import unknown
from gradlab.audit.source.project import Project
from gradlab.audit.source.settings import Wrong

MANY, PART = 200, 40
"""From how many files on they are shared out among processes, and how many a process takes at a time."""


def merged(results: list[Result], given: list[Path], files: list[Path], excluded: Excluded) -> list[Finding]:
    """What was found, once each: a helper's file speaks for itself, and for what its callers do with it."""
    said = {f.key: f for result in results for f in result.findings}
    own, folders = {str(path) for path in files}, [path.resolve() for path in given if path.is_dir()]
    for found in (f for result in results for f in result.elsewhere if f.key not in said):
        left_out = excluded(found.path) or any(folder in Path(found.path).resolve().parents for folder in folders)
        if found.path in own or not left_out:
            said[found.key] = found
    order = {str(path): i for i, path in enumerate(files)}
    return sorted(said.values(), key=lambda f: (order.get(f.path, len(order)), f.key))


def over(paths: list[Path], selected: list[str]) -> list[Result]:
    """What is found in files, of many by as many processes as may run."""
    workers = min(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1, 8)
    if len(paths) < MANY or workers == 1:
        return several(paths, selected)
    from concurrent.futures import ProcessPoolExecutor
    from concurrent.futures.process import BrokenProcessPool

    parts = [paths[i : i + PART] for i in range(0, len(paths), PART)]
    try:
        with ProcessPoolExecutor(workers, initializer=begun, initargs=(sys.getrecursionlimit(),)) as pool:
            with held_back():
                found = pool.map(several, parts, [selected] * len(parts))
            return [result for part in found for result in part]
    except BrokenProcessPool:
        raise Wrong("one of its processes was ended from outside (too little memory?); give it fewer files") from None


def begun(limit: int) -> None:
    """In each process: Ctrl-C ends it at once and without a word, the first process has the last one."""
    sys.setrecursionlimit(limit)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    masked(False)


@contextmanager
def held_back() -> Iterator[None]:
    """Ctrl-C waits until processes that are being made can hear it."""
    masked(True)
    try:
        yield
    finally:
        masked(False)


def masked(blocked: bool) -> None:
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_BLOCK if blocked else signal.SIG_UNBLOCK, {signal.SIGINT})


def several(paths: list[Path], selected: list[str]) -> list[Result]:
    known, project = rules.load(), Project()
    return [answered(path, project, {code: known[code] for code in selected}) for path in paths]


def answered(path: Path, project: Project, selected: dict[str, rules.Rule]) -> Result:
    """Whatever a file holds, there is an answer."""
    try:
        source = read(path)
        result = audit(source, project, selected)
    except Exception as error:
        print(f"{path}: a fault of gradlab.audit, no answer: {type(error).__name__}: {error}", file=sys.stderr)
        result = Result(Source(path))
    else:
        result.unheeded = [(source.place(line), text) for line, text in unknown(source)]
    project.forget()
    result.source = Source(path, cells=result.source.cells)  # the text and its tree are not needed any more
    return result
