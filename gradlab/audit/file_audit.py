"""One file audited: its loops are found and followed, and every rule has its say."""

from __future__ import annotations

import re

from gradlab.audit import rules
from gradlab.audit.finding import Finding, finding
from gradlab.audit.interpreter.entry_points import loops
from gradlab.audit.result import Result
from gradlab.audit.source.files import Source
from gradlab.audit.source.ignore_comments import silenced
from gradlab.audit.source.locations import beside, placed
from gradlab.audit.source.project import Project
from gradlab.audit.trace.rate_compensation import compensated
from gradlab.audit.trace.scenarios import runs
from gradlab.audit.trace.training_loop import Unit
from gradlab.audit.trace.undecided import doubts, heard
from gradlab.codes import CODES, UNREADABLE

TRAINING = re.compile(
    r"backward\s*\(|scaler\s*\(|\.step\s*\(|clip_grad|zero_grad|def (training_step|compute_loss)\b", re.I
)
"""A file without any of these has no loop to follow; its backward pass may be in another file."""
TEXT = re.compile(r"torch|lightning|Train(er|ingArg)|loss", re.I)


def audit(source: Source, project: Project, selected: dict[str, rules.Rule]) -> Result:
    result = Result(source)
    if source.error is not None:
        result.findings = unreadable(source, *source.error)
    elif source.tree is not None and TEXT.search(source.text):
        found: dict[tuple, Finding] = {}
        try:
            module = project.add(source)
            if TRAINING.search(source.text):
                followed = loops(module, project, result)
                for unit in followed:
                    unit.compensated = compensated(module, unit)
                    judge(unit, selected, found, result)
                heard(followed, module, result)
            for rule in selected.values():
                for node in rule.text(module) if rule.text is not None else ():
                    keep(found, finding(rule.code, rule.severity, rule.message, module.path, node, rule.name))
        except RecursionError:
            result.undecided.append((1, "nested too deeply to be followed"))
        sources = {str(source.path): source} | {m.path: m.source for m in project.modules.values() if m is not None}
        for path in dict.fromkeys(one.path for one in found.values()):
            if path in sources:
                said = placed([one for one in found.values() if one.path == path], sources[path])
                if path == str(source.path):
                    result.findings = said
                else:
                    result.elsewhere += [beside(one, source.path) for one in said]
    result.undecided += source.notes
    result.findings.sort(key=lambda f: f.key)
    for one in result.findings:
        one.end_line = source.cell(one.end_line)[1]
        one.cell, one.line = source.cell(one.line)
    return result


def unreadable(source: Source, line: int, column: int, message: str) -> list[Finding]:
    code = CODES[UNREADABLE]
    one = Finding(code.code, code.severity, message, str(source.path), line, column, name=code.name)
    return [] if silenced(source.text.split("\n"), one) else [one]


def keep(found: dict[tuple, Finding], one: Finding) -> None:
    found.setdefault(one.key, one)


def judge(unit: Unit, selected: dict[str, rules.Rule], found: dict[tuple, Finding], result: Result) -> None:
    cases = runs(unit)
    silent: dict[int, list[str]] = {}
    for rule in selected.values():
        unit.doubts.clear()
        places = [*rules.shown(rule, unit, cases), *(rule.unit(unit) if rule.unit is not None else ())]
        for path, node in places:
            keep(found, finding(rule.code, rule.severity, rule.message, path, node, rule.name))
        for event in {id(event): event for event in unit.doubts}:
            silent.setdefault(event, []).append(rule.code)
    result.undecided += doubts(unit, silent, str(result.source.path))
