"""What values a tensor may take, as far as the text shows: where a log, a root, a quotient or an exp() may overflow.

any: a network's output as it is; unseen: that of a network whose code is not there; share: 0 to 1, both included
(softmax, sigmoid); joint: products of these; rest: 1 less an output; signed: -1 to 1 (tanh), bounded: its square;
square: squares one by one; ratio: such a square through something; error: the mean of squares; exp, expsum: exp of an
output, its sum; total: the sum of outputs or shares; part: one of several outputs; several: one of those of a network
whose code is not there; output: that of a network whose last layer is not known; slope: a derivative that has a graph;
scores: a product of outputs, or a multiple of one. Everything else is the empty word: nothing is known, nothing is
reported.
"""

from __future__ import annotations

import ast
from typing import Any

from gradlab.audit.source.syntax import dotted
from gradlab.audit.trace.engine import Engine
from gradlab.audit.trace.provenance import sources
from gradlab.audit.trace.values import NO_ROOTS, Event, Value, births

SHAPES = {
    *("view", "reshape", "squeeze", "unsqueeze", "transpose", "permute", "gather", "flatten", "contiguous", "to"),
    *("float", "double", "cuda", "cpu", "expand", "t", "clone", "narrow", "select", "index_select", "diag", "diagonal"),
    *("where", "cat", "stack", "maximum", "minimum", "concat"),
}
"""Functions whose results have values of their arguments."""
ENDS = {
    **dict.fromkeys(("softmax", "sigmoid", "Softmax", "Sigmoid"), "share"),
    **dict.fromkeys(("tanh", "Tanh"), "signed"),
}
OUTPUTS = {"Linear", "Conv1d", "Conv2d", "Conv3d", "Embedding", "LSTM", "GRU", "Bilinear"}
UNKNOWN = "?"
"""Instead of the name of a network's last layer, where others are added."""
RAW = ("any", "unseen", "part")
LOGS = ("log", "log2", "log10")
PRODUCTS = {"einsum", "matmul", "mm", "bmm", "baddbmm"}


def after(name: str, word: str, node: ast.Call, partial: bool) -> str:
    """The range of a function's result; `partial`: it reduces along a dimension."""
    if name in SHAPES or name in PRODUCTS:
        return word
    if name in ENDS:
        return ENDS[name]
    if name == "scatter_add" and word in ("share", "joint"):
        return "share"  # where nothing is added it is what it was
    if name == "square" or (name == "pow" and has_constant(node, 2)):
        return "bounded" if word == "signed" else "square"
    if name in ("clamp", "clamp_min", "relu") and word == "square":
        lowest = [k.value for k in node.keywords if k.arg == "min"] or ([] if name == "relu" else node.args[-1:])
        return word if all(isinstance(low, ast.Constant) and low.value == 0 for low in lowest) else ""
    if name == "sum" and not partial and word in (*RAW, "share"):
        return "total"
    if name in ("sum", "mean"):
        word = "square" if word == "bounded" else word
        return {"square": "square" if partial else "error", "exp": "expsum" if name == "sum" else ""}.get(word, "")
    if name == "exp" and word in (*RAW, "scores", "several", "output"):
        return "exp"
    return ""


def is_share(value: Value) -> bool:
    """Whether a value is surely the result of a softmax or a sigmoid, and not a multiple of one."""
    if value.choice:
        return all(is_share(one) for _, one in value.choice)
    moved = len(value.made_of) == 1 and is_share(value.made_of[0])
    return value.kind == "tensor" and value.range == "share" and (not value.made_of or moved)


def is_raw(value: Value) -> bool:
    """Whether a value is surely the output of a last layer without an activation, in another shape or not."""
    return value.kind == "tensor" and value.range == "any" and not value.choice and value.source == "model"


def product(values: list[Value]) -> str:
    """The range of a product of matrices."""
    words = {v.range for v in values if v.kind == "tensor"}
    return "scores" if words and words <= {"any", "scores"} else ""


def is_prediction(value: Value) -> bool:
    """Whether a value is surely a network's output, or each of several is, whose last layer may give 0."""
    if value.choice:
        return all(is_prediction(one) for _, one in value.choice)
    return value.source == "model" and value.range in (*RAW, "several", "share", "signed")


def compared(op: ast.operator, left: Value, right: Value) -> Value | None:
    """The output of which a result is the difference from data, or a multiple of that."""
    if isinstance(op, ast.Sub):
        for one, other in ((left, right), (right, left)):
            if is_prediction(one) and other.kind in ("unknown", "detached"):
                return one
    return left.compared if isinstance(op, (ast.Mult, ast.Pow)) else None


def has_constant(node: ast.Call, value: float) -> bool:
    return any(isinstance(a, ast.Constant) and a.value == value for a in node.args)


def fault(name: str, word: str) -> str:
    """What is wrong with a function of a tensor, as `Event.what`."""
    if name in LOGS:
        return "log" if word in ("share", "joint", "rest", "any", "ratio") else "exp" if word == "expsum" else ""
    if name == "sqrt":
        return {"square": "sqrt", "bounded": "sqrt", "error": "rmse"}.get(word, "")
    return "exp" if name == "exp" and word == "any" else ""


def emit_unstable(engine: Engine, node: ast.AST, what: str, *values: Value, given: Value | None = None) -> Event | None:
    """An operation may become non-finite; the event's token is to be a root of its result.

    given: what it does not take, which is the mistake of who gave it.
    """
    if not what or engine.without_gradient:
        return None
    origin = next((v.exp_node for v in values if what == "exp" and v.exp_node), node)
    token = next(births)
    engine.tokens.add(token)
    return engine.emit("unstable", origin, given, what=what, token=token)


def applied(engine: Engine, node: ast.Call, name: str, value: Value, partial: bool) -> dict[str, Any]:
    """The facts of a tensor that change when a function is applied to it."""
    word = value.range
    changed: dict[str, Any] = {"range": "" if value.derivative else after(name, word, node, partial)}
    changed["linear"] = value.linear and name in {*SHAPES, "sum", "mean"}
    what = fault("sqrt" if name == "pow" and has_constant(node, 0.5) else name, word)
    if word == "expsum" and value.exp_of == "output":
        what = ""  # its last layer may bound it: only a softmax that is written out shows that it does not
    if name == "exp" and engine.depth:
        what = ""  # inside a network a rate or a variance may be intended; exp(x) / sum(exp(x)) is found separately
    if (event := emit_unstable(engine, node, what, value)) is not None:
        changed["roots"] = value.roots | {event.token}
        if what == "exp":
            changed["exp_event"] = event
    if changed["range"] == "exp":
        changed |= {"exp_node": node, "exp_of": word}
    return changed


def arithmetic(
    engine: Engine, node: ast.AST, op: ast.operator, left: Value, right: Value
) -> tuple[str, frozenset[int]]:
    """The range of a sum, product, quotient or power, and the tokens of what is wrong with it."""
    one, two = left.range, right.range
    if isinstance(op, (ast.Add, ast.Sub)):
        forgive_rates(engine, left, right)
    if isinstance(op, ast.Add) and "expsum" in (one, two):
        return ("expsum" if one == two or "number" in (left.kind, right.kind) else ""), NO_ROOTS
    if isinstance(op, ast.Add) and {one, two} <= {"square", "bounded"}:
        return "square", NO_ROOTS
    if isinstance(op, ast.Add) and one == two == "exp":
        return "expsum", NO_ROOTS
    if isinstance(op, ast.Pow):
        power = right.value if right.kind == "number" else None
        if power == 0.5:
            return "", tokens_of(emit_unstable(engine, node, fault("sqrt", one), left))
        if power not in (2, 4) or left.derivative:
            return "", NO_ROOTS
        return ("bounded" if one == "signed" else "square"), NO_ROOTS
    if isinstance(op, ast.Sub) and left.kind == "number" and left.value == 1:
        return {**dict.fromkeys(RAW, "rest"), "share": "share", "bounded": "share"}.get(two, ""), NO_ROOTS
    if isinstance(op, ast.Div) and right.kind == "tensor":
        tokens = tokens_of(emit_unstable(engine, node, quotient_fault(left, right), left, right))
        return ("ratio" if one == "square" else ""), tokens
    if isinstance(op, ast.MatMult):
        return product([left, right]), NO_ROOTS
    if isinstance(op, ast.Mult) and {one, two} <= {"share", "joint"}:
        return "joint", NO_ROOTS
    if isinstance(op, (ast.Mult, ast.Div)) and "tensor" in (left.kind, right.kind) and left.kind != right.kind:
        many = "scores" if {one, two} & {"any", "scores"} else ""
        masked = next((word for word in (one, two) if word in ("exp", "expsum") and isinstance(op, ast.Mult)), many)
        return ("share" if "share" in (one, two) else masked), NO_ROOTS
    return "", NO_ROOTS


def tokens_of(event: Event | None) -> frozenset[int]:
    return NO_ROOTS if event is None else frozenset([event.token])


def forgive_rates(engine: Engine, left: Value, right: Value) -> None:
    """exp(x) - y x is the likelihood of a rate whose logarithm x is: its exp() is intended."""
    for exp, other in ((left, right), (right, left)):
        shared = exp.roots - engine.tokens
        terms = (v.roots for v in other.parts or (other,) if v.linear)
        if exp.exp_event is not None and any(shared & roots for roots in terms):
            exp.exp_event.what = ""


def quotient_fault(left: Value, right: Value) -> str:
    if right.traced and not sources(right):
        return ""  # what has no graph is data
    # |output - data| / output: what is compared with data is a prediction, and may be anything
    own_error = left.compared is right
    if right.range in (*RAW, "total") or own_error:
        return "division"
    softmax = left.range == "exp" or (left.range == "expsum" and left.exp_of not in ("unseen", "output"))
    return "exp" if right.range == "expsum" and softmax else ""


def of_model(model: Value, depth: int = 0) -> str:
    """The range of a network's output, by its last layer."""
    if model.choice:
        words = {of_model(one, depth) for _, one in model.choice}
        return words.pop() if len(words) == 1 else ""
    root = model.root()
    tail = (root.last or root.maker).split(".")[-1]
    if tail == UNKNOWN:
        return ""
    if tail in ENDS:
        return ENDS[tail]
    if tail in OUTPUTS:
        return "any"
    if depth < 3 and (found := root.method("forward")) is not None:
        ends = [n.value for n in ast.walk(found[0]) if isinstance(n, ast.Return) and n.value is not None]
        words = {of_result(end, found[0], root, depth) for end in ends}
        return words.pop() if len(words) == 1 else ""
    return "" if root.lineage or root.maker else "unseen"


def of_result(node: ast.expr, function: ast.AST, owner: Value, depth: int) -> str:
    """The range of an expression that a forward pass returns."""
    if isinstance(node, ast.Name):
        made = [n for n in ast.walk(function) if isinstance(n, ast.Assign) and dotted(n.targets[0]) == node.id]
        last = max(made, key=lambda n: n.lineno, default=None)
        always = last is not None and last in getattr(function, "body", ())
        return of_result(last.value, ast.Pass(), owner, depth) if last is not None and always else ""
    if not isinstance(node, ast.Call):
        return ""
    tail = node.func.attr if isinstance(node.func, ast.Attribute) else dotted(node.func)
    if dotted(node.func) == f"self.{tail}":  # by what it is: `self.softmax` may be a LogSoftmax
        layer = owner.attributes.get(tail)
        return of_model(layer, depth + 1) if layer is not None and layer.kind == "model" else ""
    if tail in ENDS:
        return ENDS[tail]
    if isinstance(node.func, ast.Attribute) and tail in SHAPES:
        return of_result(node.func.value, function, owner, depth)
    return ""
