"""Methods that act on gradients, by the kind of the value that they are called on."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable

from gradlab.audit.knowledge.call_site import CallSite
from gradlab.audit.knowledge.framework_methods import (
    FRAMEWORK,
    LIGHTNING,
    accelerator_method,
    deepspeed_method,
    fabric_method,
    lightning_method,
)
from gradlab.audit.knowledge.freezing import freeze, renew
from gradlab.audit.knowledge.known_names import AVERAGES, HARMLESS
from gradlab.audit.knowledge.losses import forward
from gradlab.audit.knowledge.manual_updates import descending, manual_step, weight_name, weights
from gradlab.audit.knowledge.opaque_calls import ACTING, blind
from gradlab.audit.knowledge.optimizer_methods import optimizer_method, scaler_method, scheduler_method
from gradlab.audit.knowledge.python_functions import dict_method, enter_context
from gradlab.audit.knowledge.retained_tensors import retain
from gradlab.audit.knowledge.tensor_methods import detached_method, gradient_method, parameter_method, tensor_method
from gradlab.audit.knowledge.usage import takes_loss, usage
from gradlab.audit.knowledge.value_ranges import UNKNOWN
from gradlab.audit.source.syntax import dotted
from gradlab.audit.trace.conditions import FALSE, joined
from gradlab.audit.trace.event_tree import either_of
from gradlab.audit.trace.iterables import members
from gradlab.audit.trace.provenance import is_traced
from gradlab.audit.trace.tensors import roots_of, tensor
from gradlab.audit.trace.values import Value, births

PARAMETERS = {"parameters", "named_parameters", "trainable_parameters"}
STEPS = ("step", "zero_grad", "first_step", "second_step")
CHANGING = (
    "add_module",
    "register_module",
    "register_parameter",
    "append",
    "insert",
    "extend",
    "register_forward_hook",
)
"""Methods of a model that add parts to it, or change what it returns."""
SAME_MODEL = {
    *(
        "train",
        "eval",
        "to",
        "type",
        "cuda",
        "cpu",
        "float",
        "half",
        "bfloat16",
        "double",
        "compile",
        "requires_grad_",
        "apply",
    )
}
"""Methods of a model that return the model."""


def known_method(call: CallSite, owner: Value) -> Value | None:
    """The result of a method of a value of known kind; None where the method itself must be looked up."""
    kind, name = owner.kind, call.name
    if name == "backward" and kind == "external" and owner.name == "torch.autograd":
        return None
    own = kind in ("optimizer", "scheduler") and name in STEPS  # followed, it would be arithmetic
    own = own or (kind in ("model", "ddp") and name == "forward" and owner is not call.engine.selves[-1])  # as called
    if (method := owner.method(name)) is not None and not own:
        if name == "train" and "mode" in [a.arg for a in method[0].args.args]:
            set_mode(call, owner)  # before what it keeps in eval()
        return None
    if name in ("sub_", "add_") and kind in ("tensor", "unknown", "detached") and is_manual_step(call):
        assert isinstance(call.node.func, ast.Attribute)
        param = call.engine.value(weights(call.node.func.value))
        manual_step(call.engine, call.node, param, call.expressions, name == "sub_")
        return owner
    if kind in ("unknown", "model") and name == "step" and not call.values and is_engine(call):
        owner.kind = kind = "engine"
    if kind == "unknown" and name in PARAMETERS and not owner.choice and (owner.made or owner.given):
        owner.kind = kind = "model"
    if kind == "engine" and name in ("backward", "step"):
        return deepspeed_method(call, owner)
    if kind == "stack" and name == "enter_context":
        return enter_context(call, owner)
    if kind == "dict":
        return dict_method(call, owner)
    if kind == "unknown" and name in SAME_MODEL and (owner.given or owner.made):
        cast(call, owner)
        set_mode(call, owner)
        return owner
    if kind == "unknown" and name == "zero_grad":
        call.emit("zero", None, owner=owner)
        return Value()
    if name == "backward":
        return backward(call, owner)
    if kind != "optimizer" and (kind == "optimizers" or (owner.lineage and name in LIGHTNING)):
        return lightning_method(call, owner)
    if kind in KINDS:
        return KINDS[kind](call, owner)
    return append(call, owner) if name in ("append", "extend", "insert", "appendleft") and call.args else None


def is_engine(call: CallSite) -> bool:
    """Whether what is stepped is called as a network too, and named an engine or in a file that names DeepSpeed."""
    func, engine = call.node.func, call.engine
    name = dotted(func.value) if isinstance(func, ast.Attribute) else ""
    called = bool(name) and name in usage(engine.scope.node).called
    return called and ("engine" in name.lower() or "deepspeed" in engine.module.source.text.lower())


def is_manual_step(call: CallSite) -> bool:
    """Whether what a method is called on moves against its own gradient."""
    func = call.node.func
    return isinstance(func, ast.Attribute) and weight_name(func.value) in descending(call.engine.scope.node)


def append(call: CallSite, owner: Value) -> Value:
    """append(), extend() or what puts one item in."""
    value = call.args[-1]
    if value.kind == "gradient":
        call.emit("taken", value)
    if owner.kind in ("list", "unknown") and isinstance(call.node.func, ast.Attribute):
        mark = retain(call.engine, call.node, call.node.func.value, owner, value)
        if mark is not None:
            owner.marks = owner.marks | {mark} | (roots_of(members(value)) & call.engine.tokens)
    one = call.name != "extend"
    if one and (owner.kind == "list" or (owner.kind == "unknown" and any(v.kind == "tensor" for v in members(value)))):
        owner.appended = with_another(owner.appended, value)
    if owner.kind == "list" and one and value.kind in ACTING:
        owner.items = [*owner.items, value]
    return Value()


def with_another(first: Value | None, value: Value) -> Value:
    """What stands for the items of a list of which another is appended: the first tensor, or data if there is none."""
    tensors = [any(v.kind == "tensor" for v in members(one or Value())) for one in (first, value)]
    value = value if tensors[1] or is_traced(value) else Value()
    if first is None:
        return value
    kept = value if tensors[1] and not tensors[0] else first
    known = is_traced(first) and is_traced(value)
    return kept if known or not kept.traced else kept.derived(kept.kind, kept.name)


def cast(call: CallSite, owner: Value) -> None:
    """Remember whether a model is in fp16 from now on."""
    name, text = call.name, ", ".join(ast.unparse(argument) for argument in call.expressions)
    names = [v.name for v in (*call.args, *call.keywords.values()) if v.kind == "external" and "torch." in v.name]
    text = ", ".join([text, *names])
    given = text if name in ("to", "type") else ""
    models = (owner, owner.root(), *(model.root() for _, model in owner.choice))
    if name == "half" or (re.search(r"float16|\bhalf\b", given) and "bfloat16" not in given):
        when = joined("and", call.engine.conditions)
        for model in models:
            model.update(half=call.node, half_path=call.engine.module.path, half_when=when)
    elif name in ("float", "double", "bfloat16") or "float" in given:
        for model in models:
            model.update(half=model.half if call.engine.branches else None, half_when=FALSE)


FLAGS = ("number", "bool")
"""Kinds of what train() receives: what it trains on is not for a network."""


def set_mode(call: CallSite, owner: Value) -> None:
    if call.name == "eval" or (call.name == "train" and call.first is not None and call.first.value is False):
        call.emit("mode", owner, name="eval")
    elif call.name == "train" and (owner.kind != "unknown" or all(v.kind in FLAGS for v in call.values)):
        call.emit("mode", owner, name="train")


def backward(call: CallSite, owner: Value) -> Value:
    if owner.kind in ("accelerator", "fabric"):
        if call.first is not None:
            call.first.taken_backward()
        emit_backward(call, call.first, through=owner)
    elif owner.kind not in ("tensor", "detached") and takes_loss(call.node):
        foreign_backward(call, owner)
    elif owner.choice:
        emit_backward(call, owner)
    elif owner.leaf is not None:
        call.emit("backward", Value("detached", cut=owner.leaf, cut_path=owner.cut_path))
    else:
        if owner.kind == "unknown" and not call.args and not owner.framework:
            owner.become_tensor()
        given = call.keywords.get("gradient") or call.first  # scaled in place of the loss
        scaled = given.scaled if given is not None else None
        call.emit("backward", owner.derived("tensor", scaled=scaled) if scaled is not None else owner)
    return Value()


def emit_backward(call: CallSite, loss: Value | None, through: Value | None = None) -> None:
    """A backward pass of a loss, or of the one of several that it is."""
    alternatives = loss.choice if loss is not None else ()
    if loss is None or not alternatives:
        call.emit("backward", loss, through=through)
        return
    happened = [
        call.engine.collect(
            lambda one=one: call.emit("backward", one, through=through, perhaps=loss.perhaps_divided)  # type: ignore[misc]
        )
        for _, one in alternatives
    ]
    call.engine.out += either_of([when for when, _ in alternatives], happened)


def foreign_backward(call: CallSite, owner: Value) -> None:
    """Of an engine that is not known: given the optimizer too it only scales; else it may do everything by itself."""
    loss = call.keywords.get("loss") or call.first
    if loss is not None and any(v.kind == "optimizer" for v in call.values):
        loss.taken_backward()
        call.emit("backward", loss, through=owner)
    else:
        call.emit("opaque", owner, name="backward", receives=FRAMEWORK)


def no_sync(call: CallSite, owner: Value | None) -> Value:
    """DDP's takes no argument, Accelerate's the models; one that takes something else is the project's own."""
    plain = all(v.kind in ("model", "ddp") for a in call.values for v in members(a))
    return Value("context", word="no_sync" if plain else "unknown", model=owner)


def module_method(call: CallSite, owner: Value) -> Value | None:
    """A method of a network, of a loss module or of an object of the project's."""
    name, engine = call.name, call.engine
    if name == "module" or (name == "loss" and name in owner.attributes):
        return None
    if name == "zero_grad":
        call.emit("zero", owner)
    elif name in PARAMETERS:
        branches = -1 if name.startswith("trainable") else engine.branches
        return Value("params", of=owner, named=name.startswith("named"), branches=branches)
    elif name in ("no_sync", "join"):
        return no_sync(call, owner) if name == "no_sync" else Value("context", word=name, model=owner)
    elif name == "clip_grad_norm_":
        call.emit_clip(owner, position=0)
    elif name in SAME_MODEL:
        if name == "requires_grad_":
            freeze(engine, call.node, Value("params", of=owner), call.first)
        cast(call, owner)
        set_mode(call, owner)
        return owner
    elif name in ("modules", "named_modules", "children", "named_children"):
        return Value("modules", of=owner)
    elif name in CHANGING:
        if not owner.lineage or "hook" in name:
            owner.root().last = UNKNOWN
        renew(engine, owner, call.args[-1] if call.args else Value())
    elif name in ("forward", "forward_features") or (name in ("loss", "evaluate_actions") and owner.kind == "model"):
        made = forward(engine, call.node, owner, call.args, call.keywords.values())
        return engine.forward_pass(call.node, owner, call.args, made) if name == "forward" else made
    elif not owner.lineage and owner.kind in ("model", "ddp"):
        if name == "step" and not AVERAGES.search(owner.name):
            call.emit("opaque", owner, name=name, receives=FRAMEWORK)
        made = Value(made=True, opaque=True, blind=blind(owner, call.values), inside=tuple(engine.regions))
        if name in ("training_step", "compute_loss", "log_prob"):
            made = tensor(roots=frozenset([next(births)]), opaque=True, inside=tuple(engine.regions))
        computed = any(v.kind == "tensor" and v.forward is not None for v in call.values)  # by the wrapper already
        if owner.raw is not None and call.values and not computed and not HARMLESS.match(name):  # a forward pass
            event = call.engine.emit("forward", call.node, owner)
            made.update(forward=event, chain=(event,))
        return made
    else:
        return None
    return Value()


KINDS: dict[str, Callable[[CallSite, Value], Value | None]] = {
    "optimizer": optimizer_method,
    "scaler": scaler_method,
    "scheduler": scheduler_method,
    **dict.fromkeys(("model", "ddp", "instance", "criterion", "engine"), module_method),
    "accelerator": accelerator_method,
    "fabric": fabric_method,
    "tensor": tensor_method,
    "detached": detached_method,
    **dict.fromkeys(("gradient", "gradients"), gradient_method),
    "param": parameter_method,
    "params": lambda call, owner: owner,
}
