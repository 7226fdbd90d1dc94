"""Lines of the user's program at which nothing is called: found in its source, for what was measured already."""

from __future__ import annotations

import ast
import functools
import linecache
import sys
from collections.abc import Iterator, Sequence
from types import CodeType, FrameType
from typing import Any

from torch import nn

from gradlab.watch.call_site import USER, CallSite, origin

JUMPS = (ast.Continue, ast.Break, ast.Return)
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
LOOPS = (ast.For, ast.AsyncFor, ast.While)
SIMPLE = (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Return, ast.Expr)
CUTS = {"item", "detach", "data", "numpy", "tolist"}
UPDATES = ("step", "update")
"""Methods of a scaler that a check may guard."""


@functools.lru_cache(maxsize=16)
def nodes_of_text(text: str) -> tuple[Any, ...]:
    """What `ast.walk` finds in a text, the module first; it is asked for often, and parsing takes milliseconds."""
    try:
        return tuple(ast.walk(ast.parse(text)))
    except (SyntaxError, ValueError):
        return (ast.Module([], []),)


@functools.lru_cache(maxsize=16)
def functions_of_text(text: str) -> dict[int, list[ast.AST]]:
    """The first line of each function, with its decorators -> its statements."""
    functions = [node for node in nodes_of_text(text) if isinstance(node, FUNCTIONS)]
    return {min([f, *f.decorator_list], key=line).lineno: list(f.body) for f in reversed(functions)}


def text_of(file: str) -> str:
    """Empty if there is none."""
    return "".join(linecache.getlines(file))


def nodes_in(file: str) -> tuple[Any, ...]:
    """The nodes of a source file."""
    return nodes_of_text(text_of(file))


def nodes_of(code: CodeType) -> tuple[Any, ...]:
    """The nodes of the source file of a code object."""
    return nodes_in(code.co_filename)


def statements(code: CodeType) -> list[ast.AST]:
    """The statements of a function, or of a module."""
    text = text_of(code.co_filename)
    if code.co_name == "<module>":
        return list(nodes_of_text(text)[0].body)
    return functions_of_text(text).get(code.co_firstlineno, [])


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


@functools.cache
def repeats_listed(sites: tuple[CallSite, ...], step: tuple[CallSite, ...] = ()) -> bool:
    """Whether the innermost loop around calls, the innermost first, is over a tuple or a list in the text.

    step: the calls that are running at a step; a loop around it too is none of a window.
    """
    for code, number in sites:
        around = [n for n in walk(statements(code)) if isinstance(n, LOOPS) and encloses(n, number)]
        around = [n for n in around if not any(code is other and encloses(n, at) for other, at in step)]
        if around:
            loop = around[-1]
            inner = getattr(loop, "iter", None)
            given = inner.args if isinstance(inner, ast.Call) else [inner]
            return any(isinstance(each, (ast.Tuple, ast.List)) for each in given)
    return False


def repeating_call(sites: tuple[CallSite, ...]) -> CallSite | None:
    """The innermost of calls, the innermost first, that is in a loop of its function."""
    for code, number in sites:
        if any(isinstance(n, LOOPS) and encloses(n, number) for n in walk(statements(code))):
            return code, number
    return None


def encloses(node: Any, number: int) -> bool:
    """Whether a line is in the body of a statement."""
    return bool(node.body[0].lineno <= number <= (node.body[-1].end_lineno or 0))


def check_line(site: CallSite | None) -> CallSite | None:
    """The innermost `if` in whose body a line is."""
    if site is None:
        return None
    code, number = site
    around = [n.lineno for n in walk(statements(code)) if isinstance(n, ast.If) and encloses(n, number)]
    return (code, max(around)) if around else None


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
    """The line in a file that freezes weights, `parameter.requires_grad = False` or `requires_grad_(flag)`, if there is
    only one."""
    nodes = nodes_of(code)
    found = [line(node) for node in nodes for value in flags_set(node) if getattr(value, "value", None) is not True]
    return (code, found[0]) if len(found) == 1 else None


def flags_set(node: ast.AST) -> Iterator[ast.AST]:
    """What `requires_grad` is set to by a statement or a call; any argument of a call that names none is True."""
    if isinstance(node, ast.Assign):
        yield from (node.value for t in node.targets if isinstance(t, ast.Attribute) and t.attr == "requires_grad")
    elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "requires_grad_":
        yield from [*node.args, *(each.value for each in node.keywords)][:1]


def setting_line(code: CodeType, name: str) -> CallSite | None:
    """The line that sets an attribute or a key of this name, if there is only one in the function, or in its file."""
    others = {"self", *parameter_names(code)}
    for nodes in (walk(statements(code)), nodes_of(code)):
        if len(found := {number for node in nodes for number in set_by(node, name, others)}) == 1:
            return code, found.pop()
    return None


def parameter_names(code: CodeType) -> Iterator[str]:
    """What the loops of a file over `parameters()` or `named_parameters()` call each."""
    for node in nodes_of(code):
        if isinstance(node, ast.For) and isinstance(node.iter, ast.Call) and name_of(node.iter).endswith("parameters"):
            yield from (part.id for part in ast.walk(node.target) if isinstance(part, ast.Name))


def set_by(node: Any, name: str, others: set[str]) -> Iterator[int]:
    """The lines of a statement or of a dictionary that set it, but for the attributes of others."""
    if isinstance(node, (ast.Assign, ast.AugAssign)):
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            key = getattr(target.slice, "value", None) if isinstance(target, ast.Subscript) else None
            attribute = isinstance(target, ast.Attribute) and getattr(target.value, "id", "") not in others
            if key == name or (attribute and target.attr == name):  # type: ignore[attr-defined]
                yield node.lineno
    elif isinstance(node, ast.Dict) and name != "lr":
        yield from (line(each) for each in node.keys if isinstance(each, ast.Constant) and each.value == name)


def cutting_line(name: str, codes: Sequence[CodeType]) -> CallSite | None:
    """The line that computes something of a variable or attribute, and ends its graph, if the files of these functions
    have only one. To pass it on, to assign or to print it computes nothing."""
    found = set()
    for code in {code.co_filename: code for code in codes}.values():
        for statement in nodes_of(code):
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


def loop_lengths() -> list[int | None]:
    """Rounds of the `for` loops that run, the innermost first; None where the text does not say."""
    found: list[int | None] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code, names = frame.f_code, {**frame.f_globals, **frame.f_locals}
        if origin(code.co_filename) == USER:
            loops = [n for n in walk(statements(code)) if isinstance(n, LOOPS)]
            running = [n for n in loops if encloses(n, frame.f_lineno)]
            found += [rounds(n.iter, names) if isinstance(n, ast.For) else None for n in reversed(running)]
        frame = frame.f_back
    return found


def name_of(node: ast.Call) -> str:
    """The last part of the name that a call calls; empty for what has none."""
    return str(getattr(node.func, "attr", getattr(node.func, "id", "")))


def words_of(node: Any) -> list[str]:
    """Names that a node reads or sets, and text, by which a function may be called."""
    values = (getattr(node, "id", None), getattr(node, "attr", None), getattr(node, "value", None))
    return [each for each in values if isinstance(each, str)]


def is_never_called(function: Any, words: set[str]) -> bool:
    """Whether the name of a function is nowhere in the text but where it is defined. words: those of the text; a name
    may be put together while the program runs, and a decorator may pass the function on."""
    kept = all(ast.unparse(each).startswith(("torch.", "staticmethod")) for each in function.decorator_list)
    return kept and function.name not in words and "getattr" not in words and not function.name.startswith("__")


def rounds(node: ast.AST, names: dict[str, Any]) -> int | None:
    """The length of `range(...)`, also inside a call that shows progress."""
    if not isinstance(node, ast.Call) or not node.args:
        return None
    if not name_of(node).endswith("range"):
        return rounds(node.args[0], names)
    given = [number_of(each, names) for each in node.args]
    return len(range(*(each for each in given if each is not None))) if None not in given else None


def number_of(node: ast.AST, names: dict[str, Any]) -> int | None:
    """A whole number, as `epochs + 1`."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub)):
        one, two = number_of(node.left, names), number_of(node.right, names)
        if one is None or two is None:
            return None
        return one + two if isinstance(node.op, ast.Add) else one - two
    value = node.value if isinstance(node, ast.Constant) else value_of(node, names)
    return value if type(value) is int else None


def user_frames() -> list[FrameType]:
    """The user's functions that are running, the innermost first."""
    frame: FrameType | None = sys._getframe(1)
    found = []
    while frame is not None:
        found += [frame] if origin(frame.f_code.co_filename) == USER else []
        frame = frame.f_back
    return found
