"""Many files audited, in several processes where they are very many, and their findings merged."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gradlab.audit.file_audit import audit
from gradlab.audit.finding import Finding
from gradlab.audit.result import FileResult
from gradlab.audit.rules.registry import Rule, load_rules
from gradlab.audit.source.files import Source, read
from gradlab.audit.source.ignore_comments import ineffective
from gradlab.audit.source.project import Project
from gradlab.audit.source.settings import Excluded, UsageError

MANY, PART = 200, 40
"""From how many files on several processes are used, and how many files a process takes at a time."""


def merged(results: list[FileResult], given: list[Path], files: list[Path], excluded: Excluded) -> list[Finding]:
    """All findings, once each: those of a file itself, and those that were found where another file imports it."""
    found = {f.key: f for result in results for f in result.findings}
    own, folders = {str(path) for path in files}, [path.resolve() for path in given if path.is_dir()]
    for one in (f for result in results for f in result.elsewhere if f.key not in found):
        left_out = excluded(one.path) or any(folder in Path(one.path).resolve().parents for folder in folders)
        if one.path in own or not left_out:
            found[one.key] = one
    order = {str(path): i for i, path in enumerate(files)}
    return sorted(found.values(), key=lambda f: (order.get(f.path, len(order)), f.key))


def audit_files(paths: list[Path], selected: list[str]) -> list[FileResult]:
    """The results of files, in their order; of many files by one process per core, up to 8."""
    workers = min(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1, 8)
    if len(paths) < MANY or workers == 1:
        return audit_part(paths, selected)
    from concurrent.futures import ProcessPoolExecutor
    from concurrent.futures.process import BrokenProcessPool
    from multiprocessing import active_children

    parts = [paths[i : i + PART] for i in range(0, len(paths), PART)]
    try:
        with ProcessPoolExecutor(workers, initializer=start, initargs=(sys.getrecursionlimit(),)) as pool:
            try:
                with interrupts_delayed():
                    found = [pool.submit(audit_part, part, selected) for part in parts]
                return [result for part in found for result in part.result()]
            except KeyboardInterrupt:  # nothing is cancelled: until Python 3.12 the pool's thread fails on what is
                for worker in active_children():
                    worker.terminate()
                raise
    except BrokenProcessPool:
        raise UsageError("a worker process was killed (out of memory?); audit fewer files at a time") from None


def start(limit: int) -> None:
    """In each process: Ctrl-C ends it at once and without output; the first process reports."""
    sys.setrecursionlimit(limit)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    block_interrupts(False)


@contextmanager
def interrupts_delayed() -> Iterator[None]:
    """Ctrl-C waits until the processes that are being started can receive it."""
    block_interrupts(True)
    try:
        yield
    finally:
        block_interrupts(False)


def block_interrupts(blocked: bool) -> None:
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_BLOCK if blocked else signal.SIG_UNBLOCK, {signal.SIGINT})


def audit_part(paths: list[Path], selected: list[str]) -> list[FileResult]:
    known, project = load_rules(), Project()
    return [audit_file(path, project, {code: known[code] for code in selected}) for path in paths]


def audit_file(path: Path, project: Project, selected: dict[str, Rule]) -> FileResult:
    """Whatever a file contains, there is a result."""
    try:
        source = read(path)
        result = audit(source, project, selected)
    except Exception as error:
        print(f"{path}: internal error of gradlab.audit, no result: {type(error).__name__}: {error}", file=sys.stderr)
        result = FileResult(Source(path))
    else:
        result.ineffective = [(source.place(line), text) for line, text in ineffective(source)]
    project.forget()
    result.source = Source(path, cells=result.source.cells)  # the text and its tree are not needed any more
    return result
