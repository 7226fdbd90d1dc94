"""Arguments of trainers that contradict each other, or the module that is trained."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from gradlab.audit.rules import rule
from gradlab.audit.rules.advice import literal, trainers
from gradlab.audit.source.project import Module


@rule("GL812", on="text")
def two_precisions(module: Module) -> Iterator[ast.AST]:
    for call in trainers(module):
        on = [k for k in call.keywords if k.arg in ("fp16", "bf16") and ast.unparse(k.value) == "True"]
        if len(on) == 2:
            yield on[1].value


@rule("GL813", on="text")
def manual(module: Module) -> Iterator[ast.AST]:
    classes = [n for n in module.names.values() if isinstance(n, ast.ClassDef) and defines(n, "training_step")]
    if not classes or not all(by_hand(n) for n in classes):
        return
    for call in trainers(module):
        for k in call.keywords:
            value = literal(k.value)
            least = {"gradient_clip_val": 0, "accumulate_grad_batches": 1}.get(k.arg or "")
            if least is not None and value is not None and value > least:
                yield k.value


def defines(node: ast.ClassDef, name: str) -> bool:
    return any(isinstance(n, ast.FunctionDef) and n.name == name for n in node.body)


def by_hand(node: ast.ClassDef) -> bool:
    """`self.automatic_optimization = False`, and nothing that sets it otherwise."""
    values = [
        n.value
        for n in ast.walk(node)
        if isinstance(n, ast.Assign) and any(ast.unparse(t).endswith("automatic_optimization") for t in n.targets)
    ]
    return bool(values) and all(isinstance(v, ast.Constant) and v.value is False for v in values)
