"""Weights of the models, and of losses, that get gradients, and that no optimizer holds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

from gradlab.watch.graphs.loss_graph import MAX_NODES, PRODUCTS, variable
from gradlab.watch.output.update_metrics import elements
from gradlab.watch.tracking.optimizer_tracker import OptimizerTracker

EVERY = 4
"""One of so many backward passes is looked at."""
AGAIN = 32
"""Backward passes after which weights are looked for again: layers may be added, or replaced, while the loop runs."""
LEAST = 4
"""Of these, as many must reach a weight."""
UPDATES = 10
"""Updates of other weights of the model."""

OF_MODULES = set(vars(nn.Module()))
"""Attributes that every module has."""

Before = list[tuple[torch.Tensor, "torch.Tensor | None", int]]
"""(weight, its gradient, version counter of that) before a backward pass."""


class UnheldWeights:
    """Weights that are not frozen, reached by backward passes, and moved by nothing."""

    def __init__(self, models: Sequence[nn.Module], trackers: list[OptimizerTracker]) -> None:
        self.models, self.trackers = models, trackers
        self.weights: list[torch.Tensor] | None = None
        """Those that no optimizer holds; None if they are to be found again."""
        self.reached: dict[torch.Tensor, int] = {}
        """Weight -> passes that reached it."""
        self.first: dict[torch.Tensor, tuple[int, torch.Tensor]] = {}
        """Weight -> version counter and elements when it was reached first."""
        self.of_losses: list[torch.Tensor] = []
        """Weights of no model that are among the terms of losses, as those of several tasks or a temperature are."""

    def before(self, num_backwards: int) -> Before:
        if num_backwards % EVERY:
            return []
        if self.weights is None or num_backwards % AGAIN == 0:
            self.weights = self.find()
        return [(p, p.grad, -1 if p.grad is None else p.grad._version) for p in self.weights if p.requires_grad]

    def after(self, before: Before) -> None:
        for p, old, version in before:
            if p.grad is not None and (p.grad is not old or p.grad._version != version):
                self.reached[p] = self.reached.get(p, 0) + 1
                if p not in self.first:
                    self.first[p] = p._version, elements(p).clone()

    def find(self) -> list[torch.Tensor]:
        held = ids(p for t in self.trackers for group in t.optimizer.param_groups for p in group["params"])
        parts = [p for m in self.models for _, p in weights_of(m)]
        everything = {id(p): p for p in [*parts, *self.of_losses]}
        return [p for key, p in everything.items() if key not in held and not hasattr(p, "to_local")]

    def note_terms(self, roots: list[torch.Tensor]) -> None:
        """Find the weights in the graph of a loss that belong to no model.

        If some of them are below a product of activations and weights, and no single factor as a temperature is, they
        are those of a network that is left as it is, as the judge of a perceptual loss: then none is noted.
        """
        if not self.models:
            return
        known = ids(
            [*(p for m in self.models for _, p in weights_of(m)), *(p for t in self.trackers for p in t.params)]
        )
        terms, products = leaves([root.grad_fn for root in roots])
        others, _ = leaves([each for node in products for each, _ in node.next_functions], through_products=True)
        others = [p for p in others if id(p) not in known]
        if all(p.numel() == 1 and p.dim() < 2 for p in others):
            noted = known | ids(self.of_losses)
            new = list({id(p): p for p in [*terms, *others] if id(p) not in noted}.values())
            self.of_losses += new
            self.weights = None if new else self.weights

    def note_differentiated(self, inputs: set[int]) -> None:
        """What `torch.autograd.grad` was asked for is a probe, as the factor 1 of invariant risk minimisation is."""
        self.of_losses = [p for p in self.of_losses if id(p) not in inputs]

    def names(self) -> dict[torch.Tensor, str]:
        """The names of all weights; those of losses have their shapes."""
        of_losses = {p: f"a parameter of the loss, of shape {tuple(p.shape)}" for p in self.of_losses}
        return of_losses | {p: name for m in self.models for name, p in weights_of(m)}

    def at_end(self, starved: bool) -> Iterator[tuple[OptimizerTracker, list[torch.Tensor]]]:
        """For each model of which other weights are stepped, or that is in training mode: an optimizer, and the weights
        without one.

        starved: an optimizer has trained nothing, which is the mistake if it was meant for that model.
        """
        found = {id(p): p for p in self.find() if self.reached.get(p, 0) >= LEAST and p.requires_grad and self.still(p)}
        for model in self.models:
            own = ids(p for _, p in weights_of(model))
            stepped = [t for t in self.trackers if t.attempts >= UPDATES]
            whole = model.training and not starved
            tracker = next((t for t in stepped if t.ids & own), stepped[0] if stepped and whole else None)
            if tracker is not None and (weights := [found.pop(key) for key in list(found) if key in own]):
                yield tracker, weights
        tracker = next((t for t in self.trackers if t.attempts >= UPDATES), None)
        if tracker is not None and (weights := [p for p in self.of_losses if id(p) in found]):
            yield tracker, weights

    def still(self, p: torch.Tensor) -> bool:
        """Whether a weight is what it was."""
        version, before = self.first[p]
        return p._version == version and torch.equal(elements(p), before)


def weights_of(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Names and parameters of a model, and of modules that it keeps in plain lists, of which PyTorch does not know."""
    own = dict(model.named_parameters())
    yield from own.items()
    known = ids(own.values())
    for prefix, _, key, value in hiding_attributes(model):
        each = hidden(value, f"{prefix}.{key}".removeprefix("."))
        yield from ((name, p) for name, p in each if id(p) not in known)


def hiding_attributes(model: nn.Module) -> Iterator[tuple[str, nn.Module, str, Any]]:
    """Prefixes of the names of modules, these, and names and values of their plain lists and dictionaries."""
    for prefix, part in model.named_modules():
        for key, value in vars(part).items():
            if key not in OF_MODULES and isinstance(value, (list, tuple, dict)):
                yield prefix, part, key, value


def keeper_of(models: Sequence[nn.Module], weight: torch.Tensor) -> tuple[nn.Module, str] | None:
    """The module that hides a weight in a plain list or dictionary, and the attribute; None if it is not hidden."""
    if any(weight is p for model in models for p in model.parameters()):
        return None
    kept = ((part, key, value) for model in models for _, part, key, value in hiding_attributes(model))
    return next(((part, key) for part, key, value in kept if any(weight is p for _, p in hidden(value, key))), None)


def hidden(kept: Any, name: str) -> Iterator[tuple[str, torch.Tensor]]:
    for i, each in kept.items() if isinstance(kept, dict) else enumerate(kept):
        if isinstance(each, nn.Parameter):
            yield f"{name}[{i!r}]", each
        elif isinstance(each, nn.Module) and each.training:
            yield from each.named_parameters(f"{name}[{i!r}]")


def leaves(nodes: Iterable[Any], through_products: bool = False) -> tuple[list[torch.Tensor], list[Any]]:
    """Parameters above the products of activations and weights in a graph, and these products."""
    queue = [node for node in nodes if node is not None]
    seen, products = set(queue), []
    found: list[torch.Tensor] = []
    while queue and len(seen) < MAX_NODES:
        node = queue.pop()
        if node.name() in PRODUCTS and not through_products:
            products.append(node)
            continue
        if isinstance(p := variable(node), nn.Parameter):
            found.append(p)
        inputs = {each for each, _ in node.next_functions if each is not None} - seen
        seen |= inputs
        queue += inputs
    return found, products


def ids(params: Iterable[torch.Tensor]) -> set[int]:
    return {id(p) for p in params}
