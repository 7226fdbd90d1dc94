"""One file audited: its loops are found and followed, and every rule has its say."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from gradlab.audit import rules
from gradlab.audit.doubts import doubts, heard
from gradlab.audit.entering import enter
from gradlab.audit.finding import Finding, finding
from gradlab.audit.instances import instance
from gradlab.audit.interpreter import Interpreter
from gradlab.audit.known import dotted
from gradlab.audit.objects import method_of
from gradlab.audit.placing import beside, placed
from gradlab.audit.project import Function, Module, Project
from gradlab.audit.scope import Scope
from gradlab.audit.sources import Source
from gradlab.audit.trace import Unit
from gradlab.audit.units import units
from gradlab.audit.values import Value
from gradlab.audit.walking import walk

TRAINING = re.compile(r"backward\s*\(|scaler\s*\(|\.step\s*\(|clip_grad|zero_grad", re.I)
"""A file without any of these has no loop to follow; its backward pass may be in another file."""
TEXT = re.compile(r"torch|lightning|Train(er|ingArg)|loss", re.I)
RATE = re.compile(r"(^|[\W_])(lr|learning_rate|weight_decay|wd|decay)([\W_]|$)", re.I)


@dataclass
class Result:
    source: Source
    findings: list[Finding] = field(default_factory=list)
    elsewhere: list[Finding] = field(default_factory=list)  # in files that it imports, seen from here
    undecided: list[tuple[int, str]] = field(default_factory=list)
    loops: list[str] = field(default_factory=list)  # lines of the loops that were followed
    followed: set[ast.AST] = field(default_factory=set)
    lost: list[int] = field(default_factory=list)  # lines of backward passes in none of them


def audit(source: Source, project: Project, selected: dict[str, rules.Rule]) -> Result:
    result = Result(source)
    if source.error is not None:
        line, column, message = source.error
        result.findings = [Finding("GL000", "error", message, str(source.path), line, column)]
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


def keep(found: dict[tuple, Finding], one: Finding) -> None:
    found.setdefault(one.key, one)


def judge(unit: Unit, selected: dict[str, rules.Rule], found: dict[tuple, Finding], result: Result) -> None:
    runs = unit.runs()
    silent: dict[int, list[str]] = {}
    for rule in selected.values():
        unit.doubts.clear()
        places = rules.shown(rule, unit, runs) if rule.runs is not None else rule.unit(unit) if rule.unit else ()
        for path, node in places:
            keep(found, finding(rule.code, rule.severity, rule.message, path, node, rule.name))
        for event in {id(event): event for event in unit.doubts}:
            silent.setdefault(event, []).append(rule.code)
    result.undecided += doubts(unit, silent, str(result.source.path))


def compensated(module: Module, unit: Unit) -> bool:
    """Whether a rate or a weight decay is multiplied or divided by the length of the window: the sum is meant."""
    keys = [unit.period, *(atom.key for atom in unit.boundary)]
    names = {name.split(".")[-1] for key in keys for name in re.findall(r"([A-Za-z_][\w.]*)#", key)}
    return bool(names) and any(
        names & {p.attr if isinstance(p, ast.Attribute) else getattr(p, "id", "") for p in walk(made)}
        for made in rates(module)
    )


def rates(module: Module) -> Iterator[ast.expr]:
    """What rates and weight decays are multiplied with, or made of."""
    nodes = module.source.nodes
    for node in nodes.of(ast.AugAssign):
        if RATE.search(ast.unparse(node.target)):
            yield node.value
    made = [(ast.unparse(node.targets[0]), node.value) for node in nodes.of(ast.Assign)]
    made += [(k.arg or "", k.value) for node in nodes.of(ast.Call) for k in node.keywords]
    for target, value in made:
        products = (isinstance(p, ast.BinOp) and isinstance(p.op, (ast.Mult, ast.Div)) for p in walk(value))
        if RATE.search(target) and any(products):
            yield value


def loops(module: Module, project: Project, result: Result) -> list[Unit]:
    """The training loops of a file: what its top level runs first, then what nothing in it calls."""
    visited: set[ast.AST] = set()
    found: list[Unit] = []
    interpreter = Interpreter(project, visited)
    found += units(interpreter.run_module(module), module.path, 0, False)
    for node in roots(module):
        if isinstance(node, ast.ClassDef):
            found += of_class(interpreter, node, module, visited)
        elif node not in visited:
            found += whole(interpreter, node, module, None)
    found += handed_out(interpreter, module, visited)
    result.followed = visited
    result.undecided += [(getattr(n, "lineno", 1), "nested too deeply to be followed") for n in interpreter.cut]
    return found


def handed_out(interpreter: Interpreter, module: Module, visited: set[ast.AST]) -> list[Unit]:
    """Functions inside others that nothing seen calls: they are given to a framework, or back to a caller elsewhere."""
    found: list[Unit] = []
    for made in interpreter.inner:
        node, words = made.data["node"], {"backward", "step"}
        if node in visited or made.data["module"] is not module:
            continue
        if words <= {part.attr for part in walk(node) if isinstance(part, ast.Attribute)}:
            found += whole(interpreter, node, module, None, made.data["scope"])
    return found


def whole(
    interpreter: Interpreter, node: Function, module: Module, owner: Value | None, closure: Scope | None = None
) -> list[Unit]:
    interpreter.selves, interpreter.stack, interpreter.regions, interpreter.returned = [owner], [], [], []
    items = interpreter.run_function(node, module, owner, closure)
    found = units(items, module.path, interpreter.entered, True)
    for unit in found:
        unit.alone = unit.loop is None and owner is not None and manual(owner) and node.name == "training_step"
    return found


def manual(owner: Value) -> bool:
    """A Lightning module that optimizes by itself: what its training_step does not do nothing else does."""
    text = "".join(ast.unparse(one) for one in owner.data.get("lineage", []))
    others = [m.name for m, _ in inherited(owner) if m.name.startswith(("on_", "optimizer_"))]
    return bool(owner.data.get("lightning")) and "automatic_optimization = False" in text and not others


def roots(module: Module) -> list:
    """Functions and classes, those first that no other function of the file calls."""
    called = {dotted(n.func) for n in module.source.nodes.of(ast.Call)}
    return sorted(module.names.values(), key=lambda node: getattr(node, "name", "") in called)


def of_class(interpreter: Interpreter, node: ast.ClassDef, module: Module, visited: set[ast.AST]) -> list[Unit]:
    methods = [n for n in node.body if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))]
    if all(m in visited for m in methods) or not any(
        isinstance(p, ast.Attribute) and p.attr in ("backward", "manual_backward", "step")
        for m in methods
        for p in walk(m)
    ):
        return []

    interpreter.scope, interpreter.calls = interpreter.world(module), 0
    interpreter.selves, interpreter.stack, interpreter.regions, interpreter.returned = [None], [], [], []
    callee = Value("class", node.name, {"node": node, "module": module})
    made: list[Value] = []
    before = set(visited)
    init = next((m for m in methods if m.name == "__init__"), None)
    names = [a.arg for a in [*init.args.args[1:], *init.args.kwonlyargs]] if init is not None else []
    given = {name: Value("unknown", name, {"given": True}) for name in names}
    interpreter.collect(lambda: made.append(instance(interpreter, callee, [], given, node)))
    owner = made[0]
    configure(interpreter, owner)
    visited &= before | {m for m in methods if m.name in ("__init__", "configure_optimizers")}
    every = inherited(owner)
    called = {n.attr for m, _ in every for n in walk(m) if isinstance(n, ast.Attribute) and dotted(n.value) == "self"}
    found = []
    for method, there in sorted(every, key=lambda pair: pair[0].name in called):
        if method not in visited and method.name != "__init__":
            found += whole(interpreter, method, there, owner)
    return found


def inherited(owner: Value) -> list[tuple[Function, Module]]:
    """The methods of a class and of its bases in the project, which may call those that it defines anew."""
    found: dict[str, tuple[Function, Module]] = {}
    for node, module in zip(owner.data.get("lineage", []), owner.data.get("modules", [])):
        for item in node.body:
            if isinstance(item, (ast.FunctionDef, ast.AsyncFunctionDef)):
                found.setdefault(item.name, (item, module))
    return list(found.values())


def configure(interpreter: Interpreter, owner: Value) -> None:
    """Lightning: what configure_optimizers returns is what self.optimizers() gives."""
    method = method_of(owner, "configure_optimizers")
    if method is None:
        return
    made: list[Value | None] = []
    world = interpreter.world(method[1])
    interpreter.collect(lambda: made.append(enter(interpreter, method[0], method[1], [], {}, owner, method[0], world)))
    if made and made[0] is not None:
        value = made[0]
        if value.kind == "list" and value.data["items"] and value.data["items"][0].kind == "list":
            value = value.data["items"][0]
        if value.kind == "list" and len(value.data["items"]) == 1:
            value = value.data["items"][0]
        owner.attributes["configured"] = value
