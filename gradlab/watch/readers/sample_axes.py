"""Recurrent and attention layers that take the steps of a sequence for samples, since `batch_first` is missing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from gradlab.watch.call_site import CallSite, call_site, format_site
from gradlab.watch.events import Violation
from gradlab.watch.followed_update import argument, tensors_in
from gradlab.watch.graphs.loss_graph import nodes_below
from gradlab.watch.making_lines import layer_line
from gradlab.watch.tracking.optimizer_tracker import OptimizerTracker

RECURRENT = {"lstm", "gru", "rnn_tanh", "rnn_relu"}
ATTENTION = "multi_head_attention_forward"
TURNS = {"transpose", "permute", "swapaxes", "swapdims", "movedim", "moveaxis", "__get__", "adjoint"}
"""Functions that exchange dimensions."""
ALL = slice(None)


class SampleAxes:
    """Follows what such layers return in one update, with the samples in the second dimension.

    Whoever has put them there reads the last step of all samples, and not all steps of one sample: nothing is said if
    more than one of them is read, or if the losses have not as many targets as the layer has steps.
    """

    def __init__(self, models: Sequence[nn.Module]) -> None:
        self.models = models
        self.forget()

    def forget(self) -> None:
        self.layers: Any = WeakTensorKeyDictionary()
        """Tensor whose second dimension are the samples -> number of the layer that it comes from."""
        self.sites: list[CallSite | None] = []
        """Lines of the calls of layers."""
        self.weights: list[Tensor] = []
        """A weight of each."""
        self.shapes: list[tuple[int, int]] = []
        """Steps and samples of each."""
        self.targets: set[int] = set()
        """Numbers of them that losses were computed of."""
        self.read: dict[int, set[tuple[CallSite | None, Any]]] = {}
        """Number of a layer -> lines that read one sample of what it returns, and which."""
        self.nodes: dict[int, list[Any]] = {}
        self.found: dict[int, CallSite | None] = {}

    def begin(self, tracker: OptimizerTracker, without: list[Tensor], flat: list[Tensor]) -> bool:
        self.forget()
        return tracker.attempts == 1

    def follow(self, name: str, func: Any, args: list[Any], kwargs: dict[str, Any], result: Any) -> None:
        if (name in RECURRENT and args[-1] is False and args[0].dim() == 3) or name == ATTENTION:
            out = result[0]
            if out.dim() == 3 and min(out.shape[:2]) > 1 and out.requires_grad:
                self.layers[out] = len(self.sites)
                self.sites.append(call_site())
                self.weights.append(next(each for each in tensors_in(args) if isinstance(each, nn.Parameter)))
                self.shapes.append((out.shape[0], out.shape[1]))
            return
        if name.endswith("_loss") or "entropy" in name:
            self.targets |= {len(each) for each in tensors_in(args[:2]) if each.dim()}
        known = [(each, self.layers[each]) for each in tensors_in(args[:2]) if each in self.layers]
        if not known:
            return
        given, layer = known[0]
        if isinstance(result, Tensor) and (index := read_of(name, given, args, kwargs)) is not None:
            self.read.setdefault(layer, set()).add((call_site(), index))
            self.nodes.setdefault(layer, []).append(result.grad_fn)
        elif name not in TURNS:
            for each in tensors_in([result]):
                if each.requires_grad and each.dim() == 3 and each.shape[:2] == given.shape[:2]:
                    self.layers[each] = layer

    def at_backward(self, roots: list[Tensor]) -> None:
        read = {layer: next(iter(each)) for layer, each in self.read.items() if len(each) == 1}
        if not read:
            return
        seen = set(nodes_below(root.grad_fn for root in roots))
        for layer, (site, _) in read.items():
            if any(node in seen for node in self.nodes[layer]):
                self.found[layer] = site
        self.nodes = {layer: [] for layer in self.nodes}  # a node keeps its graph

    def end(self) -> Iterator[Violation]:
        for layer, site in self.found.items():
            steps, samples = self.shapes[layer]
            if steps in self.targets and samples not in self.targets:
                called, made = self.sites[layer], layer_line(self.models, self.weights[layer], self.sites[layer])
                words = f"dimension 1 of what it returns is read at {format_site(site)}"
                words += f", and the layer is called at {format_site(called)}" if made else ""
                yield "samples-as-steps", made or called, words
                break
        self.forget()


def read_of(name: str, given: Tensor, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Which entry of the second dimension is read; None of other calls."""
    if name == "__getitem__" and isinstance(args[1], tuple) and len(args[1]) > 1:
        first, second = args[1][:2]
        return second if isinstance(first, slice) and first == ALL and type(second) is int else None
    place = argument(args, kwargs, 1, "dim")
    if name == "select" and place in (1, -2):
        return argument(args, kwargs, 2, "index")
    return None
