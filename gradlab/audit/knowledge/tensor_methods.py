"""Methods of tensors, of parameters and of their gradients."""

from __future__ import annotations

import ast

from gradlab.audit.knowledge import bootstrapping, value_ranges
from gradlab.audit.knowledge.call_site import CallSite
from gradlab.audit.knowledge.freezing import freeze
from gradlab.audit.knowledge.manual_updates import manual_step
from gradlab.audit.knowledge.tensor_arithmetic import combined
from gradlab.audit.source.syntax import dotted, walk
from gradlab.audit.trace.engine import Engine
from gradlab.audit.trace.iterables import every
from gradlab.audit.trace.provenance import cut_off, is_traced, provenance
from gradlab.audit.trace.tensors import reduction
from gradlab.audit.trace.values import Value

DETACHED = {
    *("item", "detach", "tolist", "numpy", "detach_", "data_ptr"),
    *("argmax", "argmin", "argsort", "eq", "ne", "gt", "lt", "ge", "le", "bool", "int", "long", "byte"),
    *("sample", "size", "dim", "numel", "isnan", "isinf", "isfinite"),
}
"""Methods whose results have no gradient."""
MOVED = {
    *("to", "cuda", "cpu", "float", "double", "half", "bfloat16", "clone", "requires_grad_"),
    *("view", "reshape", "squeeze", "unsqueeze", "flatten"),
}
"""Methods whose results are the same numbers."""
OF_ONE = MOVED - {"requires_grad_"} | {
    *("transpose", "permute", "contiguous", "t", "expand"),
    *("sum", "mean", "max", "min", "log_softmax", "softmax", "sigmoid", "tanh", "exp", "log", "abs", "norm", "relu"),
}
"""Methods whose arguments are no tensors."""
OF_TENSORS = {*OF_ONE, *value_ranges.SHAPES, "add", "sub", "div", "mul", "pow", "square", "sqrt", "clamp"}
"""Methods of tensors that a loss of unknown making may have."""
LINEAR = MOVED | {"sum", "mean", "nansum", "neg"}
"""Methods of a sum whose results are the sums of the terms' own."""
FACTORS = ("div", "div_", "mul", "mul_", "true_divide", "multiply", "divide")


def tensor_method(call: CallSite, owner: Value) -> Value:
    name, node = call.name, call.node
    if name in DETACHED and not (name == "sample" and call.keywords.keys() - {"sample_shape"}):  # a project's own
        made = without_graph(call.engine, node, owner, name)
        made.made_of = (owner,)
        if name == "detach_" and isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name):
            call.engine.scope.names[node.func.value.id] = made
        return made
    if name == "requires_grad_" and own_gradient(owner):
        return owner
    if name.endswith("parameters"):
        return Value(made=True)  # of a network that is taken for its result
    if name in FACTORS and call.args:
        op: ast.operator = ast.Div() if "div" in name else ast.Mult()
        made = combined(call.engine, op, owner, call.args[0], node.args[0])
        if name.endswith("_"):
            own = ("kind", "name", "birth", "number", "attributes", "choice")
            owner.update(**{fact: value for fact, value in made.__dict__.items() if fact not in own})
        return made
    made = owner.derived("tensor", made_of=(owner,) if name in MOVED else ())
    made.unsure |= owner.opaque and name not in OF_TENSORS  # what has backward() may be an object that holds a loss
    if name == "square" or (name == "pow" and value_ranges.has_constant(node, 2)):
        made.roots = made.roots | bootstrapping.error(call.engine, node, owner)
    made.parts, made.numbers = (owner.parts, owner.numbers) if name in LINEAR else ((), ())
    if name.endswith("_"):
        owner.traced = False  # what else it comes from now is not known
    else:
        made.update(**provenance(call.engine, node, [owner] if name in OF_ONE else [owner, *call.values]))
    if name in ("sum", "nansum", "mean"):
        made.update(**reduction(owner, name, dimensions(call, 0)))
    if name in ("mean", "sum") and not call.args and not node.keywords:
        made.scalar = True
    if name in value_ranges.PRODUCTS:
        made.update(range=value_ranges.product([owner, *call.args]), linear=False)
    else:
        partial = bool(call.args) or bool(node.keywords)
        made.update(**value_ranges.applied(call.engine, node, name, owner, partial))
    return made


def detached(engine: Engine, node: ast.AST, of: Value | None = None) -> Value:
    """The numbers of a tensor, without its graph; of: the tensor, where it becomes one of Python's numbers."""
    made = Value("detached", cut=node, cut_path=engine.module.path)
    made.numbers = (of.derived("tensor", cut=node, cut_path=made.cut_path, made_of=(of,)),) if of is not None else ()
    return made


def without_graph(engine: Engine, node: ast.AST, owner: Value, name: str) -> Value:
    """The numbers of a tensor by a method or attribute, which may be a term of a loss."""
    made = detached(engine, node, owner if name in ("item", "detach", "data") else None)
    made.update(**cut_off(engine, node, [owner]))
    return made


def detached_method(call: CallSite, owner: Value) -> Value:
    if call.name == "requires_grad_" and own_gradient(owner):
        return owner
    if call.name == "backward" or not (call.name in OF_ONE or all(map(is_traced, call.args))):
        return Value(made=True)
    return owner.derived("detached")


def own_gradient(value: Value) -> bool:
    """Numbers that lost their graph are given a gradient: it goes no further. False where they may have a graph."""
    numbers = value.kind == "detached" or (value.kind == "tensor" and value.traced and not value.origins)
    if not numbers or value.cut is None:
        return False
    kind = "unknown" if value.kind == "detached" else value.kind
    value.update(kind=kind, made=True, leaf=value.cut, cut=None, traced=False)
    return True


def dimensions(call: CallSite, first: int) -> set[object] | None:
    """The dimensions that a reduction is over, from the argument number `first` on; None: all of them."""
    given = [*call.args[first:], *(call.keywords[k] for k in ("dim", "axis") if k in call.keywords)]
    return {v.value for one in given for v in every(one)} if given else None


def gradient_method(call: CallSite, owner: Value) -> Value:
    """A method of a gradient, or of all gradients."""
    name = call.name
    if owner.kind != "gradient":
        return Value("measured")
    if owner.guess and name in ("zero_", "detach_", "clamp_", "clip_"):
        return Value()  # of an input, perhaps
    if name in ("zero_", "detach_") or (name == "fill_" and call.first is not None and call.first.value == 0):
        call.emit("zero", owner, by_hand=True)
    elif name == "fill_":
        call.emit("given", owner)
    elif name == "mul_" and call.args and is_bounded(call):
        call.emit("clip", owner, call=call.node)
    elif name in ("div_", "mul_") and call.args:
        call.emit("scale", owner, in_place="div_" if is_inverse(call.node.args[0]) else name)
    elif name in ("clamp_", "clip_"):
        call.emit("clip", owner, by_value=True, call=call.node)
    elif name in ("norm", "abs", "pow", "isnan", "isinf", "isfinite", "max", "mean", "std"):
        call.emit("look", owner)
    elif name in ("item", "tolist", "cpu", "numpy", "clone"):
        call.emit("taken", owner)
    return owner if name in ("detach", "data", "float", "view", "flatten", "clone") else Value("measured")


def is_inverse(node: ast.expr) -> bool:
    """`1 / n`."""
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) and isinstance(node.left, ast.Constant)


def is_bounded(call: CallSite) -> bool:
    """Whether a factor is that of a clip: made of a norm, and kept at or below 1 by a comparison or a clamp."""
    name, scope = dotted(call.node.args[0]), call.engine.scope.node
    made = [n.value for n in walk(scope) if isinstance(n, ast.Assign) and name and dotted(n.targets[0]) == name]
    tests = [n for n in walk(scope) if isinstance(n, ast.Compare) and dotted(n.left) == name]
    limits = [n.comparators[0] for n in tests if isinstance(n.ops[0], (ast.Lt, ast.LtE))]
    limits += [a for n in made if isinstance(n, ast.Call) for a in [*n.args, *(k.value for k in n.keywords)]]
    return "norm" in " ".join(map(ast.unparse, made)) and any(ast.unparse(one) in ("1", "1.0") for one in limits)


def parameter_method(call: CallSite, owner: Value) -> Value:
    name, args = call.name, call.node.args
    if name in ("add_", "sub_"):
        manual_step(call.engine, call.node, owner, call.expressions, name == "sub_")
    elif name == "copy_" and args and isinstance(args[0], ast.BinOp):
        manual_step(call.engine, call.node, owner, args, isinstance(args[0].op, ast.Sub))
    elif name in ("detach", "view", "flatten"):
        return owner
    elif name == "requires_grad_":
        freeze(call.engine, call.node, owner, call.first)
    return Value("measured")
