"""Methods of what updates weights: optimizers, schedules and loss scalers."""

from __future__ import annotations

import ast

from gradlab.audit.knowledge.call_site import CallSite
from gradlab.audit.knowledge.constructors import take_weights
from gradlab.audit.knowledge.usage import updated_attributes
from gradlab.audit.source.syntax import dotted
from gradlab.audit.trace.event_tree import If, events
from gradlab.audit.trace.iterables import every, several
from gradlab.audit.trace.provenance import provenance
from gradlab.audit.trace.tensors import tensor
from gradlab.audit.trace.values import CALLABLE, Value


def optimizer_method(call: CallSite, owner: Value) -> Value:
    name = call.name
    if name == "step":
        return optimizer_step(call, owner)
    if name == "add_param_group":
        weights = [weight for value in call.values for weight in every(value)]
        take_weights(call, owner, weights, weights)
        owner.some |= bool(call.engine.branches or call.engine.entered or not weights)  # not from the start, perhaps
    elif name in ("zero_grad", "clear_grad"):
        call.emit("zero", owner)
    elif name in ("first_step", "second_step"):  # SAM's: to where the loss is worst nearby, and the update from there
        if name == "second_step":
            call.emit("step", owner)
        if any(v.value is True for v in call.values):
            call.emit("zero", owner)
    elif name in ("clip_grad_norm", "clip_master_grads", "consolidate"):
        call.emit("opaque", owner, name=name, receives=frozenset({"framework"}))
    elif name.startswith(("pre_", "before_", "post_", "after_")):  # of a class that is not seen: it may zero gradients
        call.emit("opaque", owner, name=name, receives=frozenset({"optimizer"}))
    elif (name.startswith("step_") or name.endswith("_step") or "hessian" in name) and "sched" not in name:
        # `step_and_update_lr`, `fuse_step`; `update_hessian` consumes the gradients as a step does
        call.emit("step", owner)
    return Value()


def optimizer_step(call: CallSite, owner: Value) -> Value:
    """A step, with what its closure and its hooks do."""
    engine, node = call.engine, call.node
    before = len(engine.out)
    for closure in call.values:
        if closure.kind in CALLABLE:
            engine.apply(node, closure, [])
    inside = tuple(events(engine.out[before:]))
    scaler = next((value for value in call.values if value.kind == "scaler"), None)
    if scaler is not None:  # of several optimizers, which step through it
        call.emit("opaque", owner, name=call.name, receives=frozenset({"optimizer", "scaler"}))
    call.emit("step", owner, closure=inside, scaler=scaler)
    return tensor() if call.args else Value()


def scheduler_method(call: CallSite, owner: Value) -> Value:
    used = call.node is not call.engine.statement_call  # as the value of something else that is scheduled
    if call.name in ("step", "step_update", "batch_step") and not used:
        call.emit("schedule", owner, arguments=len(call.values))
    return Value()


def scaler_method(call: CallSite, owner: Value) -> Value:
    name, args = call.name, call.values
    if name == "scale" and args:
        return scaled(call, args[0], owner)
    first = args[0] if args else None
    named = isinstance(next(iter(call.node.args), None), (ast.Name, ast.Attribute))
    if name in ("step", "unscale_") and named and first is not None and first.given and first.kind == "unknown":
        first.kind = "optimizer"
    if name == "step":
        myself, held = call.engine.selves[-1], dotted(call.node.func).split(".")[1:-1]
        classes = myself.lineage if myself is not None else ()
        elsewhere = any(attribute in updated_attributes(one) for one in classes for attribute in held)
        call.emit("step", first, scaler=owner, elsewhere=elsewhere)
    elif name == "unscale_":
        call.emit("unscale", first, scaler=owner)
    elif name == "update":
        call.emit("update", owner)
    return Value()


def scaled(call: CallSite, loss: Value, scaler: Value) -> Value:
    loss.taken_backward()
    if loss.kind == "list":
        return several([v.derived("tensor", scaled=scaler) for v in loss.items])
    opaque = loss.opaque or loss.kind != "tensor"
    facts = provenance(call.engine, call.node, [loss])
    return loss.derived("tensor", choice=(), opaque=opaque, scaled=scaler, made_of=(loss,), **facts)


def loss_scaler(call: CallSite, owner: Value) -> Value:
    """timm's: scale, backward, and where an update is due unscale, clip, step, update."""
    keywords, engine = call.keywords, call.engine
    opt = call.args[1] if len(call.args) > 1 else keywords.get("optimizer")
    loss = call.args[0] if call.args else keywords.get("loss", Value())
    call.emit("backward", loss.derived("tensor", scaled=owner))

    def rest() -> None:
        call.emit("unscale", opt, scaler=owner)
        if keywords.get("clip_grad", keywords.get("max_norm")) is not None:
            call.emit_clip(keywords.get("parameters"))
        call.emit("step", opt, scaler=owner)
        call.emit("update", owner)

    due = call.expression("need_update") or call.expression("update_grad")
    if due is None:
        rest()
    else:
        engine.out.append(If(engine.formula(due), engine.collect(rest), []))
    return Value()
