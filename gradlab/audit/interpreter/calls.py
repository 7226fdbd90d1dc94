"""A call: what is called decides whether it is followed, acts on gradients, or is opaque."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from gradlab.audit.interpreter.choices import choice
from gradlab.audit.interpreter.classes import method_of
from gradlab.audit.interpreter.forward_passes import passed
from gradlab.audit.interpreter.function_calls import DEPTH, follow
from gradlab.audit.interpreter.instances import instance, member, parent
from gradlab.audit.interpreter.name_lookup import attribute
from gradlab.audit.knowledge import known_names
from gradlab.audit.knowledge.known_names import MAKING
from gradlab.audit.knowledge.library_calls import external
from gradlab.audit.knowledge.loss_normalization import divisible
from gradlab.audit.knowledge.losses import forward, loss
from gradlab.audit.knowledge.methods import method
from gradlab.audit.knowledge.opaque_calls import ACTING, opaque
from gradlab.audit.knowledge.optimizer_methods import loss_scaler
from gradlab.audit.knowledge.python_functions import unpacked
from gradlab.audit.source.syntax import dotted
from gradlab.audit.trace.conditions import Formula, negation
from gradlab.audit.trace.events import If
from gradlab.audit.trace.scope import Scope
from gradlab.audit.trace.values import Value, births, members, tensor

if TYPE_CHECKING:
    from gradlab.audit.interpreter.interpreter import Interpreter


def call(it: Interpreter, node: ast.Call) -> Value:
    if it.frozen:
        return it.memo.get(id(node), Value())
    value = fresh_call(it, node)
    it.memo[id(node)] = value
    return value


def fresh_call(it: Interpreter, node: ast.Call) -> Value:
    owner = present(it, node.func.value) if isinstance(node.func, ast.Attribute) else None
    args, keywords = unpacked(it, node)
    if owner is not None and isinstance(node.func, ast.Attribute):
        if owner.kind == "super":
            return parent(it, node, owner, node.func.attr, args, keywords)
        if len(objects := alternatives(owner, node.func.attr)) > 1:
            return of_each(it, node, objects, args, keywords)
        result = method(it, node, owner, node.func.attr, args, keywords)
        if result is not None:
            return result
    return applied(it, node, present(it, node.func, owner), owner, args, keywords)


def present(it: Interpreter, node: ast.expr, holder: Value | None = None) -> Value:
    """What is called, or has a method called, is None no more: a subclass or a caller has set it.

    `holder`: what has the attribute, where it was asked for; the calls in it are followed once.
    """
    value = it.value(node) if holder is None else attribute(it, holder, getattr(node, "attr", ""), node)  # type: ignore
    if value.kind == "none" and isinstance(node, ast.Attribute):
        holder = it.value(node.value) if holder is None else holder
        if holder.kind == "instance" and holder.attributes.pop(node.attr, None) is not None:
            return it.value(node)
    return value


def applied(
    it: Interpreter,
    node: ast.Call,
    callee: Value,
    owner: Value | None,
    args: list[Value],
    keywords: dict[str, Value],
) -> Value:
    if "choice" in callee.data:
        contexts = [(when, context(v)) for when, v in callee.data["choice"]]
        if all(made is not None for _, made in contexts):
            return choice([(when, made) for when, made in contexts if made is not None])
        if all(v.kind in ("model", "ddp") for _, v in callee.data["choice"]):
            return forward(it, node, callee, args)  # of the one or the other
        callee = next((v for _, v in callee.data["choice"] if v.kind not in ("none", "unknown")), callee)
    return called(it, node, callee, owner, args, keywords)


def alternatives(owner: Value, name: str) -> list[tuple[Formula, Value]]:
    """The objects that a value may be, where one of them has a method of the project's own and another has not."""
    objects = [(when, v) for when, v in owner.data.get("choice", []) if v.kind not in ("none", "unknown")]
    own = [method_of(v, name) for _, v in objects]
    return objects if any(own) and any(one != own[0] for one in own) else []


def of_each(
    it: Interpreter, node: ast.Call, objects: list[tuple[Formula, Value]], args: list[Value], keywords: dict[str, Value]
) -> Value:
    """Each object's method, under the condition that it is the one."""
    assert isinstance(node.func, ast.Attribute)
    results: list[tuple[Formula, Value]] = []
    done: list[list] = []
    for when, one in objects:
        outer, it.out = it.out, []
        result = method(it, node, one, node.func.attr, args, keywords)
        if result is None:
            result = called(it, node, attribute(it, one, node.func.attr, node.func), one, args, keywords)
        done.append(it.out)
        it.out = outer
        results.append((when, result))
    tests = [when for when, _ in objects]
    if len(tests) == 2 and tests[1] == negation(tests[0]):
        it.out.append(If(tests[0], done[0], done[1]))
    else:
        it.out += [If(test, events, []) for test, events in zip(tests, done)]
    return choice(results)


def called(
    it: Interpreter, node: ast.Call, callee: Value, owner: Value | None, args: list[Value], keywords: dict[str, Value]
) -> Value:
    if callee.kind == "maker":
        return context(callee) or Value()
    if callee.kind in ("function", "method"):
        return follow(it, node, callee, args, keywords)
    if callee.kind == "instance" and (made := member(it, callee, "__call__")) is not None:
        return follow(it, node, made, args, keywords)
    if callee.kind == "partial":
        first = callee.data["call"]
        whole = ast.Call(first.func, [*first.args, *node.args], [*first.keywords, *node.keywords])
        args, keywords = [*callee.data["args"], *args], {**callee.data["keywords"], **keywords}
        return applied(it, ast.copy_location(whole, node), callee.data["callee"], None, args, keywords)
    if callee.kind == "lambda":
        return of_lambda(it, callee, args, keywords)
    if callee.kind == "bound":
        return method(it, node, callee.data["owner"], callee.data["name"], args, keywords) or Value()
    if callee.kind == "class":
        return instance(it, callee, args, keywords, node)
    if callee.kind == "external":
        return external(it, node, callee.name, args, keywords)
    if callee.kind in ("loss_scaler", "scaler"):  # PyTorch's own cannot be called
        return loss_scaler(it, node, callee, args, keywords)
    if callee.kind in ("model", "ddp", "engine"):
        return passed(it, node, callee, args, forward(it, node, callee, args))
    if callee.kind == "instance" and callee.data.get("framework") and not set(kinds(args, keywords)) & ACTING:
        return forward(it, node, callee, args)  # what is called with data alone gives an output back
    if callee.kind == "criterion":
        made = loss(it, callee.data, args)
        return passed(it, node, callee, args, made if callee.data.get("type") else divisible(node, made))
    if callee.kind in ("context", "autocast", "null"):
        return callee
    if callee.kind == "unknown" and it.within and not it.regions and dotted(node.func).startswith("self."):
        return part_of_network(args)
    if callee.kind == "unknown" and any(a.kind == "tensor" for a in args) and not set(kinds(args, keywords)) & ACTING:
        named = isinstance(node.func, (ast.Name, ast.Attribute))
        if named and not callee.data.get("framework") and not MAKING.match(dotted(node.func).split(".")[-1]):
            made = divisible(node, loss(it, {}, args))
            made.data["guessed"] = True
            return made
    name = node.func.attr if isinstance(node.func, ast.Attribute) else dotted(node.func)
    if callee.kind == "unknown" and any(held.kind in ACTING for held in callee.attributes.values()):
        it.emit("opaque", node, callee, name=name, receives={"self"}, used=False)  # `learner("after_step")`
    handled = owner if owner is not None or not callee.data.get("framework") else callee
    if callee.kind == "unknown" and callee.data.get("holds") is False:
        handled = callee  # an attribute of its own making, which holds nothing of the training
    return opaque(it, node, name or "call", handled, args, keywords)


def part_of_network(args: list[Value]) -> Value:
    """What a layer of unknown making gives, in a forward pass that is followed."""
    through = frozenset().union(*(v.data.get("roots", frozenset()) for v in args if v.kind == "tensor"))
    return tensor(roots=through | {next(births)}, factors=[], source="model")


def of_lambda(it: Interpreter, callee: Value, args: list[Value], keywords: dict[str, Value]) -> Value:
    node, outer = callee.data["node"], it.scope
    if len(it.stack) >= DEPTH or node in it.stack:
        return Value("unknown", "", {"made": True, "opaque": True})
    it.scope = Scope(callee.data["scope"], outer.node, callee.data["scope"].module)
    it.stack.append(node)
    names = [a.arg for a in node.args.args]
    for i, name in enumerate(names):
        it.scope.names[name] = args[i] if i < len(args) else keywords.get(name, Value("unknown", name, {"given": True}))
    try:
        return it.value(node.body)
    finally:
        it.stack.pop()
        it.scope = outer


def context(callee: Value) -> Value | None:
    """The context manager that a call makes: `model.no_sync` or `nullcontext`, kept in a name and called later."""
    if callee.kind == "maker":
        return Value("context", data=dict(callee.data))
    if callee.kind == "bound" and callee.data["name"] == "no_sync":
        return Value("context", data={"word": "no_sync", "model": callee.data["owner"]})
    return Value("null") if callee.kind == "external" and known_names.made(callee.name) == "null" else None


def kinds(args: list[Value], keywords: dict[str, Value]) -> list[str]:
    return [v.kind for a in [*args, *keywords.values()] for v in members(a)]
