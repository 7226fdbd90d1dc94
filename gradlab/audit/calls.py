"""Calls that act on gradients, and what all other calls give back."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from gradlab.audit import known
from gradlab.audit.conditions import TRUE, Atom, Formula
from gradlab.audit.known import dotted
from gradlab.audit.testing import canonical, formula, truthy
from gradlab.audit.tree import Region
from gradlab.audit.values import Value, births, members, several, tensor

if TYPE_CHECKING:
    from gradlab.audit.interpreter import Interpreter

SAME = {
    "list",
    "tuple",
    "iter",
    "tqdm",
    "sorted",
    "reversed",
    "set",
    "chain",
    "track",
    "tqdm_notebook",
    "itertools.chain",
}
DETACHED = {"item", "detach", "tolist", "numpy", "detach_", "data_ptr"}
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
PARAMS = {"parameters", "named_parameters", "trainable_parameters"}
KEEPING = {
    "train",
    "eval",
    "to",
    "cuda",
    "cpu",
    "float",
    "half",
    "bfloat16",
    "double",
    "compile",
    "requires_grad_",
    "apply",
}


def call(it: Interpreter, node: ast.Call) -> Value:
    if it.frozen:
        return it.memo.get(id(node), Value())
    value = fresh_call(it, node)
    it.memo[id(node)] = value
    return value


def fresh_call(it: Interpreter, node: ast.Call) -> Value:
    owner = it.value(node.func.value) if isinstance(node.func, ast.Attribute) else None
    args = [it.value(a) for a in node.args]
    keywords = {k.arg or "**": it.value(k.value) for k in node.keywords}
    if owner is not None and isinstance(node.func, ast.Attribute):
        if owner.kind == "super":
            return parent(it, node, owner, node.func.attr, args, keywords)
        result = method(it, node, owner, node.func.attr, args, keywords)
        if result is not None:
            return result
    callee = it.value(node.func)
    if "choice" in callee.data:
        callee = next((v for _, v in callee.data["choice"] if v.kind not in ("none", "unknown")), callee)
    if callee.kind in ("function", "method"):
        return follow(it, node, callee, args, keywords)
    if callee.kind == "lambda":
        return it.value(callee.data["node"].body)
    if callee.kind == "class":
        return instance(it, callee, args, keywords, node)
    if callee.kind == "external":
        return external(it, node, callee.name, args, keywords)
    if callee.kind == "loss_scaler":
        return loss_scaler(it, node, callee, args, keywords)
    if callee.kind in ("model", "ddp"):
        return forward(it, node, callee)
    if callee.kind == "criterion":
        return loss(it, callee.data, args)
    if callee.kind in ("context", "autocast", "null"):
        return callee
    if callee.kind == "unknown" and any(a.kind == "tensor" for a in args) and not set(kinds(args, keywords)) & ACTING:
        named = isinstance(node.func, (ast.Name, ast.Attribute))
        if named and not callee.data.get("framework"):
            return loss(it, {}, args)
    name = node.func.attr if isinstance(node.func, ast.Attribute) else dotted(node.func)
    return opaque(it, node, name or "call", owner, args, keywords)


def kinds(args: list[Value], keywords: dict[str, Value]) -> list[str]:
    return [v.kind for a in [*args, *keywords.values()] for v in members(a)]


def follow(it: Interpreter, node: ast.Call, callee: Value, args: list[Value], keywords: dict[str, Value]) -> Value:
    target = callee.data["node"]
    names = {dotted(d.func if isinstance(d, ast.Call) else d).split(".")[-1] for d in target.decorator_list}
    closure = callee.data.get("scope") or it.world(callee.data["module"])
    result = it.enter(target, callee.data["module"], args, keywords, callee.data.get("self"), node, closure)
    if result is None:
        return opaque(it, node, target.name, callee.data.get("self"), args, keywords)
    if "contextmanager" in names:
        return Value("context", target.name, {"word": "unknown"})
    return result


def opaque(
    it: Interpreter, node: ast.Call, name: str, owner: Value | None, args: list[Value], keywords: dict[str, Value]
) -> Value:
    """A call that cannot be followed: what it was handed says what it might do."""
    handed = [v for a in [*args, *keywords.values()] for v in members(a)]
    receives = {v.kind for v in handed} & ACTING
    if owner is not None and (owner.data.get("framework") or owner.kind in ACTING):
        receives.add("self" if owner.data.get("framework") else owner.kind)
    if any(v.kind == "tensor" for v in handed) and receives:
        receives.add("tensor")
    name = name.split(".")[-1]
    if receives and not known.HARMLESS.match(name):
        it.emit("opaque", node, owner, name=name, receives=receives)
    return Value("unknown", "", {"made": True, "opaque": True})


def forward(it: Interpreter, node: ast.Call, model: Value) -> Value:
    event = it.emit("forward", node, model)
    return tensor(roots=frozenset([next(births)]), factors=[], source="model", forward=event)


def loss(it: Interpreter, data: dict, args: list[Value]) -> Value:
    from_tensors = [v for a in args for v in members(a) if v.kind == "tensor"]
    roots = frozenset().union(*(v.data.get("roots", frozenset()) for v in from_tensors)) | {next(births)}
    made = tensor(roots=roots, factors=[], source="criterion", reduction=data.get("reduction", "mean"))
    made.data["forward"] = next((v.data["forward"] for v in from_tensors if v.data.get("forward")), None)
    made.data["ignoring"] = data.get("ignoring", False) and made.data["reduction"] == "mean"
    return made


def method(
    it: Interpreter, node: ast.Call, owner: Value, name: str, args: list[Value], keywords: dict[str, Value]
) -> Value | None:
    """A call of a method on a value whose kind is known; None where the callee itself must be looked up."""
    kind = owner.kind
    if "class" in owner.data and it.method_of(owner, name) is not None:
        return None
    if name == "backward":
        return backward(it, node, owner, args)
    if kind == "optimizer":
        return optimizer(it, node, owner, name, args, keywords)
    if kind == "optimizers" or (
        owner.data.get("class") and name in ("optimizers", "manual_backward", "clip_gradients")
    ):
        return lightning(it, node, owner, name, args, keywords)
    if kind == "scaler":
        return scaler(it, node, owner, name, args)
    if kind == "scheduler":
        if name in ("step", "step_update", "batch_step"):
            it.emit("schedule", node, owner, arguments=len(args) + len(keywords))
        return Value()
    if kind in ("model", "ddp", "instance", "criterion"):
        return module(it, node, owner, name, args, keywords)
    if kind == "accelerator":
        return accelerator(it, node, owner, name, args, keywords)
    if kind == "fabric":
        return fabric(it, node, owner, name, args, keywords)
    if kind == "tensor":
        return of_tensor(it, node, owner, name, args)
    if kind in ("gradient", "gradients", "param"):
        return gradient(it, node, owner, name, args)
    if kind == "params":
        return owner
    if name in ("append", "extend") and args:
        if kind in ("list", "unknown") and owner.birth < it.entered and args[0].kind == "tensor":
            it.emit("keep", node, args[0], into=dotted(node.func.value))  # type: ignore[attr-defined]
        if kind == "list" and name == "append" and args[0].kind in ACTING:
            owner.data["items"] = [*owner.data["items"], args[0]]
        return Value()
    return None


def backward(it: Interpreter, node: ast.Call, owner: Value, args: list[Value]) -> Value:
    if owner.kind in ("accelerator", "fabric"):
        it.emit("backward", node, args[0] if args else None, through=owner)
    elif owner.kind in ("tensor", "detached") or not any(v.kind == "tensor" or v.data.get("opaque") for v in args):
        if "choice" in owner.data:
            from gradlab.audit.tree import If

            for when, value in owner.data["choice"]:
                events = it.collect(
                    lambda value=value: it.emit("backward", node, value, perhaps=owner.data.get("perhaps"))
                )
                it.out.append(If(when, events, []))
        elif owner.kind in ("tensor", "unknown", "list", "number"):
            it.emit("backward", node, owner, text=ast.unparse(node.func))
    else:
        it.emit("opaque", node, owner, name="backward", receives={"framework"})
    return Value()


def optimizer(
    it: Interpreter, node: ast.Call, owner: Value, name: str, args: list[Value], keywords: dict[str, Value]
) -> Value:
    if name == "step":
        for closure in [*args, *keywords.values()]:
            if closure.kind in ("function", "method"):
                follow(it, node, closure, [], {})
            elif closure.kind == "lambda":
                it.value(closure.data["node"].body)
        it.emit("step", node, owner)
        return tensor() if args else Value()
    if name == "zero_grad":
        it.emit("zero", node, owner)
    elif name in ("first_step", "second_step", "clip_grad_norm", "clip_master_grads", "synchronize", "consolidate"):
        it.emit("opaque", node, owner, name=name, receives={"framework"})
    return Value()


def scaler(it: Interpreter, node: ast.Call, owner: Value, name: str, args: list[Value]) -> Value:
    if name == "scale" and args:
        if args[0].kind == "list":
            return several([Value("tensor", "", {**v.data, "scaled": owner}) for v in args[0].data["items"]])
        data = {k: v for k, v in args[0].data.items() if k != "choice"}
        if args[0].kind != "tensor":
            data["opaque"] = True
        return Value("tensor", "", {**data, "scaled": owner})
    if name == "step":
        it.emit("step", node, args[0] if args else None, scaler=owner)
    elif name == "unscale_":
        it.emit("unscale", node, args[0] if args else None, scaler=owner)
    elif name == "update":
        it.emit("update", node, owner)
    return Value()


def loss_scaler(it: Interpreter, node: ast.Call, owner: Value, args: list[Value], keywords: dict[str, Value]) -> Value:
    """timm's: scale, backward, and where an update is due unscale, clip, step, update."""
    from gradlab.audit.tree import If

    names = {k.arg: k.value for k in node.keywords}
    opt = args[1] if len(args) > 1 else keywords.get("optimizer")
    value = args[0] if args else keywords.get("loss", Value())
    it.emit("backward", node, Value("tensor", "", {**value.data, "scaled": owner}))

    def rest() -> None:
        it.emit("unscale", node, opt, scaler=owner)
        if keywords.get("clip_grad", keywords.get("max_norm")) is not None:
            it.emit("clip", node, keywords.get("parameters"), call=node)
        it.emit("step", node, opt, scaler=owner)
        it.emit("update", node, owner)

    due = names.get("need_update", names.get("update_grad"))
    if due is None:
        rest()
    else:
        it.out.append(If(formula(it, due), it.collect(rest), []))
    return Value()


def module(
    it: Interpreter, node: ast.Call, owner: Value, name: str, args: list[Value], keywords: dict[str, Value]
) -> Value | None:
    if name == "module":
        return None
    if name == "zero_grad":
        it.emit("zero", node, owner)
    elif name in PARAMS:
        return Value("params", data={"of": owner, "named": name.startswith("named")})
    elif name in ("no_sync", "join"):
        return Value("context", data={"word": name, "model": owner})
    elif name == "clip_grad_norm_":
        it.emit("clip", node, owner, call=node)
    elif name in KEEPING:
        text = ast.unparse(node)
        if name == "half" or (name == "to" and re.search(r"float16|\bhalf\b", text) and "bfloat16" not in text):
            owner.data["half"] = node
        return owner
    elif name in ("modules", "named_modules", "children", "named_children"):
        return Value("modules", data={"of": owner})
    elif name in ("forward", "forward_features") or (name == "loss" and owner.kind == "model"):
        return forward(it, node, owner)
    elif owner.data.get("class") is None and owner.kind in ("model", "ddp"):
        if name == "step":
            it.emit("opaque", node, owner, name=name, receives={"framework"})
        if name in ("training_step", "compute_loss", "log_prob", "evaluate_actions"):
            return tensor(roots=frozenset([next(births)]), factors=[], opaque=True)
        return Value("unknown", "", {"made": True, "opaque": True})
    else:
        return None
    return Value()


def lightning(
    it: Interpreter, node: ast.Call, owner: Value, name: str, args: list[Value], keywords: dict[str, Value]
) -> Value | None:
    if name == "optimizers":
        made = owner.attributes.get("configured")
        return made if made is not None else Value("optimizer", "optimizers", {"of": None, "given": True})
    if name == "manual_backward":
        it.emit("backward", node, args[0] if args else None, through=owner)
    elif name == "clip_gradients":
        it.emit("clip", node, args[0] if args else keywords.get("optimizer"), call=node, through=owner)
    else:
        return None
    return Value()


def accelerator(
    it: Interpreter, node: ast.Call, owner: Value, name: str, args: list[Value], keywords: dict[str, Value]
) -> Value:
    if name in ("clip_grad_norm_", "clip_grad_value_"):
        it.emit("clip", node, args[0] if args else None, call=node, through=owner)
    elif name == "unscale_gradients":
        it.emit("unscale", node, args[0] if args else None, scaler=owner)
    elif name == "prepare":
        for value in args:
            value.data["prepared"] = owner
        return args[0] if len(args) == 1 else several(args)
    elif name in ("accumulate", "no_sync"):
        return Value("context", data={"word": name, "model": args[0] if args else None, "of": owner})
    elif name == "autocast":
        return Value("autocast", "autocast", {"through": owner})
    elif name == "unwrap_model":
        return Value("model", "", {"of": args[0] if args else None})
    elif name.startswith("prepare"):
        return args[0] if args else Value()
    return Value("unknown", "", {"made": True})


def fabric(
    it: Interpreter, node: ast.Call, owner: Value, name: str, args: list[Value], keywords: dict[str, Value]
) -> Value:
    if name == "clip_gradients":
        it.emit("clip", node, args[0] if args else None, call=node, through=owner)
    elif name in ("setup", "setup_module", "setup_optimizers", "setup_dataloaders"):
        for value in args:
            value.data["prepared"] = owner
        return args[0] if len(args) == 1 else several(args)
    elif name == "no_backward_sync":
        flag = next(
            (k.value for k in node.keywords if k.arg == "enabled"), node.args[1] if len(node.args) > 1 else None
        )
        when = formula(it, flag) if flag is not None else TRUE
        return Value("context", data={"word": "no_sync", "model": args[0] if args else None, "when": when})
    elif name == "autocast":
        return Value("autocast", "autocast", {"through": owner})
    return Value("unknown", "", {"made": True})


def of_tensor(it: Interpreter, node: ast.Call, owner: Value, name: str, args: list[Value]) -> Value:
    if name in DETACHED:
        return Value("detached")
    if name in ("div", "div_", "mul", "mul_", "true_divide", "multiply", "divide") and args:
        op: ast.operator = ast.Div() if "div" in name else ast.Mult()
        made = it.combined(op, owner, args[0], node.args[0])
        if name.endswith("_"):
            owner.data.update(made.data)
        return made
    data = {**owner.data}
    if name in ("sum", "nansum"):
        data["reduction"] = "sum"
    return Value("tensor", "", data)


def gradient(it: Interpreter, node: ast.Call, owner: Value, name: str, args: list[Value]) -> Value:
    if owner.kind == "gradient":
        if name in ("zero_", "detach_"):
            it.emit("zero", node, owner, by_hand=True)
        elif name in ("div_", "mul_") and args:
            it.emit("scale", node, owner, by=canonical(it, node.args[0]), factor=args[0], op=name)
        elif name in ("clamp_", "clip_"):
            it.emit("clip", node, owner, by_value=True, call=node)
        elif name in ("norm", "abs", "pow", "isnan", "isinf", "isfinite", "max", "mean", "std"):
            it.emit("look", node, owner)
        if name in ("detach", "data", "float", "view", "flatten", "clone"):
            return owner
    return Value("measured")


def external(it: Interpreter, node: ast.Call, name: str, args: list[Value], keywords: dict[str, Value]) -> Value:
    tail = name.split(".")[-1]
    if tail in known.CLIPS:
        params = args[0] if args else keywords.get("parameters")
        it.emit("clip", node, params, call=node, by_value="value" in tail)
        return Value("measured", "grad_norm")
    if tail in ("scale_loss",) and args:
        data = {**args[0].data, "scaled_by": "apex"}
        made = Value("tensor", "", data)
        return Value("context", data={"word": "scale_loss", "as": made})
    if tail == "master_params":
        return Value("params", data={"of": args[0].data.get("of") if args else None, "master": True})
    kind = known.made(name)
    if kind:
        return construct(it, node, kind, name, args, keywords)
    if tail in ("all_reduce", "all_reduce_coalesced"):
        if any(v.kind in ("gradient", "gradients") for v in args):
            it.emit("reduce", node, args[0])
        return Value()
    if tail in ("clamp_", "clip_") and args and args[0].kind == "gradient":
        it.emit("clip", node, args[0], by_value=True, call=node)
        return Value()
    if tail == "enumerate" and args:
        start = keywords.get("start", args[1] if len(args) > 1 else None)
        first = start.data.get("value") if start is not None and start.kind == "number" else 0
        return Value("enumerated", data={"inner": args[0], "start": first if isinstance(first, int) else 0})
    if tail in ("range", "trange", "count"):
        return Value("counted")
    if tail == "zip":
        return Value("zipped", data={"items": args})
    if tail == "super":
        return Value("super", data={"self": it.selves[-1]})
    if tail in SAME or tail in ("filter", "map", "deepcopy", "copy"):
        return next((a for a in args if a.kind in ("params", "list", "enumerated")), args[-1] if args else Value())
    if tail in ("foreach_zero_", "_foreach_zero_"):
        it.emit("zero", node, args[0] if args else None, by_hand=True)
        return Value()
    if tail in ("get_total_norm", "global_norm", "check_gradients", "diagnose_gradients"):
        it.emit("look", node)
        return Value("measured")
    if known.LOSS_FUNCTION.match(tail) and args:
        reduction = keywords.get("reduction")
        kind_of_mean = reduction.data.get("value", "mean") if reduction else "mean"
        return loss(it, {"reduction": kind_of_mean, "ignoring": "ignore_index" in keywords}, args)
    if name.startswith("torch.") or tail in ("sum", "max", "min", "abs"):
        if "autograd" in name:
            if tail == "backward":
                it.emit("backward", node, args[0] if args else None)
            return tensor(opaque=True) if tail == "grad" else Value()
        if "norm" in tail and any(v.kind in ("gradient", "gradients") for v in args):
            it.emit("look", node)
            return Value("measured")
        inner = [v for a in args for v in members(a) if v.kind == "tensor"]
        if inner and not re.match(r"is|argmax|arg|eq|ne|no_grad", tail):
            data = {**inner[0].data}
            if tail == "sum":
                data["reduction"] = "sum"
            return Value("tensor", "", data)
        if tail in ("no_grad", "inference_mode"):
            return Value("context", data={"word": "no_grad"})
        return Value("unknown", "", {"made": True})
    if hasattr(__builtins__, tail) and "." not in name:
        return Value("unknown", "", {"made": True})
    return opaque(it, node, name, None, args, keywords)


def construct(
    it: Interpreter, node: ast.Call, kind: str, name: str, args: list[Value], keywords: dict[str, Value]
) -> Value:
    data: dict = {"call": node, "type": name, "path": it.module.path}
    if kind == "wrapper":
        made = args[0] if args else Value("model")
        return made if made.kind in ("model", "ddp") else Value("model", name, data)
    if kind == "ddp":
        inner = args[0] if args else keywords.get("module")
        if inner is not None:
            inner.data["wrapped"] = True
        return Value("ddp", name, {**data, "of": inner})
    if kind == "optimizer":
        params = [v for a in [*args[:1], *keywords.values()] for v in every(a) if v.kind in ("params", "model", "ddp")]
        data["of"] = params[0].root() if params else None
        data["roots"] = [p.root() for p in params]
        inner = next((a for a in args if a.kind == "optimizer"), None)
        return inner if inner is not None and not params else Value("optimizer", name, data)
    if kind == "scheduler":
        data["optimizer"] = next((a for a in [*args, *keywords.values()] if a.kind == "optimizer"), None)
        data["length"] = lengths(it, node)
        return Value("scheduler", name, data)
    if kind == "criterion":
        reduction = keywords.get("reduction")
        data["reduction"] = reduction.data.get("value", "unknown") if reduction else "mean"
        data["ignoring"] = "ignore_index" in keywords
        return Value("criterion", name, data)
    if kind == "accelerator":
        steps = keywords.get("gradient_accumulation_steps")
        data["steps"] = steps
        return Value("accelerator", name, data)
    if kind == "scaler":
        flag = keywords.get("enabled")
        data["enabled"] = truthy(flag, "enabled") if flag is not None else TRUE
        return Value("scaler", name, data)
    if kind == "autocast":
        names = {k.arg: k.value for k in node.keywords}
        given, dtype = names.get("enabled"), names.get("dtype")
        data["when"] = formula(it, given) if given is not None else TRUE
        data["dtype"] = ast.unparse(dtype) if dtype is not None else ""
        data["device"] = node.args[0].value if node.args and isinstance(node.args[0], ast.Constant) else ""
        if "torch.cuda" in name:
            data["device"] = "cuda"
        return Value("autocast", name, data)
    return Value(kind, name, data)


def every(value: Value) -> list[Value]:
    if value.kind == "list":
        return [v for item in value.data["items"] for v in every(item)]
    if value.kind == "dict":
        return [v for item in value.data["items"] for v in every(item)]
    return [value]


def lengths(it: Interpreter, node: ast.Call) -> list[str]:
    """The expressions that say how long a schedule is, names followed to what they were assigned."""
    named = {"T_max", "total_steps", "num_training_steps", "total_iters", "steps_per_epoch", "T_0", "num_warmup_steps"}
    found = [k.value for k in node.keywords if k.arg in named] or node.args[1:3]
    return [it.traced(part) for part in found]


def regions(it: Interpreter, value: Value, node: ast.expr, when: Formula = TRUE) -> list[Region]:
    from gradlab.audit.conditions import joined

    if "choice" in value.data:
        return [
            region
            for test, item in value.data["choice"]
            for region in regions(it, item, node, joined("and", [when, test]))
        ]
    if value.kind == "autocast":
        return [Region("autocast", joined("and", [when, value.data.get("when", TRUE)]), node, value, value.data)]
    if value.kind == "context":
        there = joined("and", [when, value.data.get("when", TRUE)])
        return [Region(value.data["word"], there, node, value.data.get("model"), value.data)]
    if value.kind in ("unknown", "instance"):
        return [Region("unknown", when, node, value)]
    if value.kind == "method" and value.data["node"].name in ("no_sync", "accumulate"):
        return [Region(value.data["node"].name, when, node)]
    return []


def sync_flag(owner: Value) -> Value:
    return Value("bool", data={"formula": ("atom", sync_atom(owner))})


def sync_atom(owner: Value) -> Atom:
    return Atom(f"sync_gradients#{owner.number}", 1 << 60, "sync")


def assign_gradient(
    it: Interpreter, node: ast.stmt, target: ast.expr, right: ast.expr, op: ast.operator | None
) -> bool:
    """`p.grad = None`, `p.grad /= n` and their like."""
    if not isinstance(target, ast.Attribute):
        return False
    grad = target.value if target.attr == "data" else target
    if not (isinstance(grad, ast.Attribute) and grad.attr == "grad"):
        return False
    owner = it.value(grad.value)
    value = Value("gradient", data={"of": owner})
    if op is None and isinstance(right, ast.Constant) and right.value is None:
        it.emit("zero", node, value, by_hand=True)
    elif isinstance(op, (ast.Div, ast.Mult)):
        it.emit(
            "scale",
            node,
            value,
            by=canonical(it, right),
            factor=it.value(right),
            op="div_" if isinstance(op, ast.Div) else "mul_",
        )
    elif op is None and isinstance(right, ast.BinOp) and isinstance(right.op, (ast.Div, ast.Mult)):
        if "grad" in ast.unparse(right.left):
            name = "div_" if isinstance(right.op, ast.Div) else "mul_"
            it.emit("scale", node, value, by=canonical(it, right.right), factor=it.value(right.right), op=name)
    else:
        it.value(right)
    return True


def kept(it: Interpreter, node: ast.AugAssign, target: ast.expr, old: Value, value: Value) -> None:
    outlives = old.kind in ("number", "unknown") and old.birth < it.entered
    grads = value.kind == "tensor" and bool(value.data.get("roots"))
    if outlives and grads and not any(region.kind == "no_grad" for region in it.regions):
        it.emit("keep", node, value, into=dotted(target))


def member(it: Interpreter, value: Value, name: str) -> Value | None:
    """A method, property or class attribute of an instance of a class of the project."""
    found = it.method_of(value, name)
    if found is None:
        return None
    node, module_ = found
    made = Value("method", name, {"node": node, "module": module_, "self": value})
    if any(dotted(d).split(".")[-1] in ("property", "cached_property") for d in node.decorator_list):
        result = it.enter(node, module_, [], {}, value, node, it.world(module_))
        return result if result is not None else Value()
    return made


def parent(
    it: Interpreter, node: ast.Call, owner: Value, name: str, args: list[Value], keywords: dict[str, Value]
) -> Value:
    value = owner.data.get("self")
    if value is None or name == "__init__":
        if value is not None and (found := it.method_of(value, name, above=it.stack[-1] if it.stack else None)):
            it.enter(found[0], found[1], args, keywords, value, node, it.world(found[1]))
        return Value()
    found = it.method_of(value, name, above=it.stack[-1] if it.stack else None)
    if found is None:
        if value.data.get("framework"):
            it.emit("opaque", node, value, name=name, receives={"self"})
        return Value("unknown", "", {"opaque": True, "made": True})
    result = it.enter(found[0], found[1], args, keywords, value, node, it.world(found[1]))
    return result if result is not None else Value()


def instance(it: Interpreter, callee: Value, args: list[Value], keywords: dict[str, Value], at: ast.AST) -> Value:
    value = it.object_of(callee)
    if value.kind in ("optimizer", "scheduler"):
        params = [v for a in args for v in every(a) if v.kind == "params"]
        value.data["of"] = params[0].root() if params else None
        return value
    if value.kind == "criterion":
        return value
    found = it.method_of(value, "__init__")
    if found is not None:
        it.enter(found[0], found[1], args, keywords, value, at, it.world(found[1]))
    it.settle(value)
    return value
