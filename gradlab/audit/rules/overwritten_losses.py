"""Losses that are overwritten before they are used, as in each iteration of a loop: only the last one goes backward."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Set

from gradlab.audit.rules.registry import text_rule
from gradlab.audit.rules.unused_losses import computed_for_nothing
from gradlab.audit.source.project import Module
from gradlab.audit.source.syntax import Nodes, called_name, dotted, walk

LOSS = re.compile(r"loss|criterion|entropy|mse|bce|nll", re.I)
"""Names of losses, and of functions that compute them."""
FUNCTION = re.compile(r"criterion|(entropy|loss|_logits|loss_f\w*)$", re.I)
"""Names of functions that compute a loss, and do nothing with it."""
Block = ast.For | ast.While | ast.With | ast.If | ast.FunctionDef
BLOCKS: tuple[type[Block], ...] = (ast.For, ast.While, ast.With, ast.If, ast.FunctionDef)
NUMBER = re.compile(r"weight|scale|coef|lambda|init|zero|ratio|(fn|func|name|type)$", re.I)
"""Names of what is about a loss, and is none."""
GOING = ("backward", "manual_backward")
LEAVING = (ast.Break, ast.Return, ast.Yield, ast.YieldFrom, ast.Await)


@text_rule("GL717")
def overwritten(module: Module) -> Iterator[ast.AST]:
    if "backward" not in module.source.text:
        return
    nodes: list[Block] = [node for kind in BLOCKS for node in module.source.nodes.of(kind)]
    blocks = [(node, block) for node in nodes for block in (node.body, getattr(node, "orelse", []))]
    around = {id(one): (node, block[i + 1 :]) for node, block in blocks for i, one in enumerate(block)}
    plus = mistyped(module)
    functions = (one for one in module.source.nodes.of(ast.FunctionDef) if LOSS.search(one.name))
    answers = {id(part) for one in functions for part in walk(one) if isinstance(part, ast.Return)}
    yield from bound_again(module, plus)
    yield from computed_for_nothing(module)
    for node, block in blocks:
        yield from in_block(block, [*behind(node, around)], {*map(id, plus)}, answers)


def behind(node: ast.stmt, around: Mapping[int, tuple[ast.stmt, list[ast.stmt]]]) -> Iterator[ast.stmt]:
    """The statements after an `if` or a `with`, in the same iteration of the loop around it."""
    while isinstance(node, (ast.If, ast.With)) and id(node) in around:
        node, following = around[id(node)]
        yield from following


def is_backward(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in GOING


def in_block(block: list[ast.stmt], after: list[ast.stmt], plus: Set[int], answers: Set[int]) -> Iterator[ast.AST]:
    """plus: the `=+` of the module, which are another mistake; answers: what functions that compute losses return."""
    for i, loop in enumerate(block):
        ahead = [*block[i + 1 :], *after]
        if replaced(loop, ahead, plus):
            yield loop
        if isinstance(loop, ast.For) and not any(isinstance(part, LEAVING) or is_backward(part) for part in walk(loop)):
            for one in statements(loop.body):
                name = stored_name(one)
                if not LOSS.search(name) or any(name in loaded(part) for part in loop.body):
                    continue
                lost = thrown_away(one, loop) or begun(name, one, loop, block[:i])
                if lost and goes_on(name, ahead, answers=answers):
                    yield one


def begun(name: str, made: ast.stmt, loop: ast.For, before: list[ast.stmt]) -> bool:
    """Whether a loss that a loop computes anew in each iteration has begun at 0, or as another loss."""
    first = next((one for one in reversed(before) if name in loaded(one) | stored(one)), None)
    if first is None or stored_name(first) != name:
        return False
    assert isinstance(first, ast.Assign) and isinstance(made, ast.Assign)
    calls = [any(isinstance(part, ast.Call) for part in walk(one)) for one in (first, made)]
    zero = isinstance(first.value, ast.Constant) and first.value.value == 0
    return calls[1] and (zero or (calls[0] and of_item(made, loop)))


def replaced(made: ast.stmt, rest: list[ast.stmt], plus: Set[int]) -> bool:
    """Whether a loss has a name that is bound to something else before it is used, and no other name goes backward."""
    name, terms = stored_name(made, True), losses_in(getattr(made, "value", made))
    if not LOSS.search(name) or not isinstance(made, ast.Assign) or not terms:
        return False
    for i, one in enumerate(rest):
        if isinstance(one, ast.AugAssign) and name in stored(one.target):
            terms |= losses_in(one.value)
        elif name in loaded(one) | stored(one):
            again = stored_name(one, True) == name and not loaded(one) & {name, *terms}
            going = goes_on(name, rest[i + 1 :], False) and not any(goes_on(term, rest, False) for term in terms)
            return again and going and id(one) not in plus
        elif "." in name and any(isinstance(part, ast.Call) for part in walk(one)):
            return False  # a method, which may use it
    return False


def losses_in(node: ast.AST) -> set[str]:
    """The losses in a sum of losses, each times a weight, perhaps, by their names or those of what computes them."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub, ast.Mult, ast.Div)):
        return losses_in(node.left) | losses_in(node.right)
    if isinstance(node, ast.Call):
        return {f"{called_name(node)}()"} if FUNCTION.search(called_name(node)) else set()
    return {dotted(node)} if LOSS.search(dotted(node)) and not NUMBER.search(dotted(node)) else set()


def mistyped(module: Module) -> list[ast.Assign]:
    """`loss =+ term`, which is no `+=`: the text shows it, as a plus in parentheses or after a space is a sign."""
    if "=+" not in module.source.text:
        return []
    lines = [line.encode("utf-8", "surrogatepass") for line in module.source.text.split("\n")]
    places = [(one, lines[one.value.lineno - 1], one.value.col_offset) for one in module.source.nodes.of(ast.Assign)]
    return [one for one, line, at in places if line[max(at - 1, 0) : at + 1] == b"=+"]


def bound_again(module: Module, plus: list[ast.Assign]) -> Iterator[ast.AST]:
    """Those of a loss that has a value already, in the same function."""
    nodes = module.source.nodes if plus else Nodes(None)
    functions = sorted([*nodes.of(ast.FunctionDef), *nodes.of(ast.AsyncFunctionDef)], key=lambda one: one.lineno)
    home = {id(part): function for function in functions for part in walk(function)}  # the innermost comes last
    bound: set[tuple[ast.AST | None, str]] = set()
    for one in nodes.of(ast.Assign):
        known = (home.get(id(one)), dotted(one.targets[0]))
        if one in plus and known in bound and LOSS.search(known[1]):
            yield one
        bound |= {known}


def statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Those under no condition, those of loops inside included."""
    for one in body:
        yield from statements(one.body) if isinstance(one, (ast.With, ast.For)) else (one,)


def stored_name(node: ast.stmt, attributes: bool = False) -> str:
    """The one name that an assignment binds; attributes: or attribute of self."""
    target = node.targets[0] if isinstance(node, ast.Assign) and len(node.targets) == 1 else None
    if isinstance(target, ast.Name) or (attributes and isinstance(target, ast.Attribute)):
        return dotted(target)
    return ""


def loaded(node: ast.AST) -> set[str]:
    return {dotted(part) for part in walk(node) if isinstance(getattr(part, "ctx", None), ast.Load)} - {""}


def stored(node: ast.AST) -> set[str]:
    return {dotted(part) for part in walk(node) if isinstance(getattr(part, "ctx", None), ast.Store)} - {""}


def thrown_away(made: ast.stmt, loop: ast.For) -> bool:
    """Whether a loss is computed from this iteration's item alone, and nothing else in the iteration uses it."""
    assert isinstance(made, ast.Assign)
    if not any(isinstance(part, ast.Call) and LOSS.search(called_name(part)) for part in walk(made.value)):
        return False
    return of_item(made, loop)


def of_item(made: ast.Assign, loop: ast.For) -> bool:
    """Whether something is computed from an iteration's item, and from nothing that the iterations before left."""
    own, fresh, needed = stored(loop), stored(loop.target), loaded(made.value)
    for one in statements(loop.body):
        if one is made:
            break
        if (bound := stored_name(one)) and not loaded(one) & own - fresh and bound not in loaded(one):
            fresh |= {bound}
            needed |= loaded(one) if bound in needed else set()
    return not loaded(made.value) & own - fresh and bool(needed & stored(loop.target))


def goes_on(name: str, rest: list[ast.stmt], into_loss: bool = True, answers: Set[int] = frozenset()) -> bool:
    """Whether the last one goes backward, by itself or in what is computed from it.

    into_loss: or into another loss; answers: or is returned by one of these statements.
    """
    carrying = {name}
    for one in rest:
        if isinstance(one, ast.AugAssign) and stored(one.target) & carrying:
            continue  # times a weight: it is the same loss
        if loaded(one) & carrying:
            if id(one) in answers or (isinstance(one, ast.Expr) and is_backward(one.value)):
                return True
            target = (stored(one.target) or {""}).pop() if isinstance(one, ast.AugAssign) else stored_name(one)
            if any(isinstance(part, ast.Attribute) and part.attr in ("item", "data", "detach") for part in walk(one)):
                target = ""
            if into_loss and LOSS.search(target):
                return True
            carrying |= {target} - {""}
        else:
            carrying -= stored(one)
    return False
