"""Where a file is begun to be followed: at its top, and in what nothing in it calls."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from gradlab.audit.interpreter.classes import method_of
from gradlab.audit.interpreter.function_calls import enter
from gradlab.audit.interpreter.instances import instance
from gradlab.audit.interpreter.interpreter import Interpreter
from gradlab.audit.result import Result
from gradlab.audit.source.project import Function, Module, Project
from gradlab.audit.source.syntax import dotted, walk
from gradlab.audit.trace.events import Event, events
from gradlab.audit.trace.loop_search import units
from gradlab.audit.trace.persistent_optimizers import persisting
from gradlab.audit.trace.scope import Scope
from gradlab.audit.trace.training_loop import Unit
from gradlab.audit.trace.values import Value, every, members, several


def loops(module: Module, project: Project, result: Result) -> list[Unit]:
    """The training loops of a file: what its top level runs first, then what nothing in it calls."""
    visited: set[ast.AST] = set()
    found: list[Unit] = []
    interpreter = Interpreter(project, visited)
    items = interpreter.run_module(module)
    found += units(items, module.path, 0, any(event.data.get("closure") for event in events(items)))
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
    if owner is not None and node.name == owner.data.get("asked") and not manual(owner):
        items += automatic(node, module, interpreter.result)
    found = units(items, module.path, interpreter.entered, True)
    for unit in found:
        mine = owner is not None and manual(owner) and not hooked(owner)
        unit.alone = unit.loop is None and ((mine and node.name == "training_step") or persisting(unit, owner, module))
    return found


def automatic(node: Function, module: Module, value: Value | None) -> list[Event]:
    """What Lightning does with the loss that training_step() gives back, and transformers with compute_loss()'s, out of
    sight."""
    if value is not None and value.kind == "dict":
        value = value.attributes.get("['loss']")
    if value is not None and value.kind != "tensor":  # `(loss, outputs) if return_outputs else loss`
        value = next((one for one in members(value) if one.kind == "tensor"), value)
    if value is None or value.kind != "tensor":
        return []
    trainer = Value("optimizer", "trainer", {"given": True})
    unseen = {"name": "fit", "receives": {"framework"}}
    return [
        Event("opaque", node, module.path, None, (), unseen),
        Event("backward", node, module.path, value, (), {"through": Value("lightning")}),
        Event("step", node, module.path, trainer),
        Event("zero", node, module.path, trainer),
    ]


def manual(owner: Value) -> bool:
    """A Lightning module that optimizes by itself: what its training_step does not do, only its hooks may."""
    text = "".join(ast.unparse(one) for one in owner.data.get("lineage", []))
    return bool(owner.data.get("lightning")) and "automatic_optimization = False" in text


def hooked(owner: Value) -> bool:
    """Whether Lightning calls a method that may have to do with gradients."""
    methods = inherited(owner)
    mine = {method.name for method, _ in methods}
    for method, _ in methods:
        if method.name.startswith(("on_", "optimizer_")):
            names = {n.attr for n in walk(method) if isinstance(n, ast.Attribute)}
            if names & (mine | {"zero_grad", "grad", "optimizers", "modules", "children"}):
                return True
    return False


def roots(module: Module) -> list:
    """Functions and classes, those first that no other function of the file calls."""
    called = {dotted(n.func) for n in module.source.nodes.of(ast.Call)}
    return sorted(module.names.values(), key=lambda node: getattr(node, "name", "") in called)


def of_class(interpreter: Interpreter, node: ast.ClassDef, module: Module, visited: set[ast.AST]) -> list[Unit]:
    methods = [n for n in node.body if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))]
    if all(m in visited for m in methods) or (
        not any(
            isinstance(p, ast.Attribute) and p.attr in ("backward", "manual_backward", "step")
            for m in methods
            for p in walk(m)
        )
        and not {"training_step", "compute_loss"} & {m.name for m in methods}
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
    for name in refused(methods):
        if name in owner.attributes and owner.attributes[name].kind == "scaler":
            owner.attributes[name] = Value("none", "None")
    visited &= before | {m for m in methods if m.name in ("__init__", "configure_optimizers")}
    every = inherited(owner)
    called = {n.attr for m, _ in every for n in walk(m) if isinstance(n, ast.Attribute) and dotted(n.value) == "self"}
    found = []
    for method, there in sorted(every, key=lambda pair: pair[0].name in called):
        if method not in visited and method.name != "__init__":
            found += whole(interpreter, method, there, owner)
    return found


def refused(methods: list[ast.FunctionDef | ast.AsyncFunctionDef]) -> Iterator[str]:
    """Attributes that a class will not have: `if self.scaler is not None: raise`."""
    for node in (n for method in methods for n in method.body if isinstance(n, ast.If)):
        there = (
            node.test.left
            if isinstance(node.test, ast.Compare) and isinstance(node.test.ops[0], ast.IsNot)
            else node.test
        )
        if isinstance(there, ast.Attribute) and dotted(there.value) == "self" and isinstance(node.body[-1], ast.Raise):
            yield there.attr


def inherited(owner: Value) -> list[tuple[Function, Module]]:
    """The methods of a class and of its bases in the project, which may call those that it defines anew."""
    found: dict[str, tuple[Function, Module]] = {}
    for node, module in zip(owner.data.get("lineage", []), owner.data.get("modules", [])):
        for item in node.body:
            if isinstance(item, (ast.FunctionDef, ast.AsyncFunctionDef)):
                found.setdefault(item.name, (item, module))
    return list(found.values())


def configure(interpreter: Interpreter, owner: Value) -> None:
    """Lightning: what configure_optimizers returns is what self.optimizers() and self.lr_schedulers() give."""
    method = method_of(owner, "configure_optimizers")
    if method is None:
        return
    made: list[Value | None] = []
    world = interpreter.world(method[1])
    interpreter.collect(lambda: made.append(enter(interpreter, method[0], method[1], [], {}, owner, method[0], world)))
    if made and made[0] is not None:
        value = made[0]
        schedules = [one for one in every(value) if one.kind == "scheduler"]
        if schedules:
            owner.attributes["scheduled"] = schedules[0] if len(schedules) == 1 else several(schedules)
        optimizers = [one for one in every(value) if one.kind == "optimizer"]
        if value.kind == "dict" and len(optimizers) == 1:
            value = optimizers[0]
        if value.kind == "list" and value.data["items"] and value.data["items"][0].kind == "list":
            value = value.data["items"][0]
        if value.kind == "list" and len(value.data["items"]) == 1:
            value = value.data["items"][0]
        owner.attributes["configured"] = value
