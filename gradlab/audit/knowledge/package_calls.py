"""Calls of installed packages: clips, losses, reductions, and what makes an object."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable

from gradlab.audit.knowledge.call_site import CallSite
from gradlab.audit.knowledge.constructors import constant, construct
from gradlab.audit.knowledge.known_names import CALLED_LOSS, CLIPS, FACTORY, LOSS_FUNCTION, kind_made
from gradlab.audit.knowledge.losses import forward, loss
from gradlab.audit.knowledge.opaque_calls import DATA, opaque_call, pass_networks
from gradlab.audit.knowledge.python_functions import python_function
from gradlab.audit.knowledge.torch_functions import torch_function
from gradlab.audit.source.syntax import dotted
from gradlab.audit.trace.conditions import SEVERAL, TRUE
from gradlab.audit.trace.iterables import OTHERS, every, several
from gradlab.audit.trace.values import Value

INFINITE = re.compile(r"float\(['\"]inf(inity)?['\"]\)$|(math|np|numpy|torch)\.inf$")
"""A bound that clips nothing: the norm is looked at."""


def library_call(call: CallSite) -> Value:
    if (value := python_function(call)) is not None:
        return value
    tail = call.tail
    if tail == "initialize" and "deepspeed" in call.name:
        return deepspeed(call)
    if call.name.endswith("amp.initialize") and call.args:
        return initialized(call)
    if tail in CLIPS:
        return clip(call)
    if tail in TAILS and (value := TAILS[tail](call)) is not None:
        return value
    if kind := kind_made(call.name):
        return construct(call, kind)
    named = (
        CALLED_LOSS.search(dotted(call.node.func)) is not None
        and call.first is not None
        and call.first.kind == "tensor"
    )
    makes = FACTORY.match(tail) is not None and all(v.kind not in DATA for v in call.values)  # the function itself
    called = bool(call.args) or (bool(call.compared) and call.name.startswith("torch."))
    if (LOSS_FUNCTION.match(tail) or named) and called and not makes:
        pass_networks(call)
        reduction = constant(call.keywords.get("reduction"), "mean", "unknown")
        return loss(call.engine, call.node, call.compared, reduction, "ignore_index" in call.keywords, call.name)
    if call.name.startswith("torch.") or tail in ("sum", "max", "min", "abs"):
        return torch_function(call)
    made = opaque_call(call, None)
    if "." in call.name and made.kind == "unknown":
        made.foreign = True
    return made


def deepspeed(call: CallSite) -> Value:
    """The engine, which steps the schedule that it is given, and what it makes of the rest."""
    engine = Value("engine", call.name, of=call.keywords.get("model", call.args[1] if len(call.args) > 1 else None))
    schedule = call.keywords.get("lr_scheduler", Value())
    if schedule.kind in ("function", "method", "lambda"):  # makes one of the optimizer
        schedule = Value("scheduler", given=True)
    engine.attributes["lr_scheduler"] = schedule
    config = call.keywords.get("config", call.keywords.get("config_params"))
    engine.steps = config.attributes.get("['gradient_accumulation_steps']") if config is not None else None
    return several([engine, Value(), Value(), schedule])


def initialized(call: CallSite) -> Value:
    """Apex: from now on the optimizers expect the gradients of scaled losses."""
    apex = call.name.split(".")[-2] == "amp"  # and not msamp
    scales = apex and call.keyword("opt_level") != "O0" and not {"loss_scale", "enabled", OTHERS} & call.keywords.keys()
    for optimizer in (v for given in call.values for v in every(given) if v.kind == "optimizer"):
        optimizer.apex = scales
    return several(call.args) if call.args[1:] else call.args[0]


def clip(call: CallSite) -> Value:
    params = call.args[0] if call.args else call.keywords.get("parameters")
    written = next((k.value for k in call.node.keywords if k.arg == "max_norm"), next(iter(call.node.args[1:2]), None))
    if written is not None and INFINITE.match(ast.unparse(written)):
        call.emit("look", params)
        return Value("measured", "grad_norm")
    call.emit_clip(params, "value" in call.tail)
    return Value("measured", "grad_norm")


def scale_loss(call: CallSite) -> Value | None:
    """Apex."""
    if not call.args:
        return None
    return Value(
        "context", word="scale_loss", entered=call.args[0].derived("tensor", apex=True, made_of=(call.args[0],))
    )


def master_params(call: CallSite) -> Value:
    return Value("params", of=call.args[0].of if call.args else None)


def all_reduce(call: CallSite) -> Value:
    if any(v.kind in ("gradient", "gradients") for v in call.args):
        call.emit("reduce", call.args[0])
    elif (first := call.first) is not None and first.counted is not None:
        first.counted = None  # the number of items of all ranks from now on
    elif first is not None and first.kind == "tensor" and first.roots and not call.engine.without_gradient:
        call.emit("average", first)
    return Value()


def look(call: CallSite) -> Value:
    call.emit("look")
    return Value("measured")


def data_parallel(call: CallSite) -> Value | None:
    """A forward pass over several devices."""
    model = call.first
    if model is None or model.kind not in ("model", "ddp", "unknown"):
        return None
    return forward(call.engine, call.node, model, call.args[1:], call.keywords.values())


def processes(call: CallSite) -> Value | None:
    """How many processes there are, or whether there is a group of them."""
    if "distributed" not in call.name:
        return None
    if call.tail == "get_world_size":
        return Value(made=True, of_processes=True)
    return Value("bool", formula=TRUE if call.tail == "is_available" else SEVERAL)


TAILS: dict[str, Callable[[CallSite], Value | None]] = {
    **dict.fromkeys(("get_world_size", "is_initialized", "is_available"), processes),
    "data_parallel": data_parallel,
    "scale_loss": scale_loss,
    "master_params": master_params,
    **dict.fromkeys(("all_reduce", "all_reduce_coalesced"), all_reduce),
    **dict.fromkeys(("get_total_norm", "global_norm", "check_gradients", "diagnose_gradients"), look),
}
"""What a call does by the last part of its name; None where the name alone does not decide."""
