"""Calls of installed packages: clips, losses, and what goes through functions unchanged."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gradlab.audit.interpreter.binding import element
from gradlab.audit.interpreter.canonical_text import canonical
from gradlab.audit.knowledge import known_names
from gradlab.audit.knowledge.constructors import construct
from gradlab.audit.knowledge.losses import loss
from gradlab.audit.knowledge.opaque_calls import opaque
from gradlab.audit.knowledge.python_functions import language
from gradlab.audit.knowledge.torch_functions import of_torch
from gradlab.audit.trace.values import CALLED, Value, several

if TYPE_CHECKING:
    from gradlab.audit.interpreter.interpreter import Interpreter


@dataclass
class Called:
    """A call of an installed name."""

    it: Interpreter
    node: ast.Call
    name: str
    args: list[Value]
    keywords: dict[str, Value]

    @property
    def tail(self) -> str:
        return self.name.split(".")[-1]


def external(it: Interpreter, node: ast.Call, name: str, args: list[Value], keywords: dict[str, Value]) -> Value:
    if (value := language(it, node, name, args, keywords)) is not None:
        return value
    call = Called(it, node, name, args, keywords)
    if name.endswith("amp.initialize") and args:
        return several(args) if args[1:] else args[0]
    if call.tail in known_names.CLIPS:
        return clip(call)
    if call.tail in TAILS and (value := TAILS[call.tail](call)) is not None:
        return value
    if kind := known_names.made(name):
        return construct(it, node, kind, name, args, keywords)
    if known_names.LOSS_FUNCTION.match(call.tail) and args:
        return loss_function(call)
    if name.startswith("torch.") or call.tail in ("sum", "max", "min", "abs"):
        return of_torch(it, node, name, args, keywords)
    made = opaque(it, node, name, None, args, keywords)
    if "." in name and not name.startswith("torch.") and made.kind == "unknown":
        made.data["foreign"] = True
    return made


def clip(call: Called) -> Value:
    params = call.args[0] if call.args else call.keywords.get("parameters")
    call.it.emit("clip", call.node, params, call=call.node, by_value="value" in call.tail)
    return Value("measured", "grad_norm")


def scale_loss(call: Called) -> Value | None:
    if not call.args:
        return None
    made = Value("tensor", "", {**call.args[0].data, "scaled_by": "apex"})
    return Value("context", data={"word": "scale_loss", "as": made})


def master_params(call: Called) -> Value:
    return Value("params", data={"of": call.args[0].data.get("of") if call.args else None, "master": True})


def all_reduce(call: Called) -> Value:
    if any(v.kind in ("gradient", "gradients") for v in call.args):
        call.it.emit("reduce", call.node, call.args[0])
    return Value()


def clamp(call: Called) -> Value | None:
    if not call.args or call.args[0].kind != "gradient":
        return None
    call.it.emit("clip", call.node, call.args[0], by_value=True, call=call.node)
    return Value()


def zeros(call: Called) -> Value:
    call.it.emit("zero", call.node, call.args[0] if call.args else None, by_hand=True)
    return Value()


def look(call: Called) -> Value:
    call.it.emit("look", call.node)
    return Value("measured")


def counted(call: Called) -> Value:
    one = len(call.node.args) == 1
    return Value("counted", data={"stop": canonical(call.it, call.node.args[0]) if one else ""})


def enumerated(call: Called) -> Value | None:
    if not call.args:
        return None
    start = call.keywords.get("start", call.args[1] if len(call.args) > 1 else None)
    first = start.data.get("value") if start is not None and start.kind == "number" else 0
    return Value("enumerated", data={"inner": call.args[0], "start": first if isinstance(first, int) else 0})


def mapped(call: Called) -> Value | None:
    if call.name != "map" or len(call.args) != 2 or call.args[0].kind not in CALLED:
        return same(call)
    over = call.args[1]
    items = over.data["items"] if over.kind == "list" else [element(call.it, call.node.args[1], over)]
    return several([call.it.apply(call.node, call.args[0], [item]) for item in items[:4]])


def copied(call: Called) -> Value:
    """A model's copy is another model: what wraps the one does not wrap the other."""
    if not call.args or call.args[0].kind not in ("model", "ddp"):
        return same(call)
    old = call.args[0]
    made = Value(old.kind, old.name, {k: v for k, v in old.data.items() if k != "wrapped"} | {"call": call.node})
    made.attributes = old.attributes
    return made


def same(call: Called) -> Value:
    """What was handed over, in another order or wrapping."""
    telling = (a for a in call.args if a.kind in ("params", "list", "enumerated"))
    return next(telling, call.args[-1] if call.args else Value())


def loss_function(call: Called) -> Value:
    reduction = call.keywords.get("reduction")
    data = {
        "reduction": reduction.data.get("value", "mean") if reduction else "mean",
        "ignoring": "ignore_index" in call.keywords,
        "type": call.name,
    }
    return loss(call.it, data, call.args)


SAME = (
    *("list", "tuple", "iter", "sorted", "reversed", "set", "filter", "chain", "copy"),
    *("tqdm", "tqdm_notebook", "track"),
)
TAILS: dict[str, Callable[[Called], Value | None]] = {
    "deepcopy": copied,
    "cast": lambda call: call.args[-1] if call.name.startswith("typing") and call.args else None,
    "scale_loss": scale_loss,
    "master_params": master_params,
    "all_reduce": all_reduce,
    "all_reduce_coalesced": all_reduce,
    "clamp_": clamp,
    "clip_": clamp,
    "enumerate": enumerated,
    "zip": lambda call: Value("zipped", data={"items": call.args}),
    "super": lambda call: Value("super", data={"self": call.it.selves[-1]}),
    "map": mapped,
    "signature": lambda call: Value(data={"given": True}, birth=max((a.birth for a in call.args), default=0)),
    **dict.fromkeys(("range", "trange", "count"), counted),
    **dict.fromkeys(SAME, same),
    **dict.fromkeys(("foreach_zero_", "_foreach_zero_"), zeros),
    **dict.fromkeys(("get_total_norm", "global_norm", "check_gradients", "diagnose_gradients"), look),
}
"""What the calls of some names do; None where that is not known from the name alone."""
