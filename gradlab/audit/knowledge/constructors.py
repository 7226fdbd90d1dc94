"""What the constructors of installed packages make: optimizers, schedules, scalers, wrapped models, autocast."""

from __future__ import annotations

import ast
from collections.abc import Callable

from gradlab.audit.knowledge.call_site import CallSite
from gradlab.audit.knowledge.schedule_lengths import LENGTHS, measure, of_closure
from gradlab.audit.trace.conditions import TRUE, joined
from gradlab.audit.trace.iterables import every, members, several, spend
from gradlab.audit.trace.truth import truthy
from gradlab.audit.trace.values import CALLABLE, UNSET, Value

SHARDING = {"FullyShardedDataParallel", "FSDP"}
"""Wrappers that average gradients as DistributedDataParallel does."""


def construct(call: CallSite, kind: str) -> Value:
    frames = call.engine.frames
    entry = frames[-1].call if frames else UNSET
    made = Value(kind, call.name, call=call.node, maker=call.name, path=call.engine.module.path, entry=entry)
    return KINDS[kind](call, made) if kind in KINDS else made


def constant(value: Value | None, default: str, unknown: str) -> object:
    """A constant argument; `default` where there is no argument, `unknown` where it is no constant."""
    if value is None:
        return default
    return value.value if value.kind == "number" else unknown


def wrapper(call: CallSite, made: Value) -> Value:
    inner = call.args[0] if call.args else Value("model")
    if call.tail in SHARDING:
        inner.root().sharded = True
    if inner.kind in CALLABLE or inner.kind in ("model", "ddp"):
        return inner
    made.kind, made.maker = "model", inner.maker
    return made


def ddp(call: CallSite, made: Value) -> Value:
    made.of = call.args[0] if call.args else call.keywords.get("module")
    if made.of is not None:
        made.of.kind = "model" if made.of.kind == "unknown" else made.of.kind
        made.of.wrapped = True
    return made


def optimizer(call: CallSite, made: Value) -> Value:
    """Of parameters; or the optimizer that it wraps."""
    weights = [v for a in call.args[:1] or [call.keywords.get("params", Value())] for v in every(a)]
    take_weights(call, made, weights, [*weights, *(v for a in call.keywords.values() for v in every(a))])
    made.own_weight = bool(weights) and all(v.own_weight for v in weights)
    made.made_when = joined("and", call.engine.conditions)
    if made.trained:
        made.of = made.trained[0]
        return made
    return next((a for a in call.args if a.kind == "optimizer"), made)


def take_weights(call: CallSite, optimizer: Value, weights: list[Value], given: list[Value]) -> None:
    """An optimizer receives the weights among these values, and the models that any of them belongs to."""
    spend(call.engine.branches, several(weights))
    models = (v.root() for v in given if v.kind in ("params", "model", "ddp"))
    optimizer.trained = tuple(dict.fromkeys([*optimizer.trained, *models]))
    others = [v for v in weights if not v.own_weight]
    optimizer.some |= any(v.kind not in ("params", "number", "none") or v.some or v.choice for v in others)


def scheduler(call: CallSite, made: Value) -> Value:
    made.optimizer = next((a for a in call.values if a.kind == "optimizer"), None)
    words = sorted((k for k in call.node.keywords if k.arg in LENGTHS), key=lambda k: LENGTHS.index(str(k.arg)))
    found = [*call.node.args[1:3], *(k.value for k in words)]
    measure(call.engine, made, found)
    if lengths := of_closure(call):
        made.lengths, made.named_lengths = lengths, ()
        frame = call.engine.frames[-1] if call.engine.frames else None
        function = call.engine.scope.node
        given = {a.arg for a in function.args.args} if isinstance(function, ast.FunctionDef) else set()
        received = bool(given & {text.split(" <- ")[0] for text in lengths})
        if received and frame is not None and isinstance(frame.call, ast.Call):
            made.update(call=frame.call, path=frame.module.path)
    return made


def criterion(call: CallSite, made: Value) -> Value:
    made.reduction = constant(call.keywords.get("reduction"), "mean", "unknown")
    made.ignoring = "ignore_index" in call.keywords
    return made


def plugin(call: CallSite, made: Value) -> Value:
    """What tells an accelerator the length of a window."""
    names = ("gradient_accumulation_steps", "num_steps")
    made.steps = next((call.keywords[name] for name in names if name in call.keywords), None)
    return made


def accelerator(call: CallSite, made: Value) -> Value:
    plugins = [value.steps for value in call.keywords.values() if value.kind == "plugin"]
    made.steps = call.keywords.get("gradient_accumulation_steps") or next(iter(plugins), None)
    made.keywords = call.keywords
    made.fp16 = call.keyword("mixed_precision") == "fp16"
    return made


def fabric(call: CallSite, made: Value) -> Value:
    made.fp16 = call.keyword("precision") in (16, "16", "16-mixed")
    return made


def scaler(call: CallSite, made: Value) -> Value:
    if (flag := call.keywords.get("enabled")) is not None:
        made.enabled = truthy(flag, "enabled")
    return made


def autocast(call: CallSite, made: Value) -> Value:
    names = ("enabled", "dtype") if "torch.cuda" in call.name else ("device_type", "dtype", "enabled")
    given: dict[str, tuple[ast.expr | None, Value]] = dict(zip(names, zip(call.node.args, call.args)))
    given |= {name: (call.expression(name), value) for name, value in call.keywords.items()}
    if "enabled" in given:
        node, value = given["enabled"]
        made.when = call.engine.formula(node) if node is not None else truthy(value, "enabled")
    if "dtype" in given:
        node, value = given["dtype"]
        named = value.kind == "external" and value.name.startswith("torch.") and not value.choice
        made.dtype = value.name if named or node is None else ast.unparse(node)
    _, device = given.get("device_type", (None, Value("number", value="")))
    devices = [one.value if one.kind == "number" else None for _, one in device.choice or ((TRUE, device),)]
    anywhere = None in devices and "cuda" in call.engine.module.source.text  # on CUDA where there is one
    made.device = "cuda" if "torch.cuda" in call.name or anywhere or "cuda" in devices else devices[0]
    return made


def model(call: CallSite, made: Value) -> Value:
    word = next((ast.unparse(k.value) for k in call.node.keywords if k.arg in ("torch_dtype", "dtype")), "")
    if word in ("torch.float16", "torch.half"):
        made.update(half=call.node, half_path=call.engine.module.path, half_when=joined("and", call.engine.conditions))
    made.args = tuple(part for given in call.values for part in (given, *given.items))
    if call.name.endswith("Sequential") and call.args:
        made.last = "" if call.args[-1].choice else call.args[-1].last or call.args[-1].maker
    for part in (v for given in call.values for v in members(given) if v.kind in ("model", "ddp")):
        part.shared |= part.within not in (None, made)
        part.within = part.within or made
    return made


KINDS: dict[str, Callable[[CallSite, Value], Value]] = {
    "wrapper": wrapper,
    "ddp": ddp,
    "optimizer": optimizer,
    "scheduler": scheduler,
    "criterion": criterion,
    "plugin": plugin,
    "accelerator": accelerator,
    "fabric": fabric,
    "scaler": scaler,
    "autocast": autocast,
    "model": model,
}
