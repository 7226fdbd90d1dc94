"""What losses over classes are given, beyond the kind of number: activations that are applied twice, and classes in
another dimension."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from gradlab.watch.graphs.advantages import inputs_of
from gradlab.watch.graphs.loss_graph import PRODUCTS, is_packed
from gradlab.watch.graphs.networks_between import weight_of

VIEWS = ("View", "ReshapeAlias", "UnsafeView")
ACTIVATIONS = {"Sigmoid": "a sigmoid", "Softmax": "a softmax", "Relu": "a ReLU"}
"""Beginnings of the names of nodes behind which no probability is free."""
CUT = 0.25
"""Share of the outputs; of those of a layer before its first updates half are below 0."""
TURNS = ("ToCopy", *VIEWS, "Squeeze", "Unsqueeze", "T", "Transpose", "Permute", "Select", "Slice", "Index", "Gather")
EPSILONS = ("Add", "Sub", "Clamp", "Log", "ClampMin")


def down(node: Any, passed: Sequence[str]) -> Any:
    """The first node below whose name does not begin like one of them."""
    while node is not None and node.name().startswith(tuple(f"{name}Backward" for name in passed)):
        node = next((each for each, _ in node.next_functions if each is not None), None)
    return node


def activated_twice(given: Tensor) -> str:
    """Of probabilities or their logarithms: whether what they come from has passed another activation before."""
    last = down(given.grad_fn, (*TURNS, *EPSILONS))
    if last is None or not last.name().startswith(("SoftmaxBackward", "LogSoftmaxBackward", "SigmoidBackward")):
        return ""
    before = down(last.next_functions[0][0], TURNS)
    found = [what for name, what in ACTIVATIONS.items() if before is not None and before.name().startswith(f"{name}B")]
    kind = "sigmoid" if last.name().startswith("Sigmoid") else "softmax"
    if found == ["a ReLU"] and kind == "softmax" and not cuts_classes(before):
        return ""
    return f"the {kind} that its input comes from is given the output of {found[0]}" if found else ""


def cuts_classes(relu: Any) -> bool:
    """Whether a ReLU sets outputs of a layer to 0 that has weights of its own for each class, and so takes the gradient
    of classes that are to grow. Scores that are made to be 0 or more, as similarities, can say what they have to."""
    layer = down(relu.next_functions[0][0], TURNS)
    if layer is None or is_packed(relu) or layer.name() not in PRODUCTS:
        return False
    weights = [weight for each in inputs_of(layer) if (weight := weight_of(each)) is not None]
    many = any(weight.dim() > 1 and min(weight.shape[:2]) > 1 for weight in weights)
    return many and (relu._saved_result == 0).float().mean().item() > CUT


def scrambled(given: Tensor) -> str:
    """Of (N, C) or (N, C, ...): whether a view has made the dimension of the classes of others."""
    node: Any = given.grad_fn
    if node is None or not node.name().startswith(tuple(f"{name}Backward" for name in VIEWS)):
        return ""
    before, now = tuple(getattr(node, "_saved_self_sym_sizes", ())), tuple(given.shape)
    if len(before) < 3 or before == now:
        return ""
    words = f"a view of {before} as {now} exchanges no dimensions: the classes are mixed with others"
    if len(now) == len(before) == 3 and now == (before[0], before[2], before[1]) and now[1] != now[2]:
        return words
    below = node.next_functions[0][0]
    channels = below is not None and below.name().startswith("ConvolutionBackward")
    rows = len(now) == 2 and now[1] == before[1] and math.prod(before[2:]) > 1
    return words if rows and (channels or before[-1] % now[1]) else ""
