"""Entropies that are added to a loss, which makes them small."""

from __future__ import annotations

from typing import Any

from gradlab.watch.call_site import CallSite
from gradlab.watch.graphs.advantages import LINEAR, inputs_of
from gradlab.watch.graphs.loss_graph import MAX_NODES, is_packed, nodes_below, split
from gradlab.watch.graphs.node_lines import site_of

PASSED = ("View", "Squeeze", "Unsqueeze", "Clamp", "ToCopy", "Alias")
"""Beginnings of the names of nodes between a probability and the product with its logarithm."""
Reached = tuple[int, "CallSite | None"]
"""The sign of a part of a loss, and the line of the sum that it is added in."""


def penalised(root: Any) -> tuple[CallSite | None, bool]:
    """The line of the sum that an entropy is added to, and not subtracted; and whether the probabilities weigh values,
    too."""
    reached = parts_of(root)
    for node, (sign, site) in reached.items():
        if node.name() == "MulBackward0" and len(inputs_of(node)) == 2:
            for share, other in (inputs_of(node), inputs_of(node)[::-1]):
                for each, (own, _) in parts_of(other).items():
                    if sign * own < 0 and is_plogp(share, each):
                        return site or site_of(node), other is not each and has_values(other)
    for spread in spreads_of(root):
        if (known := reached.get(spread)) is not None and known[0] > 0:
            return known[1] or site_of(spread), False
    return None, False


def parts_of(root: Any) -> dict[Any, Reached]:
    """The parts of sums and means that no advantage multiplies, nor any other number for each sample below 0."""
    found: dict[Any, Reached] = {root: (1, None)}
    stack = [root]
    while stack and len(found) < MAX_NODES:
        node = stack.pop()
        sign, site = found[node]
        name, inputs = node.name(), [each for each, _ in node.next_functions]
        scaled = name in ("MulBackward0", "DivBackward0")
        if name not in LINEAR or (scaled and not is_positive(node) and not is_negative(node)):
            continue
        if name in ("AddBackward0", "SubBackward0") and len(inputs_of(node)) == 2:
            site = site_of(node)
        sign = -sign if name == "NegBackward0" or (scaled and is_negative(node)) else sign
        for i, each in enumerate(inputs):
            if each is not None and each not in found:
                minus = (name == "SubBackward0" and i == 1) or (name.startswith("Rsub") and i == 0)
                found[each] = (-sign if minus else sign, site)
                stack.append(each)
    return found


def spreads_of(root: Any) -> list[Any]:
    """The logarithms of the scales of Gaussians, and what these are the exponentials of."""
    nodes = list(nodes_below([root]))
    scales = {inputs_of(each)[0] for each in nodes if each.name() == "PowBackward0" and inputs_of(each)}
    logs = [each for each in nodes if each.name() == "LogBackward0" and inputs_of(each)[0] in scales]
    made = [below(each, "Expand") for each in scales]
    return logs + [inputs_of(each)[0] for each in made if each.name() == "ExpBackward0"]


def has_values(node: Any) -> bool:
    """Whether a number for each action is added in a sum."""
    parts = [each for each in parts_of(node) if each.name() in ("AddBackward0", "SubBackward0")]
    return any(len(inputs_of(each)) == 1 for each in parts)


def is_negative(node: Any) -> bool:
    """Whether the constant of a product or quotient is below 0."""
    constant, _ = split(node, node.name(), node.next_functions)
    return constant is not None and bool(constant < 0)


def is_positive(node: Any) -> bool:
    """Whether no number that a product or quotient is with is below 0, as of a mask."""
    if len(inputs_of(node)) != 1 or is_packed(node):
        return False
    constant = node._saved_other if node.next_functions[0][0] is not None else node._saved_self
    return constant is not None and bool((constant >= 0).all())


def is_plogp(one: Any, two: Any) -> bool:
    """Whether one of them are probabilities, and the other their logarithms."""
    for share, logarithm in ((one, two), (two, one)):
        p, log = unchanged(share), unchanged(logarithm)
        below = [unchanged(each) for each in inputs_of(p)]
        if p.name() in ("SoftmaxBackward0", "ExpBackward0") and log in below:
            return True
        if p.name() == "SoftmaxBackward0" and log.name() == "LogSoftmaxBackward0" and inputs_of(log) == inputs_of(p):
            return True
        if log.name() == "LogBackward0" and p in [unchanged(each) for each in inputs_of(log)]:
            return True
    return False


def unchanged(node: Any) -> Any:
    return below(node, *PASSED)


def below(node: Any, *passed: str) -> Any:
    while node.name().startswith(tuple(f"{name}Backward" for name in passed)) and inputs_of(node):
        node = inputs_of(node)[0]
    return node
