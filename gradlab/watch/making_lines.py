"""The line at which an optimizer or a schedule is made, for what is wrong with how it is made."""

from __future__ import annotations

import ast
import functools
import inspect
from collections.abc import Iterable, Iterator
from types import CodeType, ModuleType
from typing import Any

from torch import nn, optim
from torch.optim import lr_scheduler

from gradlab.watch.call_site import USER, CallSite, call_site, format_site, origin
from gradlab.watch.events import Violation
from gradlab.watch.source_lines import (
    FUNCTIONS,
    LOOPS,
    encloses,
    line,
    name_of,
    nodes_of,
    statements,
    user_frames,
    value_of,
    walk,
)
from gradlab.watch.variable_calls import up_to_variable

DEPTH = 3
"""Functions one around the other that hand on what they were given."""
METHODS = {"backward", "step"}
"""Those whose owner is what they are about."""
WEIGHTS, SETTINGS = slice(0, 1), slice(1, None)
"""Of what an optimizer or a schedule is given: what it moves, and how."""
LENGTH = frozenset({"T_max", "total_steps", "total_iters", "epochs", "steps_per_epoch", "milestones", "lr_lambda"})
RATE, MODE = frozenset({"lr"}), frozenset({"mode"})
"""The settings of PyTorch's that are asked for, by name; what has others is asked for all of them."""
Part = slice | frozenset[str]


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


def deciding_line(thing: Any, step_site: CallSite | None, part: Part = SETTINGS) -> CallSite | None:
    """The line that says what an optimizer or a schedule is made of: in the function that makes it, or, where that is
    handed it as it is, the call of that function. part: what is asked for."""
    site = making_line(thing, step_site)
    if site is None:
        return None
    files, callers = files_of(step_site, site), [site]
    place = place_in(site, thing)
    for _ in range(DEPTH):
        inner, place = line_inside(files, callers[-1], type(thing).__name__, place), None
        if inner is None or inner in callers:
            break
        callers.append(inner)
    for _ in range(DEPTH):
        site = callers.pop()
        name = handing_function(site, part)
        calls = calls_of(files, name) if name and not callers else []
        callers += [(code, line(node)) for code, node in calls if len(calls) == 1]
        if not name or not callers:
            break
    return site


def made_at(
    name: str,
    thing: Any,
    site: CallSite | None,
    detail: str,
    *since: int,
    part: Part = SETTINGS,
    used: str = "it is stepped at",
) -> Violation:
    """What is wrong with how something is made is named there, if that is known; else where it is used."""
    made = deciding_line(thing, site, part)
    if made is None or made == site:
        return name, site, detail, *since  # type: ignore[return-value]
    place = f"{used} {format_site(site)}"
    return name, made, "; ".join(each for each in (detail, place) if each), *since  # type: ignore[return-value]


def number_at(number: float, found: Violation) -> Violation:
    """A mistake that is a number is named where it is written, if that is only once in the file of the line that is
    named already; a setting that is a number there, or is handed on, is known by its value."""
    name, site, detail, *since = found
    if site is None:
        return found
    lines = {n.lineno for n in nodes_of(site[0]) if isinstance(n, ast.Constant) and n.value == number}
    place = "" if site[1] in lines else f"; it is given at {format_site(site)}"
    return (name, (site[0], lines.pop()), detail + place, *since) if len(lines) == 1 else found  # type: ignore[return-value]


def place_in(site: CallSite, thing: Any) -> int | None:
    """Where something stands in what the call at a line returns, if that is assigned to several names."""
    names = held_by(thing, variables=True)
    for node in nodes_of(site[0]):
        if isinstance(node, ast.Assign) and node.value.lineno == site[1] and isinstance(node.targets[0], ast.Tuple):
            elements = [getattr(each, "attr", getattr(each, "id", "")) for each in node.targets[0].elts]
            return next((i for i, each in enumerate(elements) if each in names), None)
    return None


def line_inside(files: list[CodeType], site: CallSite, kind: str, place: int | None) -> CallSite | None:
    """Of a call, at a line, of a function in these files: the only call in it of a class of this name, or the only one
    whose result it returns. place: of what it returns several of."""
    calls = [n for n in nodes_of(site[0]) if isinstance(n, ast.Call) and n.lineno == site[1]]
    names = {name_of(call) for call in calls} - {kind}
    found = [(c, n) for c in files for n in nodes_of(c) if isinstance(n, FUNCTIONS) and n.name in names]
    if len(found) != 1:
        return None
    code, nodes = found[0][0], list(walk(found[0][1].body))
    kept = {target.id: value for n in nodes for target, value in assigned_in(n) if isinstance(target, ast.Name)}
    returned = [n.value for n in nodes if isinstance(n, ast.Return)]
    if place is not None:
        returned = [each.elts[place] for each in returned if isinstance(each, ast.Tuple) and place < len(each.elts)]
    ends = [n for each in returned if isinstance(n := kept.get(getattr(each, "id", ""), each), ast.Call)]
    of_kind = [n for n in nodes if isinstance(n, ast.Call) and name_of(n) == kind]
    made = (place is None and of_kind) or ends or of_kind
    return (code, line(made[0])) if len(made) == 1 else None


def files_of(*sites: CallSite | None) -> list[CodeType]:
    """One code object of each, and of the file that runs."""
    return list({site[0].co_filename: site[0] for site in (call_site(), *sites) if site is not None}.values())


def calls_of(files: list[CodeType], name: str) -> list[tuple[CodeType, ast.Call]]:
    nodes = [(code, node) for code in files for node in nodes_of(code) if isinstance(node, ast.Call)]
    return [(c, node) for c, node in nodes if name_of(node) == name]


def assignment_line(thing: Any) -> CallSite | None:
    """The line in a running function at which the variable or attribute that holds an object is assigned to a call."""
    found: list[CallSite] = []
    for frame in user_frames():
        nodes, names = list(walk(statements(frame.f_code))), {**frame.f_globals, **frame.f_locals}
        pairs = [pair for node in nodes for pair in assigned_in(node)]
        lines = [line(v) for t, v in pairs if isinstance(v, ast.Call) and value_of(t, names) is thing]
        loops = [n for n in nodes if isinstance(n, LOOPS) and encloses(n, frame.f_lineno)]
        again = [number for number in lines if any(encloses(loop, number) for loop in loops)]
        found += [(frame.f_code, number) for number in again or lines]  # what runs in each round has run last
    return found[0] if len({number for _, number in found}) == 1 else None


def assigned_in(node: ast.AST) -> list[tuple[Any, Any]]:
    """Targets of an assignment with what each is assigned to, or the call that returns it among others; keys of a
    dictionary with their values."""
    if isinstance(node, ast.Dict):
        return list(zip(node.keys, node.values, strict=True))
    if not isinstance(node, ast.Assign) or len(node.targets) != 1:
        return []
    if isinstance(node.targets[0], ast.Tuple) and isinstance(node.value, ast.Tuple):
        return list(zip(node.targets[0].elts, node.value.elts, strict=False))
    if isinstance(node.targets[0], ast.Tuple) and isinstance(node.value, ast.Call):
        return [(each, node.value) for each in node.targets[0].elts]
    return [(node.targets[0], node.value)]


def attribute_line(owner: Any, name: str) -> CallSite | None:
    """The first line in the user's class of an object that assigns an attribute of it."""
    for kind in type(owner).__mro__:
        code = getattr(vars(kind).get("__init__"), "__code__", None)
        if code is None or origin(code.co_filename) != USER:
            continue
        classes = [n for n in nodes_of(code) if isinstance(n, ast.ClassDef) and n.name == kind.__name__]
        nodes = [n for each in classes for n in ast.walk(each) if isinstance(n, (ast.Assign, ast.AnnAssign))]
        targets = [(n, t) for n in nodes for t in (n.targets if isinstance(n, ast.Assign) else [n.target])]
        found = [line(n) for n, t in targets if any(getattr(each, "attr", "") == name for each in ast.walk(t))]
        if found:
            return code, min(found)
    return None


def layer_line(models: Iterable[nn.Module], weight: Any, site: CallSite | None) -> CallSite | None:
    """The line that makes the layer of a weight which may have the batch first, as one of recurrence or attention: the
    only call of its class, or the line of the user's class that holds it."""
    names = ((model, name) for model in models for name, p in model.named_parameters() if p is weight)
    model, name = next(names, (None, ""))
    owner: Any = model
    held: tuple[Any, str] = (None, "")
    for key in name.split(".")[:-1] if model is not None else ():
        layer = owner.get_submodule(key)
        held = held if type(owner).__module__.startswith("torch.") else (owner, key)
        if "batch_first" in inspect.signature(type(layer)).parameters or isinstance(layer, nn.RNNBase):
            calls = calls_of(files_of(site), type(layer).__name__)
            return (calls[0][0], line(calls[0][1])) if len(calls) == 1 else attribute_line(*held)
        owner = layer
    return None


def held_by(thing: Any, variables: bool = False) -> set[str]:
    """Names of the attributes of objects, and keys of dictionaries, that running functions hold an object by, and of
    their variables if these are asked for."""
    found: set[str] = set()
    for frame in user_frames():
        for each in [*frame.f_locals.values(), *frame.f_globals.values()]:
            found |= set(keys_to(thing, each, 2))
        found |= {key for key, each in frame.f_locals.items() if variables and each is thing}
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
        for node in nodes_of(code):
            for target, value in assigned_in(node):
                key = getattr(target, "slice", target)
                name = getattr(target, "attr", getattr(key, "value", None))
                if isinstance(value, ast.Call) and isinstance(name, str) and name in names:
                    yield name, code, value


def returned_to(stack: tuple[CallSite, ...]) -> CallSite | None:
    """Of functions that are running, the innermost first, the line of the first one that does not return what is made
    there: it says when that is made."""
    for site in (each for each in stack if each[0].co_name != "<lambda>"):  # which returns what it makes
        nodes = list(walk(statements(site[0])))
        returned = [n.value for n in nodes if isinstance(n, ast.Return) and n.value is not None]
        names = {n.id for each in returned for n in ast.walk(each) if isinstance(n, ast.Name)}
        targets = [t for n in nodes for t, value in assigned_in(n) if line(n) <= site[1] <= (value.end_lineno or 0)]
        inside = any(each.lineno <= site[1] <= (each.end_lineno or 0) for each in returned)
        if not inside and names.isdisjoint(getattr(t, "id", "") for t in targets):
            return site
    return stack[0] if stack else None


@functools.lru_cache(maxsize=1000)
def handed_from(stack: tuple[CallSite, ...]) -> CallSite | None:
    """Of functions that are running, the innermost first, the line of the first one that was not handed what the call
    is about: the weights that are clipped, the loss that goes backward, or the optimizer that steps."""
    stack = up_to_variable(stack)
    return next((site for site in stack if not handing_function(site, WEIGHTS)), stack[0] if stack else None)


def asked_for(call: ast.Call, part: Part) -> list[Any]:
    """This part of what a call is given. A setting that PyTorch's own classes are not given is their default."""
    if isinstance(part, slice):
        owner = [call.func.value] if isinstance(call.func, ast.Attribute) and call.func.attr in METHODS else []
        return ((call.args or owner) + [each.value for each in call.keywords])[part]
    named = [each.value for each in call.keywords if each.arg in part]
    if named or any(hasattr(each, name_of(call)) for each in (lr_scheduler, optim)):
        return named or call.args[SETTINGS]
    return asked_for(call, SETTINGS)


def handing_function(site: CallSite, part: Part) -> str:
    """The name by which the function around a call is called, if this part of what the call is given are its own
    parameters, not computed in it; a lambda's, or a function's in it, are what these read. Empty otherwise."""
    nodes = nodes_of(site[0])
    around = [n for n in nodes if isinstance(n, FUNCTIONS) and n.lineno <= site[1] <= (n.end_lineno or 0)]
    calls = [n for n in nodes if isinstance(n, ast.Call) and n.lineno == site[1]]
    if not around or not calls:
        return ""
    function, call = around[-1], calls[0]
    inner = {n.name: n for n in walk(function.body) if isinstance(n, FUNCTIONS)}
    parameters = {a.arg for a in [*function.args.args, *function.args.kwonlyargs]} - {"self"}
    owner = [call.func.value] if isinstance(call.func, ast.Attribute) and call.func.attr in METHODS else []
    read = set[str]()
    for each in asked_for(call, part):
        whole = isinstance(each, ast.Call) and name_of(each) == "parameters" and not each.args
        if whole and function.name == "__init__":
            return ""  # whoever is given a network decides what is trained of it
        node: Any = each.func.value if whole else each  # type: ignore[attr-defined]
        node = node.slice if each in owner and isinstance(node, ast.Subscript) else node  # as of `optimizers[name]`
        node = inner.get(getattr(node, "id", ""), node)
        if isinstance(node, (ast.Name, ast.Lambda, *FUNCTIONS)):
            read |= {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
        elif not isinstance(node, ast.Constant):
            return ""
    stored = {n.id for n in walk(function.body) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    if not read & parameters or read & stored:
        return ""
    if function.name != "__init__":
        return str(function.name)
    classes = [n for n in nodes if isinstance(n, ast.ClassDef) and function in n.body]
    return str(classes[0].name) if classes else ""
