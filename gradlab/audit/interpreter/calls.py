"""A call: what is called decides whether it is followed, acts on gradients, or is opaque."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Sequence
from dataclasses import replace

from gradlab.audit.interpreter.function_calls import DEPTH, follow_call
from gradlab.audit.interpreter.instances import base_method, instance, member
from gradlab.audit.knowledge.call_site import CallSite
from gradlab.audit.knowledge.known_names import FACTORY, kind_made
from gradlab.audit.knowledge.losses import divisible, forward, loss
from gradlab.audit.knowledge.methods import known_method, no_sync
from gradlab.audit.knowledge.opaque_calls import ACTING, opaque_call
from gradlab.audit.knowledge.optimizer_methods import loss_scaler
from gradlab.audit.knowledge.package_calls import library_call
from gradlab.audit.knowledge.retained_tensors import retain_in_meter
from gradlab.audit.source.syntax import dotted
from gradlab.audit.trace.choices import choice
from gradlab.audit.trace.conditions import Formula
from gradlab.audit.trace.engine import Engine
from gradlab.audit.trace.event_tree import either_of
from gradlab.audit.trace.iterables import OTHERS, members
from gradlab.audit.trace.tensors import roots_of, tensor
from gradlab.audit.trace.values import MAKERS, Scope, Value, births


def call(engine: Engine, node: ast.Call) -> Value:
    """The result of a call; each is followed once where its value is asked for again in the same expression."""
    if engine.frozen:
        return engine.memo.get(id(node), Value())
    value = fresh_call(engine, node)
    engine.memo[id(node)] = value
    return value


def fresh_call(engine: Engine, node: ast.Call) -> Value:
    func = node.func
    owner = called_value(engine, func.value) if isinstance(func, ast.Attribute) else None
    args, keywords = arguments(engine, node)
    site = CallSite.of(engine, node, args, keywords)
    if owner is None or not isinstance(func, ast.Attribute):
        return applied(site, called_value(engine, func), None)
    if owner.kind == "super":
        return base_method(site, owner)
    if len(objects := alternatives(owner, func.attr)) > 1:
        return call_each(site, func, objects)
    result = known_method(site, owner)
    return result if result is not None else applied(site, called_value(engine, func, owner), owner)


def arguments(engine: Engine, node: ast.Call) -> tuple[list[Value], dict[str, Value]]:
    """The arguments of a call; `*` and `**` are expanded where what they hold is known."""
    args: list[Value] = []
    for part in node.args:
        value = engine.value(part)
        engine.remember(value, part)
        args += value.items if isinstance(part, ast.Starred) and value.kind == "list" else [value]
    keywords: dict[str, Value] = {}
    for pair in node.keywords:
        value = engine.value(pair.value)
        engine.remember(value, pair.value)
        if pair.arg is not None:
            keywords[pair.arg] = value
        elif value.kind == "dict":
            keywords |= {key[2:-2]: item for key, item in value.attributes.items() if key[:2] in ("['", '["')}
        if pair.arg is None and (value.kind != "dict" or OTHERS in value.attributes):
            keywords[OTHERS] = value
    return args, keywords


def called_value(engine: Engine, node: ast.expr, holder: Value | None = None) -> Value:
    """What is called, or has a method called, is None no more: a subclass or a caller has set it.

    holder: the object of the attribute, where it was evaluated before, so that its calls are followed once.
    """
    if holder is None or not isinstance(node, ast.Attribute):
        value = engine.value(node)
    else:
        value = engine.attribute(holder, node.attr, node)
    if value.kind == "none" and isinstance(node, ast.Attribute):
        holder = engine.value(node.value) if holder is None else holder
        if holder.kind == "instance" and holder.attributes.pop(node.attr, None) is not None:
            return engine.value(node)
    return value


def applied(site: CallSite, callee: Value, owner: Value | None) -> Value:
    """The result of calling a value, which may be one of several."""
    if callee.choice:
        contexts = [(when, context(site, v)) for when, v in callee.choice]
        known = [made for _, made in contexts if made is not None]
        if len(known) == len(contexts) or any(made.kind == "context" for made in known):
            return choice([(when, made or Value("context", word="unknown")) for when, made in contexts])
        if all(v.kind in ("model", "ddp") for _, v in callee.choice):
            return forward(site.engine, site.node, callee, site.args, site.keywords.values())  # of the one or the other
        if all(v.kind in (*MAKERS, "criterion") for _, v in callee.choice):
            return each_of(site.engine, callee.choice, lambda one: called(site, one, owner))
        callee = next((v for _, v in callee.choice if v.kind not in ("none", "unknown")), callee)
    return called(site, callee, owner)


def alternatives(owner: Value, name: str) -> list[tuple[Formula, Value]]:
    """The objects that a value may be, where one of them has a method of the project's own and another has not."""
    objects = [(when, v) for when, v in owner.choice if v.kind not in ("none", "unknown")]
    own = [v.method(name) for _, v in objects]
    return objects if any(own) and any(one != own[0] for one in own) else []


def call_each(site: CallSite, func: ast.Attribute, objects: list[tuple[Formula, Value]]) -> Value:
    """Each object's method, under the condition that it is the one."""

    def call_one(one: Value) -> Value:
        result = known_method(site, one)
        return called(site, site.engine.attribute(one, func.attr, func), one) if result is None else result

    return each_of(site.engine, objects, call_one)


def each_of(engine: Engine, objects: Sequence[tuple[Formula, Value]], work: Callable[[Value], Value]) -> Value:
    """What is done with each of several objects, under the condition that it is the one."""
    results: list[Value] = []
    happened = [engine.collect(lambda one=one: results.append(work(one))) for _, one in objects]  # type: ignore[misc]
    tests = [when for when, _ in objects]
    engine.out += either_of(tests, happened)
    return choice(list(zip(tests, results)))


def called(site: CallSite, callee: Value, owner: Value | None) -> Value:
    engine, node, kind = site.engine, site.node, callee.kind
    if kind == "maker":
        return context(site, callee) or Value()
    if kind in ("function", "method"):
        return follow_call(site, callee)
    if kind == "instance" and (made := member(engine, callee, "__call__")) is not None:
        return follow_call(site, made)
    if kind == "partial":
        return call_partial(site, callee)
    if kind == "lambda":
        return call_lambda(site, callee)
    if kind == "bound":
        return known_method(replace(site, name=callee.name), callee.owner) or Value()
    if kind == "class":
        return instance(engine, callee, site.args, site.keywords, node)
    if kind == "external":
        return library_call(replace(site, name=callee.name))
    if kind in ("loss_scaler", "scaler") and site.values[1:]:  # PyTorch's own cannot be called, and one of data has one
        return loss_scaler(site, callee)
    if kind in ("model", "ddp", "engine"):
        made = forward(engine, node, callee, site.args, site.keywords.values())
        return engine.forward_pass(node, callee, site.args, made)
    if kind == "criterion":
        made = loss(engine, node, site.compared, callee.reduction, callee.ignoring, callee.maker)
        return engine.forward_pass(node, callee, site.args, made if callee.maker else divisible(node, made))
    if kind in ("context", "autocast", "null"):
        return callee
    return call_unknown(site, callee, owner)


def call_unknown(site: CallSite, callee: Value, owner: Value | None) -> Value:
    """What is called is not known, but what it receives is."""
    engine, node = site.engine, site.node
    retain_in_meter(site, owner)
    received = [v for a in site.values for v in members(a)]
    acting = any(v.kind in ACTING for v in received)
    if callee.kind == "instance" and callee.framework and not acting:
        return forward(engine, node, callee, site.args)  # what receives only data returns an output
    if callee.kind == "unknown":
        if engine.depth and not engine.regions and dotted(node.func).startswith("self."):
            return tensor(roots=roots_of(site.args) | {next(births)}, source="model")  # a layer of unknown making
        named = re.search("loss|criterion", dotted(node.func).split(".")[-1], re.I) is not None
        kinds = ("tensor", "detached") if named else ("tensor",)
        if any(a.kind in kinds for a in site.args) and not acting and may_be_loss(node, callee):
            return divisible(node, loss(engine, node, site.args, guessed=not named))
        if any(value.kind in ACTING for value in callee.attributes.values()):  # `learner("after_step")`
            site.emit("opaque", callee, name=site.name, receives=frozenset({"self"}))
    handled = callee if owner is None and callee.framework else owner
    if callee.kind == "unknown" and callee.acting is False:
        handled = callee  # an attribute that the object made itself, which holds nothing of the training
    if callee.kind == "unknown" and callee.within is not None:
        handled = callee.within  # a method of a network, whatever holds it
    return opaque_call(replace(site, name=site.name or "call"), handled)


def may_be_loss(node: ast.Call, callee: Value) -> bool:
    named = isinstance(node.func, (ast.Name, ast.Attribute))
    return named and not callee.framework and not FACTORY.match(dotted(node.func).split(".")[-1])


def call_partial(site: CallSite, callee: Value) -> Value:
    first, node = callee.call, site.node
    whole = ast.Call(first.func, [*first.args, *node.args], [*first.keywords, *node.keywords])
    args, keywords = [*callee.args, *site.args], {**callee.keywords, **site.keywords}
    return applied(CallSite.of(site.engine, ast.copy_location(whole, node), args, keywords), callee.callee, None)


def call_lambda(site: CallSite, callee: Value) -> Value:
    engine, node, outer = site.engine, callee.node, site.engine.scope
    if len(engine.stack) >= DEPTH or node in engine.stack:
        return Value(made=True, opaque=True)
    engine.scope = Scope(callee.scope, outer.node, callee.scope.module)
    engine.stack.append(node)
    for i, name in enumerate(a.arg for a in node.args.args):
        given = site.args[i] if i < len(site.args) else site.keywords.get(name)
        engine.scope.names[name] = given if given is not None else Value("unknown", name, given=True)
    try:
        return engine.value(node.body)
    finally:
        engine.stack.pop()
        engine.scope = outer


def context(site: CallSite, callee: Value) -> Value | None:
    """The context manager that a call makes: `model.no_sync` or `nullcontext`, kept in a name and called later."""
    if callee.kind == "maker":
        return no_sync(site, callee.model)
    if callee.kind == "bound" and callee.name == "no_sync":
        return no_sync(site, callee.owner)
    return Value("null") if callee.kind == "external" and kind_made(callee.name) == "null" else None
