"""What values a tensor may take, as far as the text shows: where a log, a root, a quotient or an exp may leave them.

any: a network's output as it is; unseen: that of a network whose code is not there; share: 0 to 1, both included
(softmax, sigmoid); rest: 1 less an output; signed: -1 to 1 (tanh), bounded: its square; square: squares one by one;
error: the mean of squares; exp, expsum: exp of an output, its sum; total: the sum of outputs or shares; part: one of
several outputs; several: one of those of a network whose code is not there; scores: a product of outputs, or a
multiple of one. Everything else is the empty word: nothing is known, nothing is said.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from gradlab.audit.interpreter.classes import method_of
from gradlab.audit.source.syntax import dotted
from gradlab.audit.trace.values import Value, births

if TYPE_CHECKING:
    from gradlab.audit.interpreter.interpreter import Interpreter

SHAPES = {
    "view", "reshape", "squeeze", "unsqueeze", "transpose", "permute", "gather", "flatten", "contiguous", "to", "float",
    "double", "cuda", "cpu", "expand", "t", "clone", "narrow", "select", "index_select", "diag", "diagonal",
    "where", "cat", "stack", "maximum", "minimum", "concat",
}  # fmt: skip
SHARES = {"softmax", "sigmoid", "Softmax", "Sigmoid"}
ENDS = {**dict.fromkeys(SHARES, "share"), "tanh": "signed", "Tanh": "signed"}
OUTPUTS = {"Linear", "Conv1d", "Conv2d", "Conv3d", "Embedding", "LSTM", "GRU", "Bilinear"}
RAW = ("any", "unseen", "part")
LOGS = ("log", "log2", "log10")
PRODUCTS = {"einsum", "matmul", "mm", "bmm", "baddbmm"}


def after(name: str, word: str, node: ast.Call, partial: bool) -> str:
    """The word of what a function makes of a tensor; `partial`: it is told along which dimension."""
    if name in SHAPES or name in PRODUCTS:
        return word
    if name in ENDS:
        return ENDS[name]
    if name == "square" or (name == "pow" and powered(node, 2)):
        return "bounded" if word == "signed" else "square"
    if name in ("clamp", "clamp_min", "relu") and word == "square":
        lowest = [k.value for k in node.keywords if k.arg == "min"] or ([] if name == "relu" else node.args[-1:])
        return word if all(isinstance(low, ast.Constant) and low.value == 0 for low in lowest) else ""
    if name == "sum" and not partial and word in (*RAW, "share"):
        return "total"
    if name in ("sum", "mean"):
        word = "square" if word == "bounded" else word
        return {"square": "square" if partial else "error", "exp": "expsum" if name == "sum" else ""}.get(word, "")
    return "exp" if name == "exp" and word in (*RAW, "scores") else ""


def product(values: list[Value]) -> str:
    """The word of a product of matrices."""
    words = {v.data.get("range", "") for v in values if v.kind == "tensor"}
    return "scores" if words and words <= {"any", "scores"} else ""


def compared(op: ast.operator, left: Value, right: Value) -> frozenset[int] | None:
    """The marks of the output whose difference from data, or a multiple of it, a result is."""
    if isinstance(op, ast.Sub):
        for one, other in ((left, right), (right, left)):
            if one.data.get("range") == "several" and other.kind in ("unknown", "detached"):
                return one.data["roots"]
    return left.data.get("compared") if isinstance(op, (ast.Mult, ast.Pow)) else None


def powered(node: ast.Call, by: float) -> bool:
    return any(isinstance(a, ast.Constant) and a.value == by for a in node.args)


def fault(name: str, word: str) -> str:
    """What is wrong with a function of a tensor: the word of a rule, or nothing."""
    if name in LOGS:
        return "log" if word in ("share", "rest", "any") else "exp" if word == "expsum" else ""
    if name == "sqrt":
        return {"square": "sqrt", "bounded": "sqrt", "error": "rmse"}.get(word, "")
    return "exp" if name == "exp" and word == "any" else ""


def noted(it: Interpreter, node: ast.AST, what: str, *values: Value) -> frozenset[int]:
    """Emit that a number may leave the range; a loss made of it has the token among its roots."""
    if not what or any(region.kind == "no_grad" for region in it.regions):
        return frozenset()
    origin = next((v.data["exp_node"] for v in values if what == "exp" and v.data.get("exp_node")), node)
    token = next(births)
    it.tokens.add(token)
    it.emit("unstable", origin, None, what=what, token=token)
    return frozenset([token])


def applied(it: Interpreter, node: ast.Call, name: str, value: Value, partial: bool) -> dict:
    """What changes in a tensor's data when a function is applied to it."""
    word = value.data.get("range", "")
    made: dict = {"range": "" if value.data.get("derivative") else after(name, word, node, partial)}
    made["linear"] = bool(value.data.get("linear")) and name in {*SHAPES, "sum", "mean"}
    what = fault("sqrt" if name == "pow" and powered(node, 0.5) else name, word)
    if name == "exp" and it.within:
        what = ""  # inside a network a rate or a variance may be meant; its quotient by its sum is another matter
    if found := noted(it, node, what, value):
        made["roots"] = value.data.get("roots", frozenset()) | found
        if what == "exp":
            made["exp_event"] = it.out[-1]
    if made["range"] == "exp":
        made |= {"exp_node": node, "exp_of": word}
    return made


def arithmetic(
    it: Interpreter, node: ast.AST, op: ast.operator, left: Value, right: Value
) -> tuple[str, frozenset[int]]:
    """The word of a sum, product, quotient or power, and the tokens of what is wrong with it."""
    one, two = left.data.get("range", ""), right.data.get("range", "")
    if isinstance(op, (ast.Add, ast.Sub)):
        for exp, other in ((left, right), (right, left)):
            event, shared = exp.data.get("exp_event"), exp.data.get("roots", frozenset()) - it.tokens
            terms = (v.data["roots"] for v in other.data.get("parts", [other]) if v.data.get("linear"))
            if event is not None and any(shared & roots for roots in terms):
                event.data["what"] = ""  # exp(x) - y x: a rate's own likelihood, where x is its logarithm
    if isinstance(op, ast.Add) and "expsum" in (one, two):
        return ("expsum" if one == two or "number" in (left.kind, right.kind) else ""), frozenset()
    if isinstance(op, ast.Pow):
        power = right.data.get("value") if right.kind == "number" else None
        if power == 0.5:
            return "", noted(it, node, fault("sqrt", one), left)
        if power not in (2, 4) or left.data.get("derivative"):
            return "", frozenset()
        return ("bounded" if one == "signed" else "square"), frozenset()
    if isinstance(op, ast.Sub) and left.kind == "number" and left.data.get("value") == 1:
        return {**dict.fromkeys(RAW, "rest"), "share": "share", "bounded": "share"}.get(two, ""), frozenset()
    if isinstance(op, ast.Div) and right.kind == "tensor":
        what = (
            "division"
            if two in (*RAW, "total") or own_error(left, right)
            else "exp"
            if two == "expsum" and (one == "exp" or (one == "expsum" and left.data.get("exp_of") != "unseen"))
            else ""
        )
        return "", noted(it, node, what, left, right)
    if isinstance(op, ast.MatMult):
        return product([left, right]), frozenset()
    if isinstance(op, (ast.Mult, ast.Div)) and "tensor" in (left.kind, right.kind) and left.kind != right.kind:
        many = "scores" if {one, two} & {"any", "scores"} else ""
        masked = next((word for word in (one, two) if word in ("exp", "expsum") and isinstance(op, ast.Mult)), many)
        return ("share" if "share" in (one, two) else masked), frozenset()
    return "", frozenset()


def own_error(left: Value, right: Value) -> bool:
    """|output - data| / output: what is compared with data is a prediction, and may be anything."""
    return right.data.get("range") == "several" and left.data.get("compared") == right.data.get("roots")


def of_model(model: Value, depth: int = 0) -> str:
    """What a network ends in."""
    root = model.root()
    tail = str(root.data.get("last") or root.data.get("type", "")).split(".")[-1]
    if tail in ENDS:
        return ENDS[tail]
    if tail in OUTPUTS:
        return "any"
    if "class" in root.data and depth < 3 and (found := method_of(root, "forward")) is not None:
        ends = [n.value for n in ast.walk(found[0]) if isinstance(n, ast.Return) and n.value is not None]
        words = {ending(end, found[0], root, depth) for end in ends}
        return words.pop() if len(words) == 1 else ""
    return "" if "class" in root.data or root.data.get("type") else "unseen"


def ending(node: ast.expr, function: ast.AST, owner: Value, depth: int) -> str:
    """The word of an expression that a forward pass returns."""
    if isinstance(node, ast.Name):
        made = [n for n in ast.walk(function) if isinstance(n, ast.Assign) and dotted(n.targets[0]) == node.id]
        return ending(made[-1].value, ast.Pass(), owner, depth) if made else ""
    if not isinstance(node, ast.Call):
        return ""
    tail = node.func.attr if isinstance(node.func, ast.Attribute) else dotted(node.func)
    if tail in ENDS:
        return ENDS[tail]
    if isinstance(node.func, ast.Attribute) and tail in SHAPES:
        return ending(node.func.value, function, owner, depth)
    held = owner.attributes.get(tail) if dotted(node.func).startswith("self.") else None
    return of_model(held, depth + 1) if held is not None and held.kind == "model" else ""
