"""The audit of one file: its training loops are found and followed, and every selected rule is applied."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from gradlab.audit.finding import Finding, Key, beside, characters, finding
from gradlab.audit.interpreter.entry_points import follow_file
from gradlab.audit.result import FileResult
from gradlab.audit.rules.registry import Rule
from gradlab.audit.rules.reporting import Place, reported
from gradlab.audit.source.files import Source
from gradlab.audit.source.ignore_comments import silenced
from gradlab.audit.source.project import Module, Project
from gradlab.audit.trace.rate_compensation import compensated
from gradlab.audit.trace.scenarios import scenarios
from gradlab.audit.trace.training_loop import TrainingLoop, differentiable
from gradlab.audit.trace.undecided import record_coverage, undecided
from gradlab.audit.trace.values import Event
from gradlab.codes import CODES, UNREADABLE

TRAINING = re.compile(
    r"backward\s*\(|scaler\s*\(|\.step\s*\(|clip_grad|zero_grad|def (training_step|compute_loss)\b", re.I
)
"""A file without any of these has no training loop to follow, unless it is a script that uses one that has."""
STEPLESS = ("GL712", "GL713")
"""The rules about loops in which nothing steps."""
TEXT = re.compile(r"torch|lightning|Train(er|ingArg)|loss", re.I)


def audit(source: Source, project: Project, selected: dict[str, Rule]) -> FileResult:
    result = FileResult(source)
    if source.error is not None:
        result.findings = unreadable(source, *source.error)
    elif source.tree is not None and TEXT.search(source.text):
        found: dict[Key, Finding] = {}
        try:
            apply_rules(project.add(source), project, selected, found, result)
        except RecursionError:
            result.undecided.append((1, "nested too deeply to be followed"))
        report(found, project, result)
    result.undecided += source.notes
    result.findings.sort(key=lambda f: f.key)
    for one in result.findings:
        one.end_line = source.cell(one.end_line)[1]
        one.cell, one.line = source.cell(one.line)
    return result


def apply_rules(
    module: Module, project: Project, selected: dict[str, Rule], found: dict[Key, Finding], result: FileResult
) -> None:
    read = {module.path}
    if TRAINING.search(module.source.text) or starts_training(module, project):
        followed = follow_file(module, project)
        result.undecided += [(getattr(n, "lineno", 1), "nested too deeply to be followed") for n in followed.skipped]
        if followed.exhausted is not None:
            text = "too many calls: from here on each function is followed by itself, and what it calls is not"
            result.undecided.append((getattr(followed.exhausted, "lineno", 1), text))
        if project.unread:
            text = f"too much is imported: {len(project.unread)} files of the project were not read"
            result.undecided.append((1, text))
        for loop in followed.loops:
            loop.compensated = compensated(module, loop)
            judge(loop, selected, found, result)
        for loop in followed.stepless:
            judge(loop, {code: selected[code] for code in selected if code in STEPLESS}, found, result)
        called: dict[Key, Finding] = {}
        for loop in followed.called:
            loop.compensated = compensated(module, loop)
            judge(loop, selected, called, result)
        found |= {key: one for key, one in called.items() if one.path == module.path}
        read |= {path for loop in followed.loops for event in loop.events for path in texts_of(event)}
        record_coverage([*followed.loops, *followed.called], module, followed.visited, result)
    for there in [one for one in project.modules.values() if one is not None and one.path in read]:
        for rule in selected.values():
            for node in rule.text(there) if rule.text is not None else ():
                one = finding(rule.code, rule.severity, rule.message, there.path, node, rule.name)
                found.setdefault(one.key, one)


def texts_of(event: Event) -> Iterator[str]:
    """The files that have a part in what happens: where it is written, where objects and blocks are made, networks."""
    made = (event.value, event.scaler, *(region.context for region in event.regions))
    yield from (event.path, *(value.path for value in made if value is not None))
    if event.kind == "forward" and event.value is not None and differentiable(event):
        root = event.value.root()
        parts = [one for one in root.attributes.values() if one.kind == "model"]
        yield from (module.path for one in (root, *parts) for module in one.modules)


def starts_training(module: Module, project: Project) -> bool:
    """Whether it is a script, and what it imports is of files that train, or is such a file."""
    tree = module.source.tree
    if tree is None or not any(isinstance(n, (ast.If, ast.For, ast.While, ast.With, ast.Expr)) for n in tree.body[1:]):
        return False
    found = [project.resolve(name, level, module) for name, level in module.imports.values()]
    files = [project.file(f"{name}.*", level, module) for name, level in module.imports.values()]
    modules = [*(one[0] for one in (*found, *files) if one is not None), *project.catalogue(module).values()]
    return any(one is not None and TRAINING.search(one.source.text) for one in modules)


def judge(loop: TrainingLoop, selected: dict[str, Rule], found: dict[Key, Finding], result: FileResult) -> None:
    """Apply the rules to a training loop."""
    if loop.too_large:
        at = loop.statement.node if loop.statement is not None else next((e.node for e in loop.events), None)
        result.undecided.append((getattr(at, "lineno", 1), "too many conditions: this loop was not judged"))
        return
    cases = scenarios(loop)
    loop.happening = {id(step.event) for case in cases for step in case.steps}
    silent: dict[int, list[str]] = {}
    for rule in selected.values():
        loop.unresolved.clear()
        found_by_loop = rule.loop(loop) if rule.loop is not None else ()
        for path, node, note in [*reported(rule, loop, cases), *(Place(*one) for one in found_by_loop)]:
            one = finding(rule.code, rule.severity, rule.message + note, path, node, rule.name)
            found.setdefault(one.key, one)
        for event in {id(event) for event in loop.unresolved}:
            silent.setdefault(event, []).append(rule.code)
    result.undecided += undecided(loop, silent, str(result.source.path))


def report(found: dict[Key, Finding], project: Project, result: FileResult) -> None:
    """Split findings into those of the audited file and those of files that it imports, without silenced ones."""
    source = result.source
    sources = {str(source.path): source} | {m.path: m.source for m in project.modules.values() if m is not None}
    for path in dict.fromkeys(one.path for one in found.values()):
        if path in sources:
            here = located([one for one in found.values() if one.path == path], sources[path])
            if path == str(source.path):
                result.findings = here
            else:
                result.elsewhere += [beside(one, source.path) for one in here]


def located(found: list[Finding], source: Source) -> list[Finding]:
    """Findings in a file without those that it silences, their columns counted in characters."""
    lines = source.text.split("\n")
    for one in found:
        one.column = characters(lines, one.line, one.column)
        one.end_column = characters(lines, one.end_line, one.end_column)
    return [one for one in found if not silenced(lines, one)]


def unreadable(source: Source, line: int, column: int, message: str) -> list[Finding]:
    code = CODES[UNREADABLE]
    one = Finding(code.code, code.severity, message, str(source.path), line, column, name=code.name)
    return [] if silenced(source.text.split("\n"), one) else [one]
