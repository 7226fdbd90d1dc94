"""Functions of PyTorch that compute tensors."""

from __future__ import annotations

import ast
import re
from dataclasses import replace

from gradlab.audit.knowledge import value_ranges
from gradlab.audit.knowledge.call_site import CallSite
from gradlab.audit.knowledge.opaque_calls import AWAY_FROM_ZERO, count_of
from gradlab.audit.knowledge.tensor_arithmetic import place_term, tensor_sum
from gradlab.audit.knowledge.tensor_methods import LINEAR, detached, dimensions, own_gradient
from gradlab.audit.trace.iterables import filled, members
from gradlab.audit.trace.provenance import cut_off, provenance
from gradlab.audit.trace.tensors import of_one_number, reduction, roots_of, tensor
from gradlab.audit.trace.values import NO_ROOTS, Value

NEW = {
    *("tensor", "zeros", "ones", "rand", "randn", "randint", "full", "arange", "linspace", "eye", "empty", "randperm"),
    *("zeros_like", "ones_like", "rand_like", "randn_like", "full_like", "empty_like"),
}
"""Functions that make tensors without a graph."""
COPIES = re.compile(r"(Float|Double|Half|Long|Int|Byte|Bool)?Tensor")
"""Constructors of tensors, which copy numbers."""
NOISE = {"randn", "rand", "randn_like", "rand_like", "normal"}
"""Those that draw random numbers."""
JOINED = {"where", "cat", "stack", "maximum", "minimum", "concat"}
"""Functions whose results have values of one or the other tensor."""


def derivative(call: CallSite) -> Value:
    """What torch.autograd.grad returns: without create_graph it is a number that no gradient flows through."""
    if call.keyword("create_graph") is True:  # a penalty, perhaps, that goes backward itself
        named = (value for name, value in call.keywords.items() if name != "inputs")  # which the outputs come from
        graph = provenance(call.engine, call.node, [*call.args[:1], *call.args[2:], *named])
        return tensor(opaque=True, range="slope", **graph)
    made = tensor(opaque=True, derivative=True)
    if "create_graph" not in call.keywords and len(call.args) < 5 and all(k.arg for k in call.node.keywords):
        made.update(traced=True, cut=call.node, cut_path=call.engine.module.path)
    return made


def torch_function(call: CallSite) -> Value:
    tail = call.tail
    if "distributed.autograd" in call.name:  # gradients are in a context of their own, and end with it
        call.emit("opaque", name=tail, receives=frozenset({"framework"}))
        return Value(made=True)
    first = call.first
    numbers = first is not None and (first.kind == "detached" or (tail == "Variable" and first.kind == "tensor"))
    if numbers and (tail in ("tensor", "as_tensor", "Variable") or COPIES.fullmatch(tail)):
        made = detached(call.engine, call.node)
        made.update(**cut_off(call.engine, call.node, call.values))
        if call.keyword("requires_grad") is True:
            own_gradient(made)
        return made
    if tail == "Variable" and first is not None:  # the numbers alone, whatever graph they had
        return Value(made=True, traced=call.keyword("requires_grad") in (None, False))
    if "autograd" in call.name:
        if tail == "backward":
            call.emit("backward", call.first)
        return derivative(call) if tail == "grad" else Value()
    if "norm" in tail and any(v.kind in ("gradient", "gradients") for v in call.args):
        call.emit("look")
        return Value("measured")
    if call.name == "sum" and (total := added_up(call)) is not None:
        return total
    call = replace(call, args=[filled(a) or a for a in call.args])
    if marks := NO_ROOTS.union(*(a.marks for a in call.args)):
        kept = tuple(a.appended for a in call.args if a.appended is not None)
        origins = provenance(call.engine, call.node, kept)["origins"]
        joined = kept if tail in JOINED else ()
        return tensor(roots=marks, opaque=True, origins=origins, made_of=joined)
    if tail in NEW and tail.endswith("_like"):
        return Value(made=True, traced=True, noise=tail in NOISE)
    given = call.values if "distributions." in call.name else call.args
    tensors = [v for a in given for v in members(a) if v.kind == "tensor"]
    copied = (tail == "tensor" or COPIES.fullmatch(tail)) and tensors
    if copied or (tail == "sum" and not tensors and call.first is not None and call.first.kind == "detached"):
        made = detached(call.engine, call.node)
        made.update(**cut_off(call.engine, call.node, call.values))
        return made
    if tensors and not re.match(r"is|argmax|arg|eq|ne|no_grad|numel", tail):
        return of_tensors(call, tensors)
    if first is not None and first.counted is not None and tail in AWAY_FROM_ZERO:
        return count_of(first, tail)
    if tail == "sum" and first is not None and len(call.values) == 1:
        return Value(made=True, counted=first, summed=True, **provenance(call.engine, call.node, call.values))
    enabled = first.value if tail == "set_grad_enabled" and first is not None else None
    if tail == "enable_grad" or (tail == "set_grad_enabled" and enabled is not False):
        return Value("context", word="grad" if tail == "enable_grad" or enabled is True else "perhaps_grad")
    if tail in ("no_grad", "inference_mode", "set_grad_enabled"):
        return Value("context", word="no_grad")
    facts = provenance(call.engine, call.node, call.values)
    fresh = tail in NEW or COPIES.fullmatch(tail) is not None
    if "requires_grad" in call.keywords or not (call.args or fresh) or tail == "load" or not (fresh or tail.islower()):
        facts["traced"] = False
    elif fresh:
        facts["traced"] = True
    weight = tail in NEW and call.keyword("requires_grad") is True
    leaf = call.node if tail == "tensor" and weight else None  # whatever its numbers come from
    return Value(made=True, noise=tail in NOISE, own_weight=weight, leaf=leaf, **facts)


def added_up(call: CallSite) -> Value | None:
    """Python's own sum() of a list of losses; of a list that a loop fills, as of its first."""
    over = call.args[0] if call.args else Value()
    if (term := filled(over)) is not None and term.kind == "tensor":
        return term
    if over.kind == "tensor" and goes_over_terms(call.node.args[0]):
        return over.derived("tensor")
    terms = over.items if over.kind == "list" else []
    if not terms or any(v.kind != "tensor" for v in terms):
        return over.derived("tensor") if over.kind == "tensor" and of_one_number(over) else None
    for term in terms:
        place_term(call.engine, term, call.node)
    total = terms[0].derived("tensor")
    for term in terms[1:]:
        total = tensor_sum(total, term)
    total.update(**provenance(call.engine, call.node, terms))
    return total


def goes_over_terms(node: ast.expr) -> bool:
    """A comprehension, or the values of a dictionary: terms, not the samples of one tensor."""
    values = isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "values"
    return values or isinstance(node, (ast.GeneratorExp, ast.ListComp))


def of_tensors(call: CallSite, tensors: list[Value]) -> Value:
    """`tensors`: those among the arguments, and in lists of them."""
    tail, partial = call.tail, len(call.args) > 1 or "dim" in call.keywords
    whole = (tensors[0],) if tail in JOINED and len(call.values) == len(tensors) == 1 else ()  # of one list
    made = tensors[0].derived("tensor", made_of=whole, roots=roots_of(tensors))
    made.parts, made.numbers = (made.parts, made.numbers) if tail in LINEAR else ((), ())
    if tail in ("sum", "mean"):
        made.update(**reduction(tensors[0], tail, dimensions(call, 1)))
    if tail == "stack" and all(of_one_number(v) for v in tensors):
        made.reduced = True
    if tail in ("sum", "mean") and not partial:
        made.scalar = True
    first = tensors[0] if call.args and tensors[0] is call.args[0] else made.derived("tensor", range="")
    if tail in JOINED:
        words = {v.range for v in tensors}
        first = made.derived("tensor", range=words.pop() if len(words) == 1 else "")
    if tail in value_ranges.PRODUCTS:
        first = made.derived("tensor", range=value_ranges.product(tensors))
    made.update(**provenance(call.engine, call.node, call.values))
    changed = value_ranges.applied(call.engine, call.node, tail, first, partial)
    made.update(**{**changed, "roots": made.roots | changed.get("roots", NO_ROOTS)})
    return made
