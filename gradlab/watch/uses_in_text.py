"""What the text of a loop says of values and networks: whether they may be used otherwise later in the training."""

from __future__ import annotations

import ast
import functools
import sys
from collections.abc import Sequence
from typing import Any

import torch

from gradlab.watch.call_site import ORIGINS, USER, CallSite
from gradlab.watch.source_lines import (
    FUNCTIONS,
    LOOPS,
    is_never_called,
    name_of,
    nodes_in,
    nodes_of,
    statements,
    user_frames,
    walk,
    words_of,
)

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
COPIES = {"clone", "deepcopy"}
"""Functions whose results are other weights."""


def may_be_moved(site: CallSite | None) -> bool:
    """Whether anything but calls is done with the networks that a line calls, once the loop runs. Also where the text
    does not say."""
    if site is None:
        return True
    code, number = site
    nodes = nodes_of(code)
    imported = {
        (a.asname or a.name).partition(".")[0]
        for n in nodes
        if isinstance(n, (ast.Import, ast.ImportFrom))
        for a in n.names
    }
    called = [chain(n.func) for n in nodes if isinstance(n, ast.Call) and n.lineno <= number <= (n.end_lineno or 0)]
    chains = [each for each in called if each and each[0] not in imported and not is_of_tensor(each)]
    names = {name for each in chains for name in each} - {"self"}
    if not names or names & set(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]) - {"self"}:
        return True
    texts = {file: nodes_in(file) for file, kind in ORIGINS.items() if kind == USER}
    texts |= {code.co_filename: nodes}
    attributes = any(len(each) > 1 for each in chains)  # which are known to other files
    files = list(texts) if attributes else [code.co_filename]
    words = {word for each in texts.values() for node in each for word in words_of(node)}
    running = {(frame.f_code.co_filename, frame.f_code.co_name): frame.f_lineno for frame in user_frames()}
    done = {file: {name: at for (f, name), at in running.items() if f == file} for file in files}
    return any(is_used_otherwise(texts[file], names, words, done[file]) for file in files)


def is_of_tensor(names: list[str]) -> bool:
    """Whether a call of `a.b` is one of a tensor's methods, and not of a network."""
    return len(names) > 1 and hasattr(torch.Tensor, names[-1])


def chain(node: Any) -> list[str]:
    """The names of `a.b.c`; nothing of what is called on the result of anything else."""
    if isinstance(node, ast.Attribute):
        below = chain(node.value)
        return [*below, node.attr] if below else []
    return [node.id] if isinstance(node, ast.Name) else []


def is_used_otherwise(nodes: Sequence[Any], names: set[str], words: set[str], done: dict[str, int]) -> bool:
    """Whether there is a second assignment to one of them, or one in a loop or a method, or any other use.

    To load other weights once, before the loop, is none, nor is what a function does whose name is not among the words
    of the text. done: names of the functions that are running, and the lines that they are at.
    """
    harmless: set[int] = set()
    repeated: set[int] = set()
    functions = [n for n in nodes if isinstance(n, FUNCTIONS)]
    moving = {n.name for n in functions if not all(map(moves_nothing, n.body)) or all(map(is_text, n.body))}
    still = {"watch", *COPIES} | {n.name for n in functions} - moving
    for n in nodes:
        if isinstance(n, ast.Call):
            last = (chain(n.func) or [""])[-1]
            given = [*n.args, *(k.value for k in n.keywords)] if last in still or name_of(n) in COPIES else []
            if last in names or last in HARMLESS:
                given.append(n.func)
            harmless |= {id(each) for part in given for each in ast.walk(part)}
        elif isinstance(n, ast.For) and moves_nothing(n):
            harmless |= {id(each) for each in ast.walk(n.iter)}
        inside = isinstance(n, FUNCTIONS) and n.name != "__init__"
        if isinstance(n, FUNCTIONS) and is_never_called(n, words):
            harmless |= {id(each) for part in n.body for each in ast.walk(part)}
        if isinstance(n, LOOPS) or inside:
            kept = (ast.Attribute,) if inside else (ast.Attribute, ast.Name)
            repeated |= {id(each) for part in n.body for each in ast.walk(part) if isinstance(each, kept)}
        if isinstance(n, ast.Module) or (isinstance(n, FUNCTIONS) and (not inside or n.name in done)):
            until = done.get(getattr(n, "name", ""), 0) if inside else sys.maxsize
            once = [each for each in n.body if each.lineno < until and is_loaded(each, names)]
            harmless |= {id(each) for part in once for each in ast.walk(part)}
    uses = [n for n in nodes if getattr(n, "id", getattr(n, "attr", None)) in names]
    stores = [n for n in uses if isinstance(n.ctx, ast.Store)]
    reads = [n for n in uses if isinstance(n.ctx, ast.Load) and id(n) not in harmless]
    return bool(reads) or len(stores) > 1 or any(id(n) in repeated for n in stores)


def is_loaded(node: ast.stmt, names: set[str]) -> bool:
    """Whether a statement gives one of them other weights, by its method `load_state_dict`."""
    call = node.value if isinstance(node, ast.Expr) else None
    if not isinstance(call, ast.Call) or name_of(call) != "load_state_dict":
        return False
    return bool(names & set(chain(call.func)[:-1]))


def sets_requires_grad(node: ast.stmt) -> bool:
    return any(getattr(each, "attr", "") in ("requires_grad", "requires_grad_") for each in ast.walk(node))


def moves_nothing(node: ast.stmt) -> bool:
    """Whether a statement moves no weight of the networks that it names, nor do those in it."""
    if isinstance(node, (ast.For, ast.With)):
        return all(map(moves_nothing, node.body))
    return is_text(node) or sets_requires_grad(node) or is_rebound(node)


def is_text(node: ast.stmt) -> bool:
    """A docstring, or `...`."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def is_rebound(node: ast.stmt) -> bool:
    """Whether a statement gives names to results of arithmetic, as `old = 0.1 * new + 0.9 * old` does: it moves none of
    their weights."""
    if not isinstance(node, ast.Assign) or not all(isinstance(each, ast.Name) for each in node.targets):
        return False
    calls = [each for each in ast.walk(node.value) if isinstance(each, ast.Call)]
    return all(is_arithmetic(each) for each in calls)


def rebinding_line(site: CallSite | None) -> CallSite | None:
    """The line that binds the name of a weight of a network that a line calls to something else, in a loop over its
    `parameters()` or in a function that is given the network; None if there are several."""
    if site is None:
        return None
    code, number = site
    nodes = nodes_of(code)
    calls = [n for n in nodes if isinstance(n, ast.Call)]
    names = {n for c in calls if c.lineno <= number <= (c.end_lineno or 0) for n in chain(c.func)[-1:]}
    given_to = {name_of(c) for c in calls if any(set(chain(a)[-1:]) & names for a in c.args)}
    within = {n for f in nodes if isinstance(f, FUNCTIONS) and f.name in given_to for n in ast.walk(f)}
    found = set()
    for n in [*nodes, *within]:
        if isinstance(n, ast.For):
            held = {name for each in ast.walk(n.iter) for name in chain(each) if "parameters" in chain(each)[-1:]}
            weights = {each.id for each in ast.walk(n.target) if isinstance(each, ast.Name)}
            if held and (held & names or n in within):
                found |= {each.lineno for each in n.body if is_rebound(each) and weights & names_bound(each)}
    return (code, found.pop()) if len(found) == 1 else None


def names_bound(node: ast.stmt) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}


def is_arithmetic(call: ast.Call) -> bool:
    """Whether a function of PyTorch's, or a method, returns another tensor, or changes a copy in place."""
    if name_of(call).endswith("_"):
        below = [each for each in ast.walk(call.func) if isinstance(each, ast.Call)]
        return any(name_of(each) in COPIES for each in below)
    return isinstance(call.func, ast.Attribute) and hasattr(torch.Tensor, name_of(call))


def may_unfreeze(site: CallSite | None) -> bool:
    """Whether the file of a line has a statement that may set `requires_grad` to True, at some time."""
    nodes = nodes_of(site[0]) if site is not None else ()
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
