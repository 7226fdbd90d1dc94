"""Calls that cannot be followed: what they were handed says what they might do."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from gradlab.audit.knowledge import known_names
from gradlab.audit.trace.values import Value, members

if TYPE_CHECKING:
    from gradlab.audit.interpreter.interpreter import Interpreter

ACTING = {
    "optimizer",
    "scaler",
    "loss_scaler",
    "model",
    "ddp",
    "params",
    "accelerator",
    "fabric",
    "groups",
    "gradients",
}
"""What a call must be handed to be able to do something to gradients."""
HOLDING = ACTING - {"model", "ddp", "params", "gradients"}
ALONE = {"model", "ddp", "tensor"}
KNOWING = {"instance", "arguments", "accelerator", "fabric", "index", "dict"}
LENGTHS = re.compile(r"arg|cfg|conf|opt|param|setting|self|accum|step|micro|update|num|count|^n$", re.I)
"""Names of what may say how long a window is."""


def opaque(
    it: Interpreter, node: ast.Call, name: str, owner: Value | None, args: list[Value], keywords: dict[str, Value]
) -> Value:
    """A call that cannot be followed: what it was handed says what it might do."""
    handed = [v for a in [*args, *keywords.values()] for v in members(a)]
    receives = {v.kind for v in handed} & ACTING
    for value in handed:
        if value.kind == "stack" and "region" in value.data:
            value.data["region"].kind = "unknown"  # what it enters is not seen
    if owner is not None and owner.data.get("framework"):
        owner.data["handed"] = owner.data.get("handed") or bool(receives & HOLDING)
        if holds(it, owner) and not (receives <= ALONE and known_names.TELLING.search(owner.name)):
            receives.add("self")
    elif owner is not None and owner.kind in ACTING:
        receives.add(owner.kind)
    if any(v.kind == "instance" and any(a.kind in ACTING for a in v.attributes.values()) for v in handed):
        receives.add("self")
    if any(v.kind == "tensor" for v in handed) and receives:
        receives.add("tensor")
    name = name.split(".")[-1]
    used = node is not it.alone
    if used and known_names.COMPUTES.match(name) and (wrapped := next((v for v in handed if v.kind == "ddp"), None)):
        it.emit("passed", node, wrapped)  # what computes a loss with it calls it
    if receives and acts(name, receives, used):
        it.emit("opaque", node, owner, name=name, receives=receives, used=used)
    if len(args) == 1 and args[0].kind in ("function", "method"):
        return args[0]  # compiled, or wrapped otherwise
    data = {"made": True, "opaque": True, "blind": blind(owner, handed), "inside": tuple(it.regions)}
    data["holds"] = bool(receives)
    data["there"] = owner is None and name in ("float", "int", "str")
    data["counted"] = owner if name in ("sum", "numel") and not args and not keywords else None
    told = owner is not None and name == "get" and bool(args) and args[0].kind == "number"
    return Value("unknown", "", data, birth=owner.birth if owner is not None and told else -1)


def holds(it: Interpreter, owner: Value) -> bool:
    """Whether an object of a class that is not wholly seen may have an optimizer: it was handed one, or is the root."""
    if owner is it.selves[0] or owner.data.get("handed") or "lineage" not in owner.data or "given" in owner.data:
        return True
    return any(value.kind in HOLDING for value in owner.attributes.values())


def acts(name: str, receives: set[str], used: bool) -> bool:
    """Whether a call may do something to gradients; by its name where a model and data alone give something back."""
    if known_names.HARMLESS.match(name) or (known_names.COMPUTES.match(name) and not receives & HOLDING):
        return False
    return not receives <= ALONE or not used or bool(known_names.MOVES.search(name))


def blind(owner: Value | None, handed: list[Value]) -> bool:
    """Whether a call was told nothing of the length of a window, so that it cannot divide by it."""
    if owner is not None and owner.kind not in ("model", "ddp", "criterion"):
        return False
    return not any(v.kind in KNOWING or LENGTHS.search(v.name) or v.data.get("framework") for v in handed)
