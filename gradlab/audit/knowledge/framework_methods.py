"""Methods of Lightning's modules, of Accelerate's accelerator, of Fabric and of DeepSpeed's engine."""

from __future__ import annotations

from gradlab.audit.knowledge.call_site import CallSite
from gradlab.audit.trace.conditions import TRUE, sync_atom
from gradlab.audit.trace.event_tree import If
from gradlab.audit.trace.iterables import OTHERS, several
from gradlab.audit.trace.values import Value

LIGHTNING = ("optimizers", "lr_schedulers", "manual_backward", "clip_gradients")
FRAMEWORK = frozenset({"framework"})


def lightning_method(call: CallSite, owner: Value) -> Value | None:
    if call.name == "optimizers":
        return owner.attributes.get("configured") or Value("optimizer", "optimizers", given=True)
    if call.name == "lr_schedulers":
        return owner.attributes.get("scheduled") or Value("scheduler", "lr_schedulers", given=True)
    if call.name == "manual_backward":
        call.emit("backward", call.first, through=owner)
    elif call.name == "clip_gradients":
        by_value = call.keyword("gradient_clip_algorithm") == "value"
        value = call.first or call.keywords.get("optimizer")
        call.emit_clip(value, by_value, through=owner)
    else:
        return None
    return Value()


def single(accelerator: Value) -> bool:
    """An accelerator made here without a word of a window: each batch is an update."""
    call = accelerator.call
    if call is None or call.args or "gradient_accumulation_steps" in accelerator.attributes:
        return False
    return not any(name == OTHERS or "accumulation" in name or "plugin" in name for name in accelerator.keywords)


def prepared(owner: Value, values: list[Value]) -> None:
    for value in values:
        value.prepared = owner


def accelerator_method(call: CallSite, owner: Value) -> Value:
    name, args = call.name, call.args
    if name in ("clip_grad_norm_", "clip_grad_value_"):
        call.emit_clip(call.first, "value" in name, through=owner)
    elif name == "unscale_gradients":
        call.emit("unscale", call.first, scaler=owner)
    elif name == "prepare":
        prepared(owner, args)
        return args[0] if len(args) == 1 else several(args)
    elif name == "accumulate" and single(owner):
        return Value("null")
    elif name in ("accumulate", "no_sync"):
        return Value("context", word=name, model=call.first, of=owner)
    elif name == "autocast":
        return Value("autocast", "autocast", through=owner)
    elif name == "unwrap_model":
        inner = call.first
        return Value("model", of=inner, raw=inner if inner is not None and inner.prepared else None)
    elif name.startswith("prepare"):
        prepared(owner, args[:1])
        return call.first or Value()
    return Value(made=True)


def fabric_method(call: CallSite, owner: Value) -> Value:
    name, args = call.name, call.args
    if name == "clip_gradients":
        call.emit_clip(call.first, "clip_val" in call.keywords, through=owner)
    elif name in ("setup", "setup_module", "setup_optimizers", "setup_dataloaders"):
        if name == "setup_optimizers":
            args = [a if a.kind == "optimizer" else Value("optimizer", a.name, given=True) for a in args]
        prepared(owner, args)
        return args[0] if len(args) == 1 else several(args)
    elif name == "no_backward_sync":
        flag = call.expression("enabled") or (call.node.args[1] if len(call.node.args) > 1 else None)
        when = call.engine.formula(flag) if flag is not None else TRUE
        return Value("context", word="no_sync", model=call.first, when=when)
    elif name == "autocast":
        return Value("autocast", "autocast", through=owner)
    return Value(made=True)


def engine_step(call: CallSite, engine: Value) -> None:
    call.emit("step", engine)
    call.emit("zero", engine)
    if (schedule := engine.attributes.get("lr_scheduler")) is not None and schedule.kind == "scheduler":
        call.emit("schedule", schedule)


def deepspeed_method(call: CallSite, owner: Value) -> Value:
    """The engine scales, divides, clips, zeroes and counts windows by itself, according to its configuration."""
    call.emit("opaque", owner, name=call.name, receives=FRAMEWORK)
    if call.name == "backward":
        call.emit("backward", call.first, through=owner)
    elif call.name == "step":
        happened = call.engine.collect(lambda: engine_step(call, owner))
        windows = owner.steps is not None and owner.steps.value != 1
        call.engine.out += [If(("atom", sync_atom(owner.number)), happened, [])] if windows else happened
    return Value(made=True, opaque=True)
