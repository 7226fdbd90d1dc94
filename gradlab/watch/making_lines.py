"""The line at which an optimizer or a schedule is made, for what is wrong with how it is made."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from types import CodeType, FrameType, ModuleType
from typing import Any

from torch import nn

from gradlab.watch.call_site import USER, CallSite, call_site, origin
from gradlab.watch.source_lines import LOOPS, encloses, line, name_of, parsed, statements, value_of, walk

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
DEPTH = 3
"""Functions one around the other that hand a length on."""


def making_line(thing: Any, step_site: CallSite | None) -> CallSite | None:
    """What a running function holds it by; the only call in the files of its step and of the watch that is assigned to
    an attribute or key that it is held by; or the only call of its class's name in them."""
    if (assigned := assignment_line(thing)) is not None:
        return assigned
    files = files_of(step_site)
    names = held_by(thing)
    held = {(name, node.lineno): (code, node.lineno) for name, code, node in made(files, names)}
    if len(held) == 1:
        return next(iter(held.values()))
    found = calls_of(files, type(thing).__name__)
    return (found[0][0], line(found[0][1])) if len(found) == 1 else None


def handed_line(thing: Any, step_site: CallSite | None) -> CallSite | None:
    """The same of a schedule; where the function that makes it is handed its length, and has but one call, that."""
    site, files = making_line(thing, step_site), files_of(step_site)
    for _ in range(DEPTH):
        name = handing_function(site) if site is not None else ""
        calls = calls_of(files, name) if name else []
        if len(calls) != 1:
            break
        site = calls[0][0], line(calls[0][1])
    return site


def files_of(step_site: CallSite | None) -> list[CodeType]:
    """One code object of each."""
    return list({site[0].co_filename: site[0] for site in (call_site(), step_site) if site is not None}.values())


def calls_of(files: list[CodeType], name: str) -> list[tuple[CodeType, ast.Call]]:
    nodes = [(code, node) for code in files for node in ast.walk(parsed(code)) if isinstance(node, ast.Call)]
    return [(c, node) for c, node in nodes if name_of(node) == name]


def assignment_line(thing: Any) -> CallSite | None:
    """The line in a running function at which the variable or attribute that holds an object is assigned to a call."""
    found: list[CallSite] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        nodes = list(walk(statements(code))) if origin(code.co_filename) == USER else []
        names = {**frame.f_globals, **frame.f_locals} if nodes else {}
        pairs = [pair for node in nodes for pair in assigned_in(node)]
        lines = [line(v) for t, v in pairs if isinstance(v, ast.Call) and value_of(t, names) is thing]
        loops = [n for n in nodes if isinstance(n, LOOPS) and encloses(n, frame.f_lineno)]
        again = [number for number in lines if any(encloses(loop, number) for loop in loops)]
        found += [(code, number) for number in again or lines]  # what runs in each round has run last
        frame = frame.f_back
    return found[0] if len({number for _, number in found}) == 1 else None


def assigned_in(node: ast.AST) -> list[tuple[Any, Any]]:
    """Targets of an assignment with what each is assigned to; keys of a dictionary with their values."""
    if isinstance(node, ast.Dict):
        return list(zip(node.keys, node.values, strict=True))
    if not isinstance(node, ast.Assign) or len(node.targets) != 1:
        return []
    if isinstance(node.targets[0], ast.Tuple) and isinstance(node.value, ast.Tuple):
        return list(zip(node.targets[0].elts, node.value.elts, strict=False))
    return [(node.targets[0], node.value)]


def held_by(thing: Any) -> set[str]:
    """Names of the attributes of objects, and keys of dictionaries, that running functions hold an object by."""
    found: set[str] = set()
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if origin(frame.f_code.co_filename) == USER:
            for each in [*frame.f_locals.values(), *frame.f_globals.values()]:
                found |= set(keys_to(thing, each, 2))
        frame = frame.f_back
    return found


def keys_to(thing: Any, owner: Any, depth: int) -> Iterator[str]:
    if isinstance(owner, (ModuleType, type, nn.Module)):
        return
    known = owner if isinstance(owner, dict) else getattr(owner, "__dict__", None)
    for key, value in list(known.items()) if isinstance(known, dict) else ():
        if value is thing and isinstance(key, str):
            yield key
        elif depth > 1 and isinstance(value, dict):
            yield from keys_to(thing, value, depth - 1)


def made(files: list[CodeType], names: set[str]) -> Iterator[tuple[str, CodeType, Any]]:
    """Calls that are assigned to attributes or keys of these names."""
    for code in files if names else ():
        for node in ast.walk(parsed(code)):
            for target, value in assigned_in(node):
                key = getattr(target, "slice", target)
                name = getattr(target, "attr", getattr(key, "value", None))
                if isinstance(value, ast.Call) and isinstance(name, str) and name in names:
                    yield name, code, value


def handing_function(site: CallSite) -> str:
    """The name by which the function around a call is called, if what the call is given besides its first argument are
    its own parameters, not computed in it; a lambda's, or a function's in it, are what these read. Empty otherwise."""
    nodes: list[Any] = list(ast.walk(parsed(site[0])))
    around = [n for n in nodes if isinstance(n, FUNCTIONS) and n.lineno <= site[1] <= (n.end_lineno or 0)]
    calls = [n for n in nodes if isinstance(n, ast.Call) and n.lineno == site[1]]
    if not around or not calls:
        return ""
    function, call = around[-1], calls[0]
    inner = {n.name: n for n in walk(function.body) if isinstance(n, FUNCTIONS)}
    parameters = {a.arg for a in [*function.args.args, *function.args.kwonlyargs]} - {"self"}
    given = [*call.args[1:], *(k.value for k in call.keywords)]
    read = set[str]()
    for each in given:
        part: ast.AST = inner.get(getattr(each, "id", ""), each)
        if isinstance(part, (ast.Name, ast.Lambda, *FUNCTIONS)):
            read |= {n.id for n in ast.walk(part) if isinstance(n, ast.Name)}
        elif not isinstance(part, ast.Constant):
            return ""
    stored = {n.id for n in walk(function.body) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    if not read & parameters or read & stored:
        return ""
    if function.name != "__init__":
        return str(function.name)
    classes = [n for n in nodes if isinstance(n, ast.ClassDef) and function in n.body]
    return str(classes[0].name) if classes else ""
