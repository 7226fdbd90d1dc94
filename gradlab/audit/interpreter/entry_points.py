"""Where following a file begins: at its top, and in the functions and classes that nothing in it calls."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field

from gradlab.audit.interpreter.classes import forget_assigned
from gradlab.audit.interpreter.interpreter import Interpreter
from gradlab.audit.interpreter.parameters import is_number
from gradlab.audit.source.project import Definition, Function, Module, Project, methods_of
from gradlab.audit.source.syntax import defaults_of, dotted, walk
from gradlab.audit.trace.event_tree import Node, events
from gradlab.audit.trace.iterables import every, members, several
from gradlab.audit.trace.loop_search import stepless_loops, training_loops, with_graph
from gradlab.audit.trace.persistent_optimizers import acts_alone
from gradlab.audit.trace.training_loop import TrainingLoop
from gradlab.audit.trace.values import Event, Scope, Value

SETTING_UP = re.compile(r"_*(build|create|make|init|initiali[sz]e|set_?up|prepare|define|construct|set)(_|$)")
"""Names of methods that make what an object is to have."""


@dataclass
class Followed:
    """The training loops of a file, the functions and calls that were followed, and what nests too deeply."""

    loops: list[TrainingLoop]
    visited: set[ast.AST]
    skipped: list[ast.AST]
    exhausted: ast.AST | None = None  # the call from which on none was entered
    called: list[TrainingLoop] = field(default_factory=list)  # loops of other files that call functions of this one
    stepless: list[TrainingLoop] = field(default_factory=list)  # loops with backward passes that no step follows


def follow_file(module: Module, project: Project, consult: bool = True) -> Followed:
    """Follow what the top level of a file runs, then what nothing in it calls; consult: from its callers, if any."""
    visited: set[ast.AST] = set()
    interpreter = Interpreter(project, visited)
    interpreter.audited = module
    items = interpreter.run_module(module)
    found = training_loops(items, module.path, 0, any(event.closure for event in events(items)))
    interpreter.stepless += stepless_loops(items)
    called = {dotted(n.func) for n in module.source.nodes.of(ast.Call)}
    training = leading_to_training(module)
    outside = loops_of_callers(module, project, training - called, visited) if consult else []
    for node in sorted(module.names.values(), key=lambda node: (node.name in called, node.name not in training)):
        if isinstance(node, ast.ClassDef):
            found += class_loops(interpreter, node, module)
        elif node not in visited:
            found += function_loops(interpreter, node, module, None)
    found += closure_loops(interpreter, module)
    found, stepless = with_graph(found), interpreter.stepless
    return Followed(found, visited, interpreter.skipped, interpreter.exhausted, outside, stepless)


def loops_of_callers(module: Module, project: Project, names: set[str], visited: set[ast.AST]) -> list[TrainingLoop]:
    """The loops of other files in which functions of this one happen, with what these files give them."""
    left = {name for name in names if isinstance(module.names.get(name), ast.FunctionDef | ast.AsyncFunctionDef)}
    left = {name for name in left if module.names[name] not in visited}
    found: list[TrainingLoop] = []
    for caller in project.callers(module, left) if left else ():
        followed = follow_file(caller, project, consult=False)
        found += [loop for loop in followed.loops if any(e.path == module.path for e in loop.events)]
    return found


def leading_to_training(module: Module) -> set[str]:
    """Names of functions and classes of a file that call backward(), or by name what does: they are followed first."""
    nodes = module.source.nodes
    names: dict[str, set[str]] = {}
    found: set[str] = set()
    definitions: list[Definition] = [*nodes.of(ast.FunctionDef), *nodes.of(ast.AsyncFunctionDef)]
    for node in [*definitions, *nodes.of(ast.ClassDef)]:
        inside = {part.attr if isinstance(part, ast.Attribute) else getattr(part, "id", "") for part in walk(node)}
        names[node.name] = names.get(node.name, set()) | inside
    ahead = {"backward", "manual_backward"}
    while ahead:
        ahead = {name for name, inside in names.items() if inside & ahead} - found
        found |= ahead
    return found


def closure_loops(interpreter: Interpreter, module: Module) -> list[TrainingLoop]:
    """Functions inside others that nothing seen calls: a framework does, or a caller elsewhere."""
    found: list[TrainingLoop] = []
    for closure in interpreter.closures:
        node = closure.node
        if node in interpreter.visited or closure.module is not module:
            continue
        if {"backward", "step"} <= {part.attr for part in walk(node) if isinstance(part, ast.Attribute)}:
            found += function_loops(interpreter, node, module, None, closure.scope)
    return found


def function_loops(
    interpreter: Interpreter, node: Function, module: Module, owner: Value | None, closure: Scope | None = None
) -> list[TrainingLoop]:
    """The training loops of a function, or of a method of `owner`."""
    batch = [a.arg for a in node.args.args if a.arg in ("batch", "inputs")]
    computes = owner is not None and node.name == owner.loss_method
    given = {name: Value("unknown", name, given=True, traced=True) for name in batch if computes}
    items = interpreter.run_function(node, module, owner, closure, given)
    manual = owner is not None and optimizes_manually(owner)
    if computes and not manual:
        items += automatic_updates(node, module, interpreter.answers)
    found = training_loops(items, module.path, interpreter.entered, True)
    interpreter.stepless += stepless_loops(items)
    for loop in found:
        own = owner is not None and manual and not has_gradient_hooks(owner) and node.name == "training_step"
        alone = own or acts_alone(loop, owner, node, module, interpreter.project)
        loop.self_contained = loop.statement is None and alone
    return found


def automatic_updates(node: Function, module: Module, answers: list[Value]) -> list[Node]:
    """What Lightning does with each loss that training_step() may return, and transformers with compute_loss()'s."""
    trainer = Value("optimizer", "trainer", given=True)
    losses = [loss for answer in answers if (loss := returned_loss(answer)) is not None]
    found: list[Node] = []
    for loss in dict.fromkeys(losses):
        found += [
            Event("opaque", node, module.path, name="fit", receives=frozenset({"framework"})),
            Event("backward", node, module.path, loss, through=Value("lightning")),
            Event("step", node, module.path, trainer),
            Event("zero", node, module.path, trainer),
        ]
    return found


def returned_loss(answer: Value) -> Value | None:
    """`loss`, `{"loss": loss}`, `(loss, outputs) if return_outputs else loss`."""
    value = answer.attributes.get("['loss']") if answer.kind == "dict" else answer
    if value is None or value.kind in ("tensor", "detached"):
        return value
    return next((one for one in members(value) if one.kind in ("tensor", "detached")), None)


def optimizes_manually(owner: Value) -> bool:
    """A Lightning module that optimizes by itself: what its training_step does not do, only its hooks may."""
    return owner.lightning and any("automatic_optimization = False" in ast.unparse(one) for one in owner.lineage)


def has_gradient_hooks(owner: Value) -> bool:
    """Whether Lightning calls a method of the module that may have to do with gradients."""
    methods = all_methods(owner)
    own = {method.name for method, _ in methods}
    for method, _ in methods:
        if method.name.startswith(("on_", "optimizer_")):
            names = {n.attr for n in walk(method) if isinstance(n, ast.Attribute)}
            if names & (own | {"zero_grad", "grad", "optimizers", "modules", "children"}):
                return True
    return False


def class_loops(interpreter: Interpreter, node: ast.ClassDef, module: Module) -> list[TrainingLoop]:
    """The training loops of a class's methods, of one object of it."""
    visited = interpreter.visited
    methods = [n for n in node.body if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))]
    if all(m in visited for m in methods) or not trains(methods):
        return []
    interpreter.start(None, module)
    before = set(visited)
    owner = unknown_object(interpreter, node, module, methods)
    configure_optimizers(interpreter, owner)
    set_up(interpreter, owner)
    made_for_bases(interpreter, owner)
    visited &= before | {m for m in methods if m.name in ("__init__", "configure_optimizers")}
    every_method = all_methods(owner)
    attributes = (n for m, _ in every_method for n in walk(m) if isinstance(n, ast.Attribute))
    called = {n.attr for n in attributes if dotted(n.value) == "self"}
    found = []
    training = leading_to_training(module)
    for method, there in sorted(every_method, key=lambda m: (m[0].name in called, m[0].name not in training)):
        if method not in visited and method.name != "__init__":
            found += function_loops(interpreter, method, there, owner)
    return found


def trains(methods: list[Function]) -> bool:
    """Whether methods may have to do with training."""
    if {"training_step", "compute_loss"} & {m.name for m in methods}:
        return True
    attributes = (p.attr for m in methods for p in walk(m) if isinstance(p, ast.Attribute))
    return any(name in ("backward", "manual_backward", "step") for name in attributes)


def unknown_object(interpreter: Interpreter, node: ast.ClassDef, module: Module, methods: list[Function]) -> Value:
    """An object of a class, made with arguments of which only the names are known."""
    init = next((m for m in methods if m.name == "__init__"), None)
    names = [a.arg for a in [*init.args.args[1:], *init.args.kwonlyargs]] if init is not None else []
    defaults = defaults_of(init) if init is not None else {}
    given = {name: Value("unknown", name, given=True, traced=is_number(defaults.get(name))) for name in names}
    callee = Value("class", node.name, node=node, module=module)
    made: list[Value] = []
    interpreter.collect(lambda: made.append(interpreter.instance(callee, [], given, node)))
    return made[0]


def set_up(interpreter: Interpreter, owner: Value) -> None:
    """What sets attributes that __init__ leaves out, and needs nothing: a caller elsewhere calls it before training."""
    for method, module in all_methods(owner):
        stored = (n for n in walk(method) if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store))
        missing = any(dotted(n.value) == "self" and n.attr not in owner.attributes for n in stored)
        needed = len(method.args.args) - len(method.args.defaults)
        if missing and needed == 1 and SETTING_UP.match(method.name) and not interpreter.exhausted:
            interpreter.collect(lambda: interpreter.enter(method, module, [], {}, owner, method))  # noqa: B023
    forget_assigned(owner)


def made_for_bases(interpreter: Interpreter, owner: Value) -> None:
    """A network that a base which is not seen has this class make, as a method says by its name: `build_model`.

    It may wrap it, or move it, so only the type of its weights is known.
    """
    methods = all_methods(owner) if owner.framework else []
    attributes = [n for method, _ in methods for n in walk(method) if isinstance(n, ast.Attribute)]
    used = {n.attr for n in attributes if dotted(n.value) == "self"}
    for method, module in methods:
        opening = SETTING_UP.match(method.name)
        name = method.name[opening.end() :] if opening is not None else ""
        needed = len(method.args.args) - len(method.args.defaults)
        if name in used - owner.attributes.keys() and method.name not in used and needed == 1:
            made: list[Value | None] = []
            interpreter.collect(lambda: made.append(interpreter.enter(method, module, [], {}, owner, method)))  # noqa: B023
            found = [one for one in members(made[0] or Value()) if one.root().half is not None]
            if len(found) == 1:
                weights = found[0].root()
                of = {"half": weights.half, "half_path": weights.half_path, "half_when": weights.half_when}
                owner.attributes[name] = Value("model", f"{owner.name}.{name}", given=True, **of)  # type: ignore[arg-type]


def all_methods(owner: Value) -> list[tuple[Function, Module]]:
    """The methods of a class and of its bases in the project, overridden ones left out."""
    found: dict[str, tuple[Function, Module]] = {}
    for node, module in zip(owner.lineage, owner.modules):
        for name, method in methods_of(node).items():
            found.setdefault(name, (method, module))
    return list(found.values())


def configure_optimizers(interpreter: Interpreter, owner: Value) -> None:
    """Lightning: what configure_optimizers returns is what self.optimizers() and self.lr_schedulers() return."""
    found = owner.method("configure_optimizers")
    if found is None:
        return
    made: list[Value | None] = []
    interpreter.collect(lambda: made.append(interpreter.enter(*found, [], {}, owner, found[0])))
    value = made[0]
    if value is None:
        return
    schedules = [one for one in every(value) if one.kind == "scheduler"]
    if schedules:
        owner.attributes["scheduled"] = schedules[0] if len(schedules) == 1 else several(schedules)
    optimizers = [one for one in every(value) if one.kind == "optimizer"]
    if value.kind == "dict" and len(optimizers) == 1:
        value = optimizers[0]
    if value.kind == "list":
        value = several([item.attributes.get("['optimizer']", item) for item in value.items])
    if value.kind == "list" and value.items and value.items[0].kind == "list":
        value = value.items[0]
    if value.kind == "list" and len(value.items) == 1:
        value = value.items[0]
    owner.attributes["configured"] = value
