"""Divergences of Gaussians among the terms of a loss."""

from __future__ import annotations

import math
from typing import Any

import torch

from gradlab.watch.graphs.advantages import inputs_of
from gradlab.watch.graphs.loss_graph import IDENTITIES, MAX_TERMS, is_packed, split

SAMPLES = 512
"""Of a batch whose covariance is looked at."""
ERRORS = {"MseLossBackward0", "BinaryCrossEntropyBackward0", "BinaryCrossEntropyWithLogitsBackward0"}


def divergence_weight(node: Any) -> float:
    """Of a mean over samples of sums of Gaussians' divergences: how often it holds the divergence itself; 0 of others.

    That is half of a variance and a squared mean, minus the variance's logarithm, and nothing else but constants.
    """
    if not node.name().startswith("MeanBackward"):
        return 0.0
    outer = 1.0
    while inputs_of(node) and node.name().startswith(("MeanBackward", "MulBackward", "DivBackward", "NegBackward")):
        if node.name().startswith(("Mul", "Div")):
            constant, _ = split(node, node.name(), node.next_functions)
            if constant is None or constant.device.type != "cpu" or not (value := abs(constant.item())):
                return 0.0
            outer *= value if node.name()[0] == "M" else 1 / value
        node = inputs_of(node)[0]
    if node.name() != "SumBackward1":
        return 0.0
    return outer * share_of(inputs_of(node)[0])


def share_of(node: Any) -> float:
    """How often numbers hold the Gaussian divergence of each element; 0 of others."""
    factors, ends = factors_of(node)
    for end in ends:
        for below in inputs_of(end) if end.name() in ("ExpBackward0", "LogBackward0") else []:
            variance = end if end.name() == "ExpBackward0" else below
            others = ends - {end, below} - factors_of(below)[1]
            means = [each for each in others if is_square(each) and same(factors[each], factors[variance])]
            if below in factors and same(factors[below], -factors[end]) and len(means) == len(others) == 1:
                return 2 * abs(factors[variance])
    return 0.0


def summed_over(node: Any) -> int | None:
    """Samples that divergences were summed over, element by element; None of others."""
    if node.name() != "SumBackward0":
        return None
    below = inputs_of(node)[0]
    below = inputs_of(below)[0] if below.name() == "SumBackward1" else below
    sizes = tuple(getattr(below, "_saved_self_sym_sizes", ())) or tuple(node._saved_self_sym_sizes)
    return sizes[0] if len(tuple(node._saved_self_sym_sizes)) > 1 and share_of(below) else None


def averaged_over(node: Any) -> int | None:
    """Samples that an error was averaged over; None of others."""
    name, below = node.name(), (inputs_of(node) or [None])[0]
    if name == "SumBackward0" and below is not None and below.name() == "MeanBackward1" and below._saved_dim[0] == 0:
        return int(below._saved_self_sym_sizes[0])
    if name == "MeanBackward0":
        sizes = tuple(node._saved_self_sym_sizes)
        return int(sizes[0]) if sizes else None
    if getattr(node, "_saved_reduction", None) == 1 and not is_packed(node):
        return int(node._saved_self.shape[0]) if node._saved_self.dim() else None
    return None


def use_of_latents(error: Any) -> float:
    """The weight of a divergence beside a mean of errors from which latents cost more than they save.

    A mean over D elements beside it is the likelihood of Gaussians with a noise of D / 2 times that weight, and a
    latent is of use to directions of the targets with a larger variance alone. (The divergence of two Bernoullis is at
    most their squared distance by the variance of the one.)
    """
    if error.name() not in ERRORS or is_packed(error):
        return math.inf
    targets = error._saved_target.detach()[:SAMPLES].float().flatten(1)
    away = targets - targets.mean(0)
    if error.name() != "MseLossBackward0":
        away /= (targets.mean(0) * (1 - targets.mean(0))).clamp_min(1e-6).sqrt()
    largest = torch.linalg.eigvalsh(away @ away.T)[-1].item() / len(away)
    return float(2 * largest / targets.shape[1])


def factors_of(node: Any) -> tuple[dict[Any, float], set[Any]]:
    """Parts of a sum, with their factors, and those that are no sums or multiples; nothing of an unknown factor."""
    stack, factors, ends = [(node, 1.0)], dict[Any, float](), set[Any]()
    while stack:
        node, factor = stack.pop()
        factors[node] = factors.get(node, 0.0) + factor
        name, inputs = node.name(), inputs_of(node)
        if len(factors) > MAX_TERMS or getattr(node, "_saved_alpha", 1) != 1:
            return {}, set()
        if name in ("AddBackward0", "SubBackward0", "RsubBackward1", "NegBackward0") or name in IDENTITIES:
            minus = {"SubBackward0": 1, "RsubBackward1": 0, "NegBackward0": 0}.get(name)
            terms = enumerate(each for each, _ in node.next_functions)
            stack += [(each, -factor if i == minus else factor) for i, each in terms if each is not None]
        elif name in ("MulBackward0", "DivBackward0") and len(inputs) == 1:
            constant, below = split(node, name, node.next_functions)
            if constant is None or constant.device.type != "cpu" or not (value := constant.item()):
                return {}, set()
            stack.append((below, factor / value if name == "DivBackward0" else factor * value))
        else:
            ends.add(node)
    return factors, ends


def is_square(node: Any) -> bool:
    inputs = inputs_of(node)
    twice = node.name() == "MulBackward0" and len(inputs) == 2 and inputs[0] is inputs[1]
    return twice or (node.name() == "PowBackward0" and node._saved_exponent == 2)


def same(one: float, two: float) -> bool:
    return math.isclose(one, two, rel_tol=1e-5)
