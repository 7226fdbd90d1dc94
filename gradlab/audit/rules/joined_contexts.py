"""Context managers joined by `and` or `or`: a `with` enters one of them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from gradlab.audit.rules.registry import text_rule
from gradlab.audit.source.project import Module
from gradlab.audit.source.syntax import called_name, dotted

CONTEXTS = {
    *("autocast", "no_grad", "enable_grad", "inference_mode", "set_grad_enabled", "detect_anomaly"),
    *("no_sync", "accumulate", "no_backward_sync"),
}
NAMED = re.compile(r"(?!use_|with_|enable_|is_|has_)(\w+_)?(ctx|context|autocast)(_\w+)?")
"""Other names of context managers; `use_autocast` is a flag."""


@text_rule("GL216")
def joined(module: Module) -> Iterator[ast.AST]:
    nodes = module.source.nodes
    blocks: list[ast.With | ast.AsyncWith] = [*nodes.of(ast.With), *nodes.of(ast.AsyncWith)]
    entered = [item.context_expr for node in blocks for item in node.items]
    names = {dotted(one) for one in entered if isinstance(one, (ast.Name, ast.Attribute))}
    made = [one.value for one in nodes.of(ast.Assign) if names.intersection(map(dotted, one.targets))]
    for whole in [*entered, *made]:
        if isinstance(whole, ast.BoolOp):
            last = isinstance(whole.op, ast.And)
            known = [called_name(part) in CONTEXTS or (last and named(part)) for part in whole.values]
            if any(known[:-1]) if last else known[0] and any(known[1:]):
                yield whole


def named(node: ast.expr) -> bool:
    """Whether a name says that it is a context manager; before `or` it may be None."""
    return NAMED.fullmatch(called_name(node) or dotted(node).split(".")[-1]) is not None
