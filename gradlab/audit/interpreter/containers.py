"""Lists, dictionaries and comprehensions, and their items."""

from __future__ import annotations

import ast
import re

from gradlab.audit.interpreter.binding import bind
from gradlab.audit.interpreter.canonical_text import youngest
from gradlab.audit.interpreter.loops import unrolled
from gradlab.audit.knowledge.known_names import NAMES, kind_by_name
from gradlab.audit.knowledge.usage import usage
from gradlab.audit.source.syntax import dotted
from gradlab.audit.trace.choices import choice
from gradlab.audit.trace.conditions import Atom, Formula, joined, negation
from gradlab.audit.trace.engine import Engine
from gradlab.audit.trace.iterables import dictionary_of_pairs, element, filled, parameters_of, several, spend
from gradlab.audit.trace.provenance import is_traced, of_part, take_apart
from gradlab.audit.trace.values import MAKERS, NO_ROOTS, UNSET, Factor, Scope, Value

PREDICTION = re.compile(r"prob|pred|logit|out|score|hat", re.I)
"""Keys of a network's predictions; other entries of its result may be anything."""

MANY = 16
"""Items of the longest list that a comprehension goes through one by one."""
CHOSEN = ("optimizer", "scheduler", "model", "criterion", *MAKERS)
"""Kinds of the items of a dictionary of which a key that is not known chooses one."""


def subscript(engine: Engine, node: ast.Subscript) -> Value:
    value = engine.value(node.value)
    if not isinstance(node.slice, ast.Slice) and f"[{engine.word(node.slice)!r}]" in value.attributes:
        node = ast.copy_location(ast.Subscript(node.value, ast.Constant(engine.word(node.slice)), node.ctx), node)
    if (item := filled(value)) is not None:
        return value if isinstance(node.slice, ast.Slice) else item
    if value.kind == "list" and isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, int):
        items = value.items
        last = items[-1] if items and items[-1].kind == "tensor" else Value()
        return items[node.slice.value] if -len(items) <= node.slice.value < len(items) else last
    if value.kind in ("optimizer", "scheduler"):  # a list of them, which one stands for
        return value
    if value.kind == "group" and not (isinstance(node.slice, ast.Constant) and node.slice.value != "params"):
        return Value("params", of=value.of)
    if value.kind == "dict" and not isinstance(node.slice, ast.Constant) and (found := any_item(engine, node, value)):
        return found
    text = ast.unparse(node.slice)
    key = f"[{text}]"
    if value.kind == "tensor" and key not in value.attributes:
        named = isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str) and "loss" not in text
        own = take_apart(value, text if isinstance(node.slice, ast.Constant) else "")
        unsure = named or value.unsure
        number = node.slice.value if isinstance(node.slice, ast.Constant) else key
        graph = of_part(value, number if isinstance(number, int) else key)
        made = value.derived("tensor", made_of=(), unsure=unsure, traced=value.traced, pieces=own, **graph)
        if named and not PREDICTION.search(text):
            made.range = ""  # how many there were, perhaps
        if value.reduction == "none" and not value.reduced and (mask := engine.value(node.slice)).kind == "bool":
            count = Value(made=True, counted=mask, summed=True)
            made.selected = Factor("/", text, count, node, engine.module.path)
        if value.entries and key in value.entries:
            made.range, own = value.entries[key]
            others = NO_ROOTS.union(*(tokens for _, tokens in value.entries.values()))
            made.update(entries=UNSET, roots=value.roots - others | own)
        return made
    if key not in value.attributes:
        made = Value("unknown", f"{value.name}{key}", given=True, birth=value.birth)
        made.update(traced=is_traced(value), origins=value.origins, cut=value.cut, cut_path=value.cut_path)
        made.update(appended=value.appended, inside=value.inside)
        made.within = value if value.kind in ("model", "ddp") or value.within is not None else None
        if isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str):
            made.kind = stepped(engine, node) or kind_by_name(node.slice.value) or "unknown"
        elif value.kind == "unknown":
            made.kind = stepped(engine, node) or "unknown"
        value.attributes[key] = made
    item = value.attributes[key]
    if item.kind == "unknown" and item.made and not item.choice:
        item.kind = stepped(engine, node) or "unknown"
    return item


def stepped(engine: Engine, node: ast.Subscript) -> str:
    """What an item of a list or dictionary is, if step() is called on it: `optimizer["generator"].step()`."""
    name, tail = dotted(node.value), dotted(node.value).split(".")[-1]
    key = f"[{node.slice.value!r}]" if isinstance(node.slice, ast.Constant) else ""
    methods = called_on_items(engine, name + key)
    if "step" not in methods:
        return ""
    if "zero_grad" in methods:
        return "optimizer"
    return next((kind for kind in ("scheduler", "optimizer") if NAMES[kind].search(tail)), "")


def called_on_items(engine: Engine, name: str) -> set[str]:
    """The methods that are called on the items of a list, in this function or in the class of its object."""
    owner = engine.selves[-1].cls if engine.selves[-1] is not None and name.startswith("self.") else None
    found = usage(engine.scope.node).items.get(name, set())
    return found | (usage(owner).items.get(name, set()) if owner is not None else set())


def any_item(engine: Engine, node: ast.Subscript, value: Value) -> Value | None:
    """The item of a dictionary of optimizers, models or loss functions under a key that is not known: any of them."""
    items = [(key, item) for key, item in value.attributes.items() if item.kind in CHOSEN]
    if not items or len(items) < len(value.items):
        return None
    of = engine.canonical(node.slice)
    birth = youngest(engine, node.slice)
    tests: list[Formula] = [("atom", Atom(f"{of} is {key}", birth, subject=of)) for key, _ in items[:-1]]
    tests += [negation(joined("or", tests))]  # there is no other
    return choice(list(zip(tests, (item for _, item in items))))


def sequence(engine: Engine, node: ast.Tuple | ast.List) -> Value:
    return several([engine.value(item) for item in node.elts])


def comprehension(engine: Engine, node: ast.ListComp | ast.GeneratorExp | ast.SetComp) -> Value:
    outer, engine.scope = engine.scope, Scope(engine.scope, engine.scope.node, engine.module)
    try:
        values = elements(engine, node.elt, node.generators)
    finally:
        engine.scope = outer
    value = values[0]
    if len(values) > 1 and {v.kind for v in values} <= {"optimizer", "scheduler"}:
        return several(values)
    if value.kind == "param":
        some = value.some or any(generator.ifs for generator in node.generators)
        branches = engine.branches if isinstance(node, ast.GeneratorExp) else -1
        return parameters_of([v.derived("params", some=some, branches=branches) for v in values if v.kind == "param"])
    if value.kind == "gradient":
        engine.emit("taken", node, value)
        return value.derived("gradients")
    if value.kind in ("params", "tensor", "optimizer", "scheduler", "detached"):
        return value
    if value.kind == "list" and len(value.items) == 2 and value.items[1].kind in ("optimizer", "scheduler"):
        return several(values)  # pairs for a dictionary, of which one stands for all that are not seen
    return Value(args=tuple(v for v in values if v.kind == "model"))


def elements(engine: Engine, node: ast.expr, generators: list[ast.comprehension], each: bool = True) -> list[Value]:
    """What a comprehension makes: of each of a few optimizers or models, and of one item of anything else.

    each: they were not gone through before, by a generator further out.
    """
    if not generators:
        return [engine.value(node)]
    first, *others = generators
    over, found = engine.value(first.iter), []
    items = unrolled(over, MANY) if each else []
    for item in items or [element(over)]:
        bind(engine, first.target, item)
        for test in first.ifs:
            engine.value(test)
        found += elements(engine, node, others, not items and each)
    spend(engine.branches, over)
    return found


def dictionary_comprehension(engine: Engine, node: ast.DictComp) -> Value:
    """A dictionary of optimizers or schedules, of which one stands for all."""
    pairs = ast.GeneratorExp(ast.Tuple([node.key, node.value], ast.Load()), node.generators)
    found = engine.value(ast.copy_location(pairs, node))
    return dictionary_of_pairs(found) or Value()


def mapping(engine: Engine, node: ast.Dict) -> Value:
    value = Value("dict")
    for key, part in zip(node.keys, node.values):
        item = engine.value(part)
        value.items.append(item)
        if isinstance(key, ast.Constant):
            value.attributes[f"[{key.value!r}]"] = item
    kinds = {v.kind for v in value.items}
    if "params" in kinds and not kinds & {"optimizer", "model", "ddp", "scheduler", "scaler"}:  # a group of parameters
        return next(v for v in value.items if v.kind == "params")
    return value
