"""What the text of a loop says of values and networks: whether they may be used otherwise later in the training."""

from __future__ import annotations

import ast
import functools
from typing import Any

from gradlab.watch.call_site import ORIGINS, USER, CallSite
from gradlab.watch.source_lines import LOOPS, parsed, parsed_file, statements, walk

READS = {"float", "print", "str", "item", "detach"}
"""Functions that do nothing with a value but to show it."""
CHOICES = (ast.If, ast.IfExp, ast.BoolOp, ast.Return, ast.Yield, ast.Lambda, ast.Match)


@functools.cache
def may_be_used_later(site: CallSite | None) -> bool:
    """Whether what a line assigns is read under a condition, returned, or passed on: by a schedule of the loss that has
    not begun. Also where the text does not say."""
    if site is None:
        return True
    code, number = site
    nodes: list[Any] = list(walk(statements(code)))
    shown = {id(n.value) for n in nodes if isinstance(n, ast.Attribute) and n.attr in READS}
    made = [n for n in nodes if isinstance(n, (ast.Assign, ast.AnnAssign, ast.AugAssign)) and is_at(n, number)]
    targets = [t for n in made for t in (n.targets if isinstance(n, ast.Assign) else [n.target])]
    names = {each.id for t in targets for each in ast.walk(t) if isinstance(each, ast.Name)}
    keys = {key_of(each) for each in targets}
    plain = [each for t in targets if key_of(t) is None for each in ast.walk(t)]
    if not names or any(isinstance(each, (ast.Attribute, ast.Subscript)) for each in plain):
        return True
    if None not in keys:  # of entries of a dictionary: what reads another one is of no interest
        shown |= {id(n.value) for n in nodes if isinstance(n, ast.Subscript) and key_of(n) not in (None, *keys)}
    for node in nodes:
        if isinstance(node, CHOICES):
            parts: list[ast.AST] = [*node.body, *node.orelse] if isinstance(node, ast.If) else [node]
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") not in READS:
            parts = [each for each in [*node.args, *(k.value for k in node.keywords)] if isinstance(each, ast.Name)]
        else:
            continue
        if any(is_read(each, names) and id(each) not in shown for part in parts for each in ast.walk(part)):
            return True
    return False


def key_of(node: ast.AST) -> tuple[str, Any] | None:
    """Name and key of an entry of a dictionary, as `losses["kl"]`; None of anything else."""
    entry = (
        isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and isinstance(node.slice, ast.Constant)
    )
    return (node.value.id, node.slice.value) if entry else None  # type: ignore[attr-defined]


def is_at(node: ast.stmt, number: int) -> bool:
    return node.lineno <= number <= (node.end_lineno or 0)


def is_read(node: ast.AST, names: set[str]) -> bool:
    return isinstance(node, ast.Name) and node.id in names and isinstance(node.ctx, ast.Load)


HARMLESS = {"eval", "train", "to", "cuda", "requires_grad_", "watch"}
"""Methods that move no weights, and the call that passes a network to be watched."""


def may_be_moved(site: CallSite | None) -> bool:
    """Whether anything but calls is done with the networks that a line calls. Also where the text does not say."""
    if site is None:
        return True
    code, number = site
    nodes = list(ast.walk(parsed(code)))
    imported = {
        (a.asname or a.name).partition(".")[0]
        for n in nodes
        if isinstance(n, (ast.Import, ast.ImportFrom))
        for a in n.names
    }
    called = [chain(n.func) for n in nodes if isinstance(n, ast.Call) and n.lineno <= number <= (n.end_lineno or 0)]
    chains = [each for each in called if each and each[0] not in imported]
    names = {name for each in chains for name in each} - {"self"}
    if not names or names & set(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]) - {"self"}:
        return True
    files = {code.co_filename}
    if any(len(each) > 1 for each in chains):  # attributes are known to other files
        files |= {file for file, kind in ORIGINS.items() if kind == USER}
    return any(is_used_otherwise(list(ast.walk(parsed_file(file))), names) for file in files)


def chain(node: Any) -> list[str]:
    """The names of `a.b.c`; nothing of what is called on the result of anything else."""
    if isinstance(node, ast.Attribute):
        below = chain(node.value)
        return [*below, node.attr] if below else []
    return [node.id] if isinstance(node, ast.Name) else []


def is_used_otherwise(nodes: list[Any], names: set[str]) -> bool:
    """Whether there is a second assignment to one of them, or one in a loop or a method, or any other use."""
    harmless: set[int] = set()
    repeated: set[int] = set()
    for n in nodes:
        if isinstance(n, ast.Call):
            last = (chain(n.func) or [""])[-1]
            given = [*n.args, *(k.value for k in n.keywords)] if last == "watch" else []
            if last in names or last in HARMLESS:
                given.append(n.func)
            harmless |= {id(each) for part in given for each in ast.walk(part)}
        elif isinstance(n, ast.For) and all(sets_requires_grad(each) or is_rebound(each) for each in n.body):
            harmless |= {id(each) for each in ast.walk(n.iter)}
        inside = isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef)) and n.name != "__init__"
        if isinstance(n, LOOPS) or inside:
            kept = (ast.Attribute,) if inside else (ast.Attribute, ast.Name)
            repeated |= {id(each) for part in n.body for each in ast.walk(part) if isinstance(each, kept)}
    uses = [n for n in nodes if getattr(n, "id", getattr(n, "attr", None)) in names]
    stores = [n for n in uses if isinstance(n.ctx, ast.Store)]
    reads = [n for n in uses if isinstance(n.ctx, ast.Load) and id(n) not in harmless]
    return bool(reads) or len(stores) > 1 or any(id(n) in repeated for n in stores)


def sets_requires_grad(node: ast.stmt) -> bool:
    return any(getattr(each, "attr", "") in ("requires_grad", "requires_grad_") for each in ast.walk(node))


def is_rebound(node: ast.stmt) -> bool:
    """Whether a statement gives names to results of arithmetic, as `old = 0.1 * new + 0.9 * old` does: it moves none of
    their weights."""
    if not isinstance(node, ast.Assign) or not all(isinstance(each, ast.Name) for each in node.targets):
        return False
    called = [each.func for each in ast.walk(node.value) if isinstance(each, ast.Call)]
    return all((chain(each) or [""])[0] == "torch" and not chain(each)[-1].endswith("_") for each in called)


def may_unfreeze(site: CallSite | None) -> bool:
    """Whether the file of a line has a statement that may set `requires_grad` to True, at some time."""
    nodes: list[Any] = list(ast.walk(parsed(site[0]))) if site is not None else []
    for n in nodes:
        if isinstance(n, ast.Call) and getattr(n.func, "attr", "") == "requires_grad_":
            given = [*n.args, *(k.value for k in n.keywords)]
        elif isinstance(n, ast.Assign) and any(getattr(each, "attr", "") == "requires_grad" for each in n.targets):
            given = [n.value]
        else:
            continue
        if not given or not isinstance(given[0], ast.Constant) or given[0].value:
            return True
    return False
