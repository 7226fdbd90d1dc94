"""Calls that cannot be followed: what they were handed says what they might do."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from gradlab.audit import known
from gradlab.audit.values import Value, members

if TYPE_CHECKING:
    from gradlab.audit.interpreter import Interpreter

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


def opaque(
    it: Interpreter, node: ast.Call, name: str, owner: Value | None, args: list[Value], keywords: dict[str, Value]
) -> Value:
    """A call that cannot be followed: what it was handed says what it might do."""
    handed = [v for a in [*args, *keywords.values()] for v in members(a)]
    receives = {v.kind for v in handed} & ACTING
    for value in handed:
        if value.kind == "stack" and "region" in value.data:
            value.data["region"].kind = "unknown"  # what it enters is not seen
    if owner is not None and (owner.data.get("framework") or owner.kind in ACTING):
        receives.add("self" if owner.data.get("framework") else owner.kind)
    if any(v.kind == "instance" and any(a.kind in ACTING for a in v.attributes.values()) for v in handed):
        receives.add("self")
    if any(v.kind == "tensor" for v in handed) and receives:
        receives.add("tensor")
    name = name.split(".")[-1]
    if receives and not known.HARMLESS.match(name):
        it.emit("opaque", node, owner, name=name, receives=receives, used=node is not it.alone)
    if len(args) == 1 and args[0].kind in ("function", "method"):
        return args[0]  # compiled, or wrapped otherwise
    return Value("unknown", "", {"made": True, "opaque": True})
