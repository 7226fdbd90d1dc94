"""Lines of the user's program at which nothing is called: found in its source, for what was measured already."""

from __future__ import annotations

import ast
import linecache
import sys
from collections.abc import Iterator, Sequence
from types import CodeType, FrameType
from typing import Any

from torch import nn

from gradlab.watch.call_site import USER, CallSite, call_site, origin

JUMPS = (ast.Continue, ast.Break, ast.Return)
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
LOOPS = (ast.For, ast.AsyncFor, ast.While)
SIMPLE = (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Return, ast.Expr)
CUTS = {"item", "detach", "data", "numpy", "tolist"}
UPDATES = ("step", "update")
"""Methods of a scaler that a check may guard."""


def parsed(code: CodeType) -> ast.AST:
    """The source file of a code object; empty if there is none."""
    try:
        return ast.parse("".join(linecache.getlines(code.co_filename)))
    except (SyntaxError, ValueError):
        return ast.Module([], [])


def statements(code: CodeType) -> list[ast.AST]:
    """The statements of a function, or of a module."""
    tree: Any = parsed(code)
    if code.co_name == "<module>":
        return list(tree.body)
    functions = (n for n in ast.walk(tree) if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef)))
    first = code.co_firstlineno
    return next((list(f.body) for f in functions if min([f, *f.decorator_list], key=line).lineno == first), [])


def line(node: Any) -> int:
    return int(node.lineno)


def walk(nodes: Sequence[ast.AST], leave: tuple[type, ...] = SCOPES) -> Iterator[Any]:
    """Nodes in the order of the text, without what is inside the kinds to leave out."""
    for node in nodes:
        yield node
        if not isinstance(node, leave):
            yield from walk(list(ast.iter_child_nodes(node)), leave)


def skipping_line(sites: Sequence[CallSite | None]) -> CallSite | None:
    """Where an update was left out after calls at these sites: the `continue` of a check, or the `if` before the step.

    None unless the latest calls and the check are in one function.
    """
    known = [site for site in sites if site is not None]
    if not known:
        return None
    code = known[-1][0]
    last = max(number for other, number in known if other is code)
    block: Sequence[ast.AST] = statements(code)
    while inner := [
        n for n in walk(block) if isinstance(n, LOOPS) and n.body[0].lineno <= last <= (n.body[-1].end_lineno or 0)
    ]:
        block = inner[0].body
    for check in walk(block):
        if isinstance(check, ast.If) and (check.test.end_lineno or 0) >= last:
            jumps = [n for n in walk([*check.body, *check.orelse], (*SCOPES, *LOOPS)) if isinstance(n, JUMPS)]
            if jumps:
                return code, jumps[0].lineno
            if any(isinstance(n, ast.Attribute) and n.attr in UPDATES for n in walk(check.body)):
                return code, check.lineno
    return None


def flag_lines() -> dict[nn.Module, CallSite]:
    """Module -> line of an assignment `module.requires_grad = ...` to it in one of the running functions."""
    found: dict[nn.Module, CallSite] = {}
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        for node in walk(statements(code)) if origin(code.co_filename) == USER else ():
            for target in node.targets if isinstance(node, ast.Assign) else ():
                if isinstance(target, ast.Attribute) and target.attr == "requires_grad":
                    module = value_of(target.value, {**frame.f_globals, **frame.f_locals})
                    if isinstance(module, nn.Module):
                        found.setdefault(module, (code, node.lineno))
        frame = frame.f_back
    return found


def freezing_line(code: CodeType) -> CallSite | None:
    """The line `parameter.requires_grad = False` in a file, if there is only one."""
    found = [
        node.lineno
        for node in ast.walk(parsed(code))
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and node.value.value is False
        for target in node.targets
        if isinstance(target, ast.Attribute) and target.attr == "requires_grad"
    ]
    return (code, found[0]) if len(found) == 1 else None


def setting_line(code: CodeType, name: str) -> CallSite | None:
    """The line that sets an attribute or a key of this name, if there is only one in the function, or in its file."""
    for nodes in (walk(statements(code)), ast.walk(parsed(code))):
        if len(found := {number for node in nodes for number in set_by(node, name)}) == 1:
            return code, found.pop()
    return None


def set_by(node: Any, name: str) -> Iterator[int]:
    """The lines of a statement or of a dictionary that set it; attributes of `self` are others."""
    if isinstance(node, (ast.Assign, ast.AugAssign)):
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            key = getattr(target.slice, "value", None) if isinstance(target, ast.Subscript) else None
            attribute = isinstance(target, ast.Attribute) and getattr(target.value, "id", "") != "self"
            if key == name or (attribute and target.attr == name):  # type: ignore[attr-defined]
                yield node.lineno
    elif isinstance(node, ast.Dict) and name != "lr":
        yield from (line(each) for each in node.keys if isinstance(each, ast.Constant) and each.value == name)


def cutting_line(name: str, codes: Sequence[CodeType]) -> CallSite | None:
    """The line that computes something of a variable or attribute, and ends its graph, if the files of these functions
    have only one. To pass it on, to assign or to print it computes nothing."""
    found = set()
    for code in {code.co_filename: code for code in codes}.values():
        for statement in ast.walk(parsed(code)):
            if isinstance(statement, SIMPLE) and ends_a_graph(statement):
                operands = [each for node in ast.walk(statement) for each in operands_of(node)]
                if any(name in (getattr(each, "attr", ""), getattr(each, "id", "")) for each in operands):
                    found.add((code, line(statement)))
    return found.pop() if len(found) == 1 else None


def ends_a_graph(statement: ast.AST) -> bool:
    """Whether what a statement computes has no graph, and is not printed."""
    nodes = list(ast.walk(statement))
    printed = any(isinstance(node, ast.Call) and called(node).endswith("print") for node in nodes)
    cuts = any(isinstance(node, ast.Attribute) and node.attr in CUTS for node in nodes)
    return not printed and (cuts or any(isinstance(node, ast.Call) and called(node) == "float" for node in nodes))


def operands_of(node: Any) -> list[Any]:
    """What a method is called of, a function of PyTorch is given, or an operator has on its sides."""
    if isinstance(node, ast.Call):
        owner = [node.func.value] if isinstance(node.func, ast.Attribute) else []
        return owner + (node.args if called(node).startswith(("torch.", "F.")) else [])
    if isinstance(node, ast.BinOp):
        return [node.left, node.right]
    return [node.operand] if isinstance(node, ast.UnaryOp) else []


def called(node: ast.Call) -> str:
    return ast.unparse(node.func)


def assignment_line(thing: Any) -> CallSite | None:
    """The line in a running function at which the variable or attribute that holds an object is assigned to a call."""
    found: list[CallSite] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        for node in walk(statements(code)) if origin(code.co_filename) == USER else ():
            if isinstance(node, ast.Assign) and len(node.targets) == 1:
                pairs = [(node.targets[0], node.value)]
                if isinstance(node.targets[0], ast.Tuple) and isinstance(node.value, ast.Tuple):
                    pairs = list(zip(node.targets[0].elts, node.value.elts, strict=False))
                names = {**frame.f_globals, **frame.f_locals}
                held = [v for t, v in pairs if isinstance(v, ast.Call) and value_of(t, names) is thing]
                found += [(code, line(value)) for value in held]
        frame = frame.f_back
    return found[0] if len({number for _, number in found}) == 1 else None


def making_line(optimizer: Any, step_site: CallSite | None) -> CallSite | None:
    """The line at which an optimizer is made: what a running function holds it by, or the only call of its class's name
    in the files of its step and of the watch."""
    if (assigned := assignment_line(optimizer)) is not None:
        return assigned
    files = {site[0].co_filename: site[0] for site in (call_site(), step_site) if site is not None}
    found = [
        (code, node.lineno)
        for code in files.values()
        for node in ast.walk(parsed(code))
        if isinstance(node, ast.Call)
        and getattr(node.func, "attr", getattr(node.func, "id", "")) == type(optimizer).__name__
    ]
    return found[0] if len(found) == 1 else None


def value_of(node: ast.AST, names: dict[str, Any]) -> Any:
    """The module that an expression such as `model.layers[-1]` is now; no code of the user's is run."""
    if isinstance(node, ast.Name):
        return names.get(node.id)
    if isinstance(node, ast.Attribute):
        owner = value_of(node.value, names)
        known = {**vars(owner), **owner._modules} if isinstance(owner, nn.Module) else getattr(owner, "__dict__", {})
        return known.get(node.attr)
    if isinstance(node, ast.Subscript):
        owner = value_of(node.value, names)
        try:
            key = ast.literal_eval(node.slice)
            parts = list(owner._modules.values()) if isinstance(key, int) else owner._modules
            return parts[key]
        except (ValueError, AttributeError, LookupError, TypeError):
            return None
    return None
