"""Records of single updates: what is measured of every parameter and module, copied to the host in one transfer."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import torch

from gradlab.measure.activations import FIELDS, Activations, by_execution, leaves
from gradlab.measure.monitor import Monitor
from gradlab.measure.rounded_off import given, narrow, rounded_off, some, still
from gradlab.measure.timing import Passes
from gradlab.update.gradients import Gradients, tensor_norms
from gradlab.update.layers import layers_of
from gradlab.update.recorder import Layers, Recorder

if TYPE_CHECKING:
    from gradlab.measure.memory import Memory


class Observed:
    """What can be recorded of a model, and in which updates."""

    def __init__(
        self,
        monitor: Monitor,
        model: torch.nn.Module,
        names: list[str],
        params: list[torch.Tensor],
        called: list[str],
        compiled: bool = False,
        dtensors: Sequence[torch.Tensor] = (),
    ) -> None:
        """names, params: P parameters. called: modules in the order of execution. compiled: by torch.compile.

        dtensors: where params are a rank's shards, what they are shards of.
        """
        self.monitor, self.model, self.names, self.params, self.compiled = monitor, model, names, params, compiled
        self.dtensors = dtensors
        self.modules = leaves(model, called)
        self.recurrent = [name for name in self.modules if isinstance(model.get_submodule(name), torch.nn.RNNBase)]
        layers, _ = layers_of(names)
        self.order = [layers[i] for i in by_execution(layers, called)]
        self.kept: list[torch.Tensor] = []
        """Elements of the parameters of a narrow type, as they were when steps were recorded last."""

    def header(self) -> dict[str, list[Any]]:
        """The first line of layers.jsonl: its columns with their shapes, and the layers in the order of execution."""
        relus = [n for n in self.recurrent if getattr(self.model.get_submodule(n), "nonlinearity", "") == "relu"]
        hooked = {"modules": self.modules, "recurrent": self.recurrent, "relus": relus}
        columns: dict[str, list[Any]] = {
            "names": self.names,
            "shapes": [list(p.shape) for p in self.dtensors or self.params],
            "order": self.order,
            "summed": summed(self.model, self.names),
        }
        return columns | {k: [] if self.compiled else v for k, v in hooked.items()}

    def record(self, update: int) -> Record | None:
        """What to record of this update, counted from 1."""
        m = self.monitor
        if not m.norms(update):
            return None
        cost = m.cost and not self.compiled  # counting tensors would run the model uncompiled
        counted = cost and update == 1 and not self.dtensors  # what autograd keeps would include gathered weights
        return Record(self, steps=m.steps(update), elements=m.elements(update), bytes=counted, times=cost)


def summed(model: torch.nn.Module, names: Sequence[str]) -> list[bool]:
    """Whether each parameter's module takes sums over its rows: a leaf that looks none up, or attention.

    Those of containers, such as learnt positions, are added to something.
    """
    modules = dict(model.named_modules())
    owners = [modules.get(name.rpartition(".")[0]) for name in names]  # None of a watched model's other name
    return [owner is None or sums(owner) for owner in owners]


def sums(owner: torch.nn.Module) -> bool:
    if isinstance(owner, torch.nn.Embedding | torch.nn.EmbeddingBag):
        return False
    return isinstance(owner, torch.nn.MultiheadAttention) or not any(owner.children())


class Record(Recorder):
    """Gradient norms; optionally how far each parameter moves, and statistics of elements and activations."""

    def __init__(
        self,
        observed: Observed,
        *,
        steps: bool = False,
        elements: bool = False,
        bytes: bool = False,
        times: bool = False,
    ) -> None:
        self.names, self.params, self.model = observed.names, observed.params, observed.model
        self.observed = observed
        self.steps, self.elements = steps, elements
        hooked = not observed.compiled  # a compiled model ignores hooks registered later
        self.activations = Activations(observed.model, observed.modules) if elements and hooked else None
        self.memory = memory_of(observed.model) if bytes else None
        self.passes = Passes(observed.model, observed.params[0].device) if times and not bytes else None
        self.recurrent = observed.recurrent if steps and hooked else []
        self.through_time: dict[str, torch.Tensor] = {}
        self.measured: list[tuple[str, list[str], torch.Tensor]] = []
        self.before: list[torch.Tensor] = []
        self.grads: dict[str, torch.Tensor] = {}
        self.norms_of: Callable[[list[torch.Tensor]], torch.Tensor] = tensor_norms

    @contextmanager
    def forward(self, window: Sequence[Any] = ()) -> Iterator[None]:
        with ExitStack() as stack:
            if self.memory is not None:
                stack.enter_context(self.memory.counting(window))
            if self.passes is not None:
                stack.enter_context(self.passes.timing())
            if self.activations is not None:
                stack.enter_context(self.activations.watching())
            for name in self.recurrent:
                module: Any = self.model.get_submodule(name)
                stack.callback(module.register_forward_pre_hook(self.time_hook(name)).remove)
            yield

    def time_hook(self, name: str) -> Callable[[Any, Any], Any]:
        """Record the norm at each time step of the gradient of a recurrent module's inputs."""

        def before(module: Any, inputs: tuple[Any, ...]) -> Any:
            x = inputs[0] if inputs else None  # inputs given by keyword are not recorded
            if not isinstance(x, torch.Tensor) or x.dim() != 3 or not torch.is_grad_enabled():
                return None
            if not x.requires_grad:
                x = x.detach().requires_grad_()
            time = 1 if module.batch_first else 0

            def after(grad: torch.Tensor) -> None:
                dims = tuple(d for d in range(3) if d != time)
                self.through_time[name] = torch.linalg.vector_norm(grad, dim=dims, dtype=torch.float64)

            x.register_hook(after)
            return (x, *inputs[1:])

        return before

    def gradients(self, gradients: Gradients) -> None:
        names = gradients.names
        self.measured.append(("grad/layer", names, gradients.norms))
        if self.elements:
            for name, values in gradients.elements().items():
                self.measured.append((name, names, values))
        if self.steps:
            self.grads = dict(zip(gradients.names, gradients.tensors, strict=True))
            self.before = [p.detach().clone() for p in self.params]
            self.norms_of = gradients.norms_of
            self.measured.append(("param/norm", self.names, self.norms_of(self.before)))

    def stepped(self) -> None:
        if self.steps:
            torch._foreach_sub_(self.before, [p.detach() for p in self.params])
            self.measured.append(("update/norm", self.names, self.norms_of(self.before)))
            self.look_for_rounded_off()
            self.before, self.grads, self.norms_of = [], {}, tensor_norms

    def look_for_rounded_off(self) -> None:
        """Measure how many elements of narrow parameters the step left unchanged though it should have moved them."""
        at = [i for i, p in enumerate(self.params) if narrow(p)]
        if not at or self.observed.dtensors:
            return
        names, moved, device = [self.names[i] for i in at], [self.before[i] for i in at], self.params[0].device
        grads = [self.grads.get(name) for name in names]
        self.measured += [
            ("update/given", names, given(grads, device)),
            ("update/lost", names, rounded_off(moved, grads, device)),
        ]
        now = [some(self.params[i]) for i in at]
        if self.observed.kept:
            self.measured.append(("update/still", names, still(self.observed.kept, now)))
        self.observed.kept = now

    def pack(self) -> torch.Tensor:
        parts = [values for _, _, values in self.measured]
        if self.activations is not None:
            parts.append(self.activations.table(parts[0].device).flatten())
        for name in self.recurrent:
            nothing = torch.full((1,), torch.nan, dtype=torch.float64, device=parts[0].device)
            parts.append(time_ratio(self.through_time.get(name, nothing)).reshape(1))
        return torch.cat(parts)

    def unpack(self, values: list[float]) -> Layers:
        layers: Layers = {}
        at = 0
        for key, names, _ in self.measured:
            column = dict(zip(names, values[at : at + len(names)], strict=True))
            layers[key] = [column.get(name) for name in self.names]
            at += len(names)
        if self.activations is not None:
            for i, key in enumerate(FIELDS):
                column_of = values[at + i : at + len(FIELDS) * len(self.activations.names) : len(FIELDS)]
                layers[f"activation/{key}"] = [None if v != v and i > 1 else v for v in column_of]
            at += len(FIELDS) * len(self.activations.names)
        if self.recurrent:
            layers["time/ratio"] = values[at:]
        if "update/norm" in layers:
            layers["update/ratio"] = ratios(layers["update/norm"], layers["param/norm"])
            layers["grad/ratio"] = ratios(layers["grad/layer"], layers["param/norm"])
        return layers

    def metrics(self) -> dict[str, float]:
        return self.memory.bytes if self.memory else self.passes.seconds() if self.passes else {}


def time_ratio(norms: torch.Tensor) -> torch.Tensor:
    """() mean norm of the last tenth of the time steps over that of the first tenth: (T,) -> ()."""
    tenth = max(1, norms.numel() // 10)
    return norms[-tenth:].mean() / norms[:tenth].mean()


def ratios(above: list[Any], below: list[Any]) -> list[float | None]:
    """Element by element; None where the denominator is zero, as for a bias that has not moved."""
    return [a / b if a is not None and b else None for a, b in zip(above, below, strict=True)]


def totals(layers: Layers) -> dict[str, float]:
    """Over all parameters: how far they moved in this update, relative to their norm.

    Of those of a narrow type, the share of elements with a gradient that it left unchanged, and of all elements that
    are what they were at the record before.
    """
    if "update/norm" not in layers:
        return {}
    moved, norm = (math.hypot(*layers[name]) for name in ("update/norm", "param/norm"))
    found = {"param/norm": norm, "update/ratio": moved / norm if norm else math.inf if moved else 0.0}
    weights = [count or 0.0 for count in layers.get("update/given", [])]
    if whole := math.fsum(weights):
        found["update/lost"] = math.fsum(count or 0.0 for count in layers["update/lost"]) / whole
        if "update/still" in layers:
            parts = zip(layers["update/still"], weights, strict=True)
            found["update/still"] = math.fsum((share or 0.0) * weight for share, weight in parts) / whole
    return found


def memory_of(model: torch.nn.Module) -> Memory:
    """Imported here: the module loads PyTorch, and the configuration is checked before that."""
    from gradlab.measure.memory import Memory

    return Memory(model)
