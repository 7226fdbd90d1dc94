"""The last layers of networks below a node of a loss, and which part of what they return it is made of."""

from __future__ import annotations

from typing import Any

from gradlab.watch.graphs.advantages import inputs_of
from gradlab.watch.graphs.loss_graph import MAX_NODES, PRODUCTS, nodes_below
from gradlab.watch.graphs.networks_between import weight_of
from gradlab.watch.readers.learnt_errors import signed

PARTS = ("SplitBackward", "SplitWithSizesBackward", "UnbindBackward", "SelectBackward", "SliceBackward")
"""The same of those that take a part of what a layer returns."""


Head = tuple[int, Any]
"""id of the weights of a last layer, and which part of what it returns; None for all of it."""


def heads_below(node: Any, part: Any = None) -> set[Head]:
    """The products nearest below, and which part of what they return. part: what is known of that above."""
    stack = [(node, part)]
    seen, found = {node}, set[Head]()
    while stack and len(seen) < MAX_NODES:
        node, part = stack.pop()
        inputs = inputs_of(node)
        own = {(id(w), part) for each in inputs if (w := weight_of(each)) is not None}
        if node.name() == "EmbeddingBackward0" or (node.name() in PRODUCTS and own):
            found |= own
            continue  # a product of two outputs compares them
        for each, number in node.next_functions:
            if each is not None and (each, number) not in seen:
                seen.add((each, number))
                stack.append((each, part_of(each, number) if part is None else part))
    return found


def compares(node: Any) -> bool:
    """Whether outputs are multiplied with each other above their last layers: of such classes few are alike before
    anything is learnt."""
    between = nodes_below([node], PRODUCTS)
    return any(
        each.name() in PRODUCTS and all(weight_of(below) is None for below in inputs_of(each)) for each in between
    )


def part_of(node: Any, number: int) -> Any:
    """Which features of what is below a node its result has; None if it is all of them."""
    sizes = getattr(node, "_saved_self_sym_sizes", ())
    if node.name() == "UnbindBackward0" and inputs_of(node)[0].name() in ("AddmmBackward0", "MmBackward0"):
        sizes = (0, 0)  # which it does not keep
    if not node.name().startswith(PARTS) or len(sizes) < 2 or signed(node._saved_dim) % len(sizes) != len(sizes) - 1:
        return None
    return (number, *(getattr(node, name, None) for name in ("_saved_index", "_saved_start")))


def overlap(ones: set[Head], others: set[Head]) -> bool:
    """Whether any output is of both."""
    return any(a == b and (p is None or q is None or p == q) for a, p in ones for b, q in others)
