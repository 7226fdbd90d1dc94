"""What the constructors of installed packages make: optimizers, schedules, scalers, wrapped models, autocast."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gradlab.audit.interpreter.branch_conditions import formula, truthy
from gradlab.audit.trace.conditions import TRUE
from gradlab.audit.trace.values import CALLED, Value, every

if TYPE_CHECKING:
    from gradlab.audit.interpreter.interpreter import Interpreter


@dataclass
class Made:
    """A call that makes something: `data` is what is remembered of it."""

    it: Interpreter
    node: ast.Call
    name: str
    args: list[Value]
    keywords: dict[str, Value]
    data: dict

    def word(self, keyword: str) -> object:
        """What a keyword is given, where it is written out."""
        return self.keywords[keyword].data.get("value") if keyword in self.keywords else None


def construct(
    it: Interpreter, node: ast.Call, kind: str, name: str, args: list[Value], keywords: dict[str, Value]
) -> Value:
    made = Made(it, node, name, args, keywords, {"call": node, "type": name, "path": it.module.path})
    value = KINDS[kind](made) if kind in KINDS else None
    return value if value is not None else Value(kind, name, made.data)


def wrapper(made: Made) -> Value:
    inner = made.args[0] if made.args else Value("model")
    if inner.kind in CALLED or inner.kind in ("model", "ddp"):
        return inner
    return Value("model", made.name, {**made.data, "type": inner.data.get("type", ""), "unseen": True})  # what it wraps


def ddp(made: Made) -> None:
    inner = made.args[0] if made.args else made.keywords.get("module")
    if inner is not None:
        inner.kind = "model" if inner.kind == "unknown" else inner.kind
        inner.data["wrapped"] = True
    made.data["of"] = inner


def optimizer(made: Made) -> Value | None:
    """Of parameters; or the optimizer that it wraps."""
    given = [v for a in [*made.args[:1], *made.keywords.values()] for v in every(a)]
    roots = [v.root() for v in given if v.kind in ("params", "model", "ddp")]
    made.data |= {"of": roots[0] if roots else None, "roots": roots}
    inner = next((a for a in made.args if a.kind == "optimizer"), None)
    return inner if not roots else None


def scheduler(made: Made) -> None:
    made.data["optimizer"] = next((a for a in [*made.args, *made.keywords.values()] if a.kind == "optimizer"), None)
    made.data["length"] = lengths(made.it, made.node)


def lengths(it: Interpreter, node: ast.Call) -> list[str]:
    """The expressions that say how long a schedule is, its warm-up first; names followed to what they were assigned."""
    named = ["num_warmup_steps", "T_max", "total_steps", "num_training_steps", "total_iters", "steps_per_epoch", "T_0"]
    words = sorted((k for k in node.keywords if k.arg in named), key=lambda k: named.index(str(k.arg)))
    found = [*node.args[1:3], *(k.value for k in words)]
    return [it.traced(part) for part in found]


def criterion(made: Made) -> None:
    reduction = made.keywords.get("reduction")
    made.data["reduction"] = reduction.data.get("value", "unknown") if reduction else "mean"
    made.data["ignoring"] = "ignore_index" in made.keywords


def accelerator(made: Made) -> None:
    made.data["steps"] = made.keywords.get("gradient_accumulation_steps")
    made.data["fp16"] = made.word("mixed_precision") == "fp16"


def fabric(made: Made) -> None:
    made.data["fp16"] = made.word("precision") in (16, "16", "16-mixed")


def scaler(made: Made) -> None:
    flag = made.keywords.get("enabled")
    made.data["enabled"] = truthy(flag, "enabled") if flag is not None else TRUE


def autocast(made: Made) -> None:
    names = {k.arg: k.value for k in made.node.keywords}
    enabled, dtype, first = names.get("enabled"), names.get("dtype"), made.node.args[:1]
    made.data["when"] = formula(made.it, enabled) if enabled is not None else TRUE
    meant = made.keywords.get("dtype")
    named = meant is not None and meant.kind == "external" and meant.name.startswith("torch.")
    made.data["dtype"] = meant.name if meant is not None and named else ast.unparse(dtype) if dtype is not None else ""
    made.data["device"] = first[0].value if first and isinstance(first[0], ast.Constant) else ""
    if "torch.cuda" in made.name:
        made.data["device"] = "cuda"


def model(made: Made) -> None:
    if made.name.endswith("Sequential") and made.args:
        last = made.args[-1].data
        made.data["last"] = last.get("last") or last.get("type", "")


KINDS: dict[str, Callable[[Made], Value | None]] = {
    "wrapper": wrapper,
    "ddp": ddp,
    "optimizer": optimizer,
    "scheduler": scheduler,
    "criterion": criterion,
    "accelerator": accelerator,
    "fabric": fabric,
    "scaler": scaler,
    "autocast": autocast,
    "model": model,
}
