"""Arguments of trainers that contradict each other, or the module that is trained."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from gradlab.audit.rules.registry import text_rule
from gradlab.audit.source.project import Module
from gradlab.audit.source.syntax import dotted

BOUNDS = ("max_norm", "gradient_clip_val", "max_grad_norm", "clip_grad")
"""Keywords of a bound on the norm."""


def literal(node: ast.AST) -> float | None:
    """A number in the text."""
    if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)) and not isinstance(node.value, bool):
        return float(node.value)
    return None


def trainers(module: Module) -> Iterator[ast.Call]:
    """Calls that make a trainer of Lightning's or transformers', or the arguments of one."""
    if not re.search(r"Trainer\s*\(|TrainingArguments\s*\(", module.source.text):
        return
    for node in module.source.nodes.of(ast.Call):
        if re.search(r"(^|\.)(Trainer|\w*TrainingArguments)$", dotted(node.func)):
            yield node


@text_rule("GL812")
def two_precisions(module: Module) -> Iterator[ast.AST]:
    for call in trainers(module):
        on = [k for k in call.keywords if k.arg in ("fp16", "bf16") and ast.unparse(k.value) == "True"]
        if len(on) == 2:
            yield on[1].value


@text_rule("GL813")
def manual_optimization(module: Module) -> Iterator[ast.AST]:
    classes = [n for n in module.names.values() if isinstance(n, ast.ClassDef) and defines(n, "training_step")]
    if not classes or not all(optimizes_manually(n) for n in classes):
        return
    for call in trainers(module):
        for k in call.keywords:
            value = literal(k.value)
            least = {"gradient_clip_val": 0, "accumulate_grad_batches": 1}.get(k.arg or "")
            if least is not None and value is not None and value > least:
                yield k.value


def defines(node: ast.ClassDef, name: str) -> bool:
    return any(isinstance(n, ast.FunctionDef) and n.name == name for n in node.body)


def optimizes_manually(node: ast.ClassDef) -> bool:
    """`self.automatic_optimization = False`, and nothing that sets it otherwise."""
    values = [
        n.value
        for n in ast.walk(node)
        if isinstance(n, ast.Assign) and any(ast.unparse(t).endswith("automatic_optimization") for t in n.targets)
    ]
    return bool(values) and all(isinstance(v, ast.Constant) and v.value is False for v in values)
