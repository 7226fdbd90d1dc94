"""Context managers joined by `and` or `or`: a `with` enters one of them."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from gradlab.audit.rules.registry import text_rule
from gradlab.audit.source.project import Module
from gradlab.audit.source.syntax import called_name

CONTEXTS = {
    *("autocast", "no_grad", "enable_grad", "inference_mode", "set_grad_enabled", "detect_anomaly"),
    *("no_sync", "accumulate", "no_backward_sync"),
}


@text_rule("GL216")
def joined(module: Module) -> Iterator[ast.AST]:
    nodes = module.source.nodes
    blocks: list[ast.With | ast.AsyncWith] = [*nodes.of(ast.With), *nodes.of(ast.AsyncWith)]
    for node in blocks:
        for item in node.items:
            whole = item.context_expr
            if isinstance(whole, ast.BoolOp):
                last = isinstance(whole.op, ast.And)
                known = [called_name(part) in CONTEXTS for part in whole.values]
                if any(known[:-1]) if last else known[0] and any(known[1:]):
                    yield whole
