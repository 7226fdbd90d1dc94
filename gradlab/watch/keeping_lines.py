"""The line at which a loop keeps losses with their graphs: in a list, or in a sum that is carried on."""

from __future__ import annotations

import ast
import functools
from collections import deque
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any

from torch import Tensor, nn

from gradlab.watch.call_site import CallSite
from gradlab.watch.making_lines import WEIGHTS, calls_of, handing_function
from gradlab.watch.source_lines import LOOPS, encloses, line, name_of, nodes_of, user_frames, walk

ADDS = {"append", "appendleft", "extend", "insert", "add"}


@functools.lru_cache(maxsize=100)
def keeping_line(site: CallSite | None) -> CallSite | None:
    """Of what running functions hold, the only statement that adds to it; where its function is handed what it adds,
    and has but one call, that. site: of the loss's backward pass."""
    codes = {frame.f_code.co_filename: frame.f_code for frame in user_frames()}
    names = {name for f in user_frames() for key, each in f.f_locals.items() for name in keepers(key, each)}
    found = {(code, number) for code in codes.values() for number in additions(nodes_of(code), names)}
    if len(found) != 1:
        return None
    kept = found.pop()
    calls = calls_of(list(codes.values()), name) if (name := handing_function(kept, WEIGHTS)) else []
    return (calls[0][0], line(calls[0][1])) if len(calls) == 1 else kept


def keepers(key: str, value: Any, depth: int = 2) -> Iterator[str]:
    """Names of variables, attributes and keys of graphs."""
    if isinstance(value, Tensor):
        if value.grad_fn is not None and value.numel() == 1:
            yield key
    elif isinstance(value, (list, tuple, deque)):
        if sum(isinstance(each, Tensor) and each.grad_fn is not None for each in value) > 1:
            yield key
    elif depth and not isinstance(value, (type, ModuleType, nn.Module)):
        held = value if isinstance(value, dict) else getattr(value, "__dict__", {})
        for name, each in list(held.items()) if isinstance(held, dict) else ():
            if isinstance(name, str):
                yield from keepers(name, each, depth - 1)


def additions(nodes: Sequence[Any], names: set[str]) -> Iterator[int]:
    """Lines of statements in loops or functions that add to them. A number that a loop assigns in each round is none
    that is carried on."""
    loops = [n for n in nodes if isinstance(n, LOOPS)]
    for node in nodes if names else ():
        if isinstance(node, ast.Call) and name_of(node) in ADDS and isinstance(node.func, ast.Attribute):
            if last_name(node.func.value) in names:
                yield node.lineno
        elif isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add):
            around = [each for each in loops if encloses(each, node.lineno)]
            again = around and any(last_name(t) == last_name(node.target) for t in assigned_to(around[-1].body))
            if last_name(node.target) in names and not again:
                yield node.lineno


def assigned_to(body: list[Any]) -> Iterator[ast.AST]:
    return (target for node in walk(body) if isinstance(node, ast.Assign) for target in node.targets)


def last_name(node: Any) -> str:
    """Of a variable, an attribute or a key."""
    key = getattr(getattr(node, "slice", None), "value", None)
    return str(getattr(node, "attr", getattr(node, "id", key)))
