"""Losses that compare outputs of networks with each other alone: a constant output is their minimum."""

from __future__ import annotations

from typing import Any

import torch

from gradlab.watch.call_site import CallSite
from gradlab.watch.graphs.advantages import below, inputs_of
from gradlab.watch.graphs.loss_graph import IDENTITIES, PRODUCTS, REGRESSIONS, is_packed, split, variable
from gradlab.watch.graphs.networks_between import weight_of
from gradlab.watch.graphs.node_lines import lines_of
from gradlab.watch.readers.graph_sites import handed_site

Comparison = tuple[set[int], set[int], "CallSite | None"]
"""ids of the weights of both sides, and the line."""

DISTANCES = {*REGRESSIONS, "L1LossBackward0"}
SUMS = {"AddBackward0", "SubBackward0", "RsubBackward1"}
PASSED = IDENTITIES | {
    f"{name}Backward{i}"
    for i in (0, 1)
    for name in (
        *("Div", "LinalgVectorNorm", "Norm", "ClampMin", "Expand", "Relu", "Tanh", "Sigmoid", "Gelu", "Silu", "Elu"),
        *("LeakyRelu", "NativeLayerNorm", "Transpose", "T", "Permute", "Mul", "Add", "Sub", "Rsub", "Mean", "Stack"),
        *("Cat", "Slice", "Split", "SplitWithSizes", "Unbind", "Select", "Index", "UnsafeSplit", "ReshapeAlias"),
        *("UnsafeView", "Dropout", "NativeDropout"),
    )
}
"""Nodes between a side and the last layer of a network: of outputs that are all the same none makes different ones, as
batch normalisation does."""
LAYERS = PRODUCTS | {"MkldnnRnnLayerBackward0", "CudnnRnnBackward0"}
MAX_NODES = 64
MOST = 2000
"""Nodes among which a ratio is searched."""
SAME = 1e-6


def comparisons(roots: list[torch.Tensor]) -> list[Comparison]:
    """All terms of a loss; nothing if one of them is anything else, or such a term is to grow."""
    found: list[Comparison] = []
    stack: list[tuple[Any, float, Any]] = [(root.grad_fn, 1.0, root.grad_fn) for root in roots]
    num_nodes = 0
    while stack:
        node, sign, known = stack.pop()
        num_nodes += 1
        if node is None or num_nodes > MAX_NODES:
            return []
        name, known = node.name(), node if lines_of(node) else known
        inputs = [each for each, _ in node.next_functions]
        live = inputs_of(node)
        if name in DISTANCES and len(live) == 2 and sign > 0:
            found.append(compared(live, known))
        elif (
            name == "PowBackward0"
            and sign > 0
            and live
            and live[0].name() == "SubBackward0"
            and len(inputs_of(live[0])) == 2
        ):
            found.append(compared(inputs_of(live[0]), live[0] if lines_of(live[0]) else known))
        elif name == "MulBackward0" and len(live) == 2 and sign < 0 and all(map(is_normalised, live)):
            found.append(compared(live, known))
        elif name in SUMS and live:
            minus = {"SubBackward0": 1, "RsubBackward1": 0}.get(name)
            stack += [(each, -sign if i == minus else sign, known) for i, each in enumerate(inputs) if each is not None]
        elif name in IDENTITIES or name == "NegBackward0" or is_reduction(node):
            stack.append((inputs[0], -sign if name == "NegBackward0" else sign, known))
        elif name in ("MulBackward0", "DivBackward0"):
            constant, below_it = split(node, name, node.next_functions)
            if constant is None or constant.device.type != "cpu":
                return []
            stack.append((below_it, sign * constant.item(), known))
        else:
            return []
    return found if all(one and two for one, two, _ in found) else []


def contrasted(roots: list[torch.Tensor]) -> set[int]:
    """ids of last weights of which a loss adds one output, and takes another away, in two passes of the network."""
    signs: dict[int, dict[int, set[Any]]] = {}
    stack: list[tuple[Any, int]] = [(root.grad_fn, 1) for root in roots if root.grad_fn is not None]
    seen = set(stack)
    while stack and len(seen) < MOST:
        node, sign = stack.pop()
        name, inputs = node.name(), [each for each, _ in node.next_functions]
        if name in PRODUCTS:
            for weight in [w for each in inputs if each is not None and (w := weight_of(each)) is not None][-1:]:
                signs.setdefault(id(weight), {}).setdefault(sign, set()).add(node)
            continue
        below_it: list[tuple[Any, int]] = []
        if name in SUMS or name in IDENTITIES or name == "NegBackward0" or name.startswith(("Mean", "SumB", "Squeeze")):
            minus = {"SubBackward0": 1, "RsubBackward1": 0, "NegBackward0": 0}.get(name)
            below_it = [(each, -sign if i == minus else sign) for i, each in enumerate(inputs) if each is not None]
        elif name in ("MulBackward0", "DivBackward0"):
            constant, each = split(node, name, node.next_functions)
            if constant is not None and constant.device.type == "cpu" and constant.item():
                below_it = [(each, sign if constant.item() > 0 else -sign)]
        stack += [each for each in below_it if each not in seen]
        seen |= set(below_it)
    return {key for key, both in signs.items() if len(both) == 2 and not both[1] & both[-1]}


def compared(sides: list[Any], node: Any) -> Comparison:
    """node: that of the comparison, or the nearest above whose line is known."""
    one, two = (below(side)[0] if ends_in_networks(side) else set[int]() for side in sides)
    return one, two, handed_site(node, sides)


def is_reduction(node: Any) -> bool:
    """Whether it is a mean or sum over all, or over other dimensions than that of the samples."""
    name = node.name()
    return name in ("MeanBackward0", "SumBackward0") or (
        name in ("MeanBackward1", "SumBackward1") and not over_samples(node)
    )


def over_samples(node: Any) -> bool:
    dims = getattr(node, "_saved_dim", None)
    return dims is None or 0 in (dims if isinstance(dims, (tuple, list)) else (dims,))


def is_normalised(node: Any) -> bool:
    """Whether the last thing that was done to it is a division by its own norm."""
    while node is not None and node.name() in IDENTITIES:
        node = node.next_functions[0][0]
    return node is not None and node.name() == "DivBackward0" and len(inputs_of(node)) == 2


def ends_in_networks(node: Any) -> bool:
    """Whether nothing is between it and the last layers that depends on the other samples of the batch."""
    stack, seen = [node], {node}
    while stack:
        node = stack.pop()
        if node.name() in LAYERS or isinstance(variable(node), torch.nn.Parameter):
            continue
        norm = node.name().startswith(("LinalgVectorNorm", "Norm"))
        if node.name() not in PASSED or len(seen) > MOST or (norm and over_samples(node)) or takes_data(node):
            return False
        new = [each for each in inputs_of(node) if each not in seen]
        stack += new
        seen |= set(new)
    return True


def takes_data(node: Any) -> bool:
    """Whether it is a sum or product with what may differ from sample to sample, and no mask."""
    name = node.name()
    if len(inputs_of(node)) > 1 or not name.startswith(("AddB", "SubB", "RsubB", "MulB")):
        return False
    if not name.startswith("MulB") or is_packed(node):
        return True
    constant = node._saved_other if node.next_functions[0][0] is not None else node._saved_self
    return constant is not None and constant.numel() > 1 and len(constant.detach().flatten()[:MOST].unique()) > 2


def ratio_of_itself(root: Any) -> tuple[CallSite | None, set[int]] | None:
    """The line of a ratio of probabilities that is 1, of one network on both sides of it, and ids of its weights.

    The exponential of a difference that is zero, and whose gradients cancel: the older one of both was to be detached.
    """
    queue, seen = [root], {root}
    while queue and len(seen) < MOST:
        node = queue.pop()
        new = set(inputs_of(node)) - seen
        seen |= new
        queue += new
        if node.name() != "ExpBackward0" or is_packed(node) or [each.name() for each in new] != ["SubBackward0"]:
            continue
        result, sides = node._saved_result, inputs_of(new.pop())
        if len(sides) == 2 and result.numel() > 1 and bool(((result - 1).abs() < SAME).all()):
            one, two = (below(side)[0] for side in sides)
            if one == two and sides[0] is not sides[1] and is_same_function(*sides):
                return handed_site(node, sides), one
    return None


def is_same_function(one: Any, two: Any) -> bool:
    """Whether two graphs are of the same operations on the same inputs of networks.

    That their results agree is not enough: those of a layer that begins at zero do, whatever its inputs.
    """
    queue, seen, has_network = [(one, two)], {one}, False
    while queue and len(seen) < MOST:
        one, two = queue.pop()
        inputs = inputs_of(one), inputs_of(two)
        if one.name() != two.name() or len(inputs[0]) != len(inputs[1]) or not saved_the_same(one, two):
            return False
        has_network |= one.name() in PRODUCTS
        queue += [pair for pair in zip(*inputs, strict=True) if pair[0] not in seen]
        seen |= set(inputs[0])
    return has_network


def saved_the_same(one: Any, two: Any) -> bool:
    """Whether two nodes have kept the same values for the backward pass: tensors, dimensions, indices."""
    for name in (n for n in dir(one) if n.startswith("_saved_")):
        pairs: list[tuple[Any, Any]] = [(getattr(one, name), getattr(two, name, None))]
        if all(isinstance(each, (list, tuple)) for each in pairs[0]):
            pairs = list(zip(*pairs[0], strict=False))
        for a, b in pairs:
            if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
                if a.shape != b.shape or not torch.equal(a, b):
                    return False
            elif isinstance(a, torch.Tensor) or isinstance(b, torch.Tensor) or a != b:
                return False
    return True
