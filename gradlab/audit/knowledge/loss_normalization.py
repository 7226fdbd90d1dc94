"""Losses that whoever computes them may have divided."""

from __future__ import annotations

import ast
import re

from gradlab.audit.source.syntax import dotted
from gradlab.audit.trace.values import Value

TOKENS = re.compile(
    r"(^|[_.])((n|num|number|total|global|sum|count)_(\w*_)?(items|tokens|samples|valid|labels|accum\w*|micro\w*|targets)"
    r"|(valid|label|target)_tokens|n_?tokens|ntokens|token_count|normali[sz]er|denominator|loss_scale|accum\w*_steps)",
    re.I,
)
"""Arguments by which whoever computes a loss may divide it."""


def divisible(node: ast.Call, made: Value) -> Value:
    """A loss of unknown making that is told how many there are in the window: what divides it is not known."""
    told = [k.arg or "" for k in node.keywords] + [
        dotted(a) for a in [*node.args[1:], *(k.value for k in node.keywords)]
    ]
    if any(TOKENS.search(name) for name in told):
        made.data["reduction"] = "unknown"
    return made
