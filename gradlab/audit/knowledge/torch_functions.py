"""Functions of PyTorch that compute tensors."""

from __future__ import annotations

import re

from gradlab.audit.knowledge import value_ranges
from gradlab.audit.knowledge.call_site import CallSite
from gradlab.audit.trace.iterables import members
from gradlab.audit.trace.tensors import roots_of, tensor
from gradlab.audit.trace.values import NO_ROOTS, Value

JOINED = {"where", "cat", "stack", "maximum", "minimum", "concat"}
"""Functions whose results have values of one or the other tensor."""


def torch_function(call: CallSite) -> Value:
    tail = call.tail
    if "autograd" in call.name:
        if tail == "backward":
            call.emit("backward", call.first)
        # derivatives with respect to inputs, for example: in practice never all zero at once
        return tensor(opaque=True, derivative=True) if tail == "grad" else Value()
    if "norm" in tail and any(v.kind in ("gradient", "gradients") for v in call.args):
        call.emit("look")
        return Value("measured")
    if marks := NO_ROOTS.union(*(a.marks for a in call.args)):
        return tensor(roots=marks, opaque=True)
    tensors = [v for a in call.args for v in members(a) if v.kind == "tensor"]
    if tensors and not re.match(r"is|argmax|arg|eq|ne|no_grad|numel", tail):
        return of_tensors(call, tensors)
    if tail in ("no_grad", "inference_mode"):
        return Value("context", word="no_grad")
    return Value(made=True)


def of_tensors(call: CallSite, tensors: list[Value]) -> Value:
    """`tensors`: those among the arguments, and in lists of them."""
    tail, partial = call.tail, len(call.args) > 1 or "dim" in call.keywords
    made = tensors[0].derived("tensor", made_of=(), roots=roots_of(tensors))
    if tail == "sum":
        made.reduction = "sum"
    if tail == "mean" and not partial and made.reduction == "none":
        made.reduction = "mean"
    if tail in ("sum", "mean") and not partial:
        made.scalar = True
    first = tensors[0] if tensors[0] is call.args[0] else made.derived("tensor", range="")
    if tail in JOINED:
        words = {v.range for v in tensors}
        first = made.derived("tensor", range=words.pop() if len(words) == 1 else "")
    if tail in value_ranges.PRODUCTS:
        first = made.derived("tensor", range=value_ranges.product(tensors))
    changed = value_ranges.applied(call.engine, call.node, tail, first, partial)
    made.update(**{**changed, "roots": made.roots | changed.get("roots", NO_ROOTS)})
    return made
