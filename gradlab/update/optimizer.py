"""Optimizers, and the one way in which an update is applied or skipped."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from math import inf
from typing import TYPE_CHECKING, Any, ClassVar, Optional

import torch

from gradlab.base.importing import load_object
from gradlab.base.option import Invalid, one_of, option, require
from gradlab.update.groups import Group, grouped

if TYPE_CHECKING:
    from torch import Tensor  # at run time it would import what is imported lazily


SCALES = ["lr_scale", "lr_decay"]
"""Settings of a group that are gradlab's, and not the optimizer's."""
OWN = {"params", "names", "label", "lr_scale"}
"""What a group holds beside what its optimizer knows."""


@dataclass
class OptimizerOption:
    """Base of the options: what all optimizers share."""

    lr: float = 1e-3
    """Learning rate, before the schedule's factor."""
    weight_decay: float = 0.0
    """Weight decay on all parameters."""
    fused: Optional[bool] = None
    """One kernel for all parameters; null: where PyTorch has one (3x faster than foreach, on a CPU too)."""
    foreach: Optional[bool] = None
    """Batched operations where it is not fused; null: PyTorch's own choice."""
    groups: list[Any] = field(default_factory=list)
    """Settings of the parameters whose names match: [{match: "norm|bias", weight_decay: 0, lr_scale: 0.1}]."""

    fuses: ClassVar[bool] = True
    """Whether `make` takes `fused`."""
    divides: ClassVar[bool] = True
    """Whether it can step a parameter of which each rank holds a part."""
    elementwise: ClassVar[bool] = False
    """Whether an element's step depends on its own gradients alone, so that a part of a parameter steps by itself."""

    def __post_init__(self) -> None:
        require(0 < self.lr < inf, "lr", self.lr, "> 0 and finite")
        require(0 <= self.weight_decay < inf, "weight_decay", self.weight_decay, ">= 0 and finite")
        require(not (self.fused and self.foreach), "foreach", self.foreach, "false or null where fused=true")

    def build(
        self, parameters: Iterable[torch.nn.Parameter], names: Sequence[str] = (), ends: Sequence[Tensor] = ()
    ) -> torch.optim.Optimizer:
        """The optimizer of all parameters that need a gradient, on the device where they are.

        names: of those parameters, for `groups`. ends: embeddings, and the head.
        """
        params = [p for p in parameters if p.requires_grad]
        fused = self.fused
        if fused is None and not self.foreach:
            fused = self.fuses and all(p.is_floating_point() and p.device.type in ("cpu", "cuda") for p in params)
        # On CUDA the rate is a tensor: the schedule moves it without waiting for the device.
        lr = torch.tensor(self.lr, device=params[0].device) if fused and params[0].is_cuda else self.lr
        shared = {"lr": lr, "weight_decay": self.weight_decay, "fused": fused or None, "foreach": self.foreach}
        if not self.groups:
            return self.make(params, shared)
        named = dict(zip(names, params, strict=True))
        groups = [self.group(one, named, lr) for one in grouped(self.groups, names)]
        optimizer = self.make(groups, shared)
        known = optimizer.defaults.keys()
        for name in (name for group in groups for name in group.keys() - OWN - known):
            raise Invalid("groups", name, f"no such setting; there are lr_scale, lr_decay, {', '.join(known)}")
        return optimizer

    def join(
        self,
        optimizer: torch.optim.Optimizer,
        names: Sequence[str],
        ends: Sequence[Tensor],
        name: str,
        p: torch.nn.Parameter,
    ) -> None:
        """Let the optimizer step a parameter that was frozen when it was built, as others of its settings.

        names: of those that were not. ends: see `build`.
        """
        fresh = replace(self, groups=[]).build([p], [name], ends)
        made = fresh.param_groups[0]
        if self.groups:
            own = next(one for one in grouped(self.groups, [*names, name]) if name in one.names)
            made |= self.group(own._replace(names=[name]), {name: p}, made["lr"])
        for group in optimizer.param_groups:
            if all(group.get(key) == made.get(key) for key in ("label", "muon")):
                group["params"].append(p)
                group.get("names", []).append(name)
                break
        else:
            optimizer.add_param_group(made)
        optimizer.state.update(fresh.state)

    def group(self, group: Group, named: dict[str, torch.nn.Parameter], lr: Any) -> dict[str, Any]:
        """As PyTorch's optimizers take it; a rate that is a tensor is the group's own."""
        lr = lr.clone() if isinstance(lr, torch.Tensor) else lr
        own = {"params": [named[name] for name in group.names], "lr": lr, "names": group.names, "label": group.label}
        settings = {name: value for name, value in group.settings.items() if name != "lr_scale"}
        return own | {"lr_scale": group.settings.get("lr_scale", 1.0)} | self.checked(settings)

    def checked(self, settings: dict[str, Any]) -> dict[str, Any]:
        """A group's settings as PyTorch names them, checked as the option's own fields are."""
        shared = {"lr", "fused", "foreach", "groups", "target", "kwargs", "adjust", "adamw"}
        known = [f.name for f in fields(self) if f.name not in shared]
        for name, value in settings.items():
            if name not in known:
                raise Invalid(f"groups.{name}", value, f"no such setting; there are {', '.join(SCALES + known)}")
            if type(value) is not bool and isinstance(getattr(self, name), bool):
                raise Invalid(f"groups.{name}", value, "must be true or false")
            if type(value) not in (int, float, bool):
                raise Invalid(f"groups.{name}", value, "must be a number")
        try:
            replace(self, **settings)
        except Invalid as error:
            raise Invalid(f"groups.{error.field}", error.given, error.allowed) from None
        return settings

    def make(self, params: Any, shared: dict[str, Any]) -> torch.optim.Optimizer:
        """params: parameters, or groups of them, as PyTorch's optimizers take them."""
        raise NotImplementedError

    def decays(self, rates: float, way: float, slope: float) -> float:
        """How many times a run's weight decay alone would divide the weights by e.

        rates: the sum of its learning rates. way: of the sizes of its updates, each over the weights'. slope: the
        usual norm of the gradient over that of the weights.
        """
        return rates * self.weight_decay

    def moments(self) -> tuple[str, ...]:
        """Names of the state per element, as in torch.optim; it starts at zero."""
        raise NotImplementedError

    def move_(self, params: Tensor, grads: Tensor, moments: list[Tensor], lr: Tensor, applied: Tensor) -> None:
        """Many runs' update at once, by the rule of `make`'s optimizer; fields may be (L,) tensors.

        params, grads, moments: (L, N), changed in place, the gradients too. lr: (L,) float64. applied: (L,) int64, the
        updates applied before this one.
        """
        raise NotImplementedError

    def decay_(self, params: Tensor, grads: Tensor) -> None:
        """Add the gradient of half the squared norm of the weights, times weight_decay."""
        if isinstance(self.weight_decay, torch.Tensor) or self.weight_decay:
            grads.add_(params * column(self.weight_decay))


@option("optimizer", "sgd")
@dataclass
class SGD(OptimizerOption):
    """Stochastic gradient descent with momentum."""

    elementwise = True
    lr: float = 0.1
    momentum: float = 0.9
    """Momentum; 0 for none."""
    nesterov: bool = False
    """Nesterov's momentum."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 <= self.momentum < 1, "momentum", self.momentum, "in [0, 1)")
        require(self.momentum > 0 or not self.nesterov, "nesterov", self.nesterov, "false where momentum=0")

    def make(self, params: Any, shared: dict[str, Any]) -> torch.optim.Optimizer:
        optimizer = torch.optim.SGD(params, momentum=self.momentum, nesterov=self.nesterov, **shared)
        begin_momentum(optimizer)
        return optimizer

    def decays(self, rates: float, way: float, slope: float) -> float:
        """Momentum adds it up."""
        return rates * self.weight_decay / (1 - self.momentum)

    def moments(self) -> tuple[str, ...]:
        return ("momentum_buffer",) if isinstance(self.momentum, torch.Tensor) or self.momentum else ()

    def move_(self, params: Tensor, grads: Tensor, moments: list[Tensor], lr: Tensor, applied: Tensor) -> None:
        self.decay_(params, grads)
        step = grads
        for buffer in moments:
            buffer.mul_(column(self.momentum)).add_(grads)
            step = grads.add_(buffer * column(self.momentum)) if self.nesterov else buffer
        params.addcmul_(step, column(-lr))


@dataclass
class BetasOption(OptimizerOption):
    """What optimizers of two means share."""

    elementwise = True
    beta1: float = 0.9
    """Decay of the mean of gradients."""
    beta2: float = 0.999
    """Decay of the mean of squared gradients."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 <= self.beta1 < 1, "beta1", self.beta1, "in [0, 1)")
        require(0 <= self.beta2 < 1, "beta2", self.beta2, "in [0, 1)")

    def checked(self, settings: dict[str, Any]) -> dict[str, Any]:
        made = super().checked(settings)
        betas = made.pop("beta1", self.beta1), made.pop("beta2", self.beta2)
        return made | {"betas": betas}


@dataclass
class AdamOption(BetasOption):
    """What Adam and AdamW share."""

    eps: float = 1e-8
    """Added to the denominator."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.eps > 0, "eps", self.eps, "> 0")

    def moments(self) -> tuple[str, ...]:
        return "exp_avg", "exp_avg_sq"

    def move_(self, params: Tensor, grads: Tensor, moments: list[Tensor], lr: Tensor, applied: Tensor) -> None:
        self.decay_(params, grads)
        mean, square = moments
        mean.lerp_(grads, torch.as_tensor(column(1.0 - self.beta1), dtype=mean.dtype, device=mean.device))
        square.mul_(column(self.beta2)).addcmul_(grads, grads * column(1.0 - self.beta2))
        first, second = (1.0 - beta ** (applied.double() + 1) for beta in (self.beta1, self.beta2))  # (L,) float64
        step = torch.sqrt(square, out=grads).mul_(column(second.rsqrt())).add_(column(self.eps))
        params.addcmul_(torch.div(mean, step, out=grads), column(-lr / first))


@option("optimizer", "adam")
@dataclass
class Adam(AdamOption):
    """Adam (Kingma and Ba 2015)."""

    def decays(self, rates: float, way: float, slope: float) -> float:
        """Its part of the gradient is its part of the update, whose size does not depend on either."""
        return way * self.weight_decay / (self.weight_decay + slope) if self.weight_decay else 0.0

    def make(self, params: Any, shared: dict[str, Any]) -> torch.optim.Optimizer:
        return torch.optim.Adam(params, betas=(self.beta1, self.beta2), eps=self.eps, **shared)


@option("optimizer", "adamw")
@dataclass
class AdamW(AdamOption):
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019)."""

    weight_decay: float = 0.01

    def make(self, params: Any, shared: dict[str, Any]) -> torch.optim.Optimizer:
        return torch.optim.AdamW(params, betas=(self.beta1, self.beta2), eps=self.eps, **shared)

    def decay_(self, params: Tensor, grads: Tensor) -> None:
        """Decoupled from the gradient: see `move_`."""

    def move_(self, params: Tensor, grads: Tensor, moments: list[Tensor], lr: Tensor, applied: Tensor) -> None:
        params.mul_(column(1.0 - lr * self.weight_decay))
        super().move_(params, grads, moments, lr, applied)


@option("optimizer", "muon")
@dataclass
class Muon(AdamOption):
    """Muon (Jordan et al. 2024) for the matrices inside the model; AdamW for embeddings, the head and all else."""

    fuses = elementwise = divides = False
    lr: float = 5e-3
    weight_decay: float = 0.1
    beta2: float = 0.95
    momentum: float = 0.95
    """Decay of the mean of gradients that Muon makes orthogonal."""
    nesterov: bool = True
    """Nesterov's momentum, of Muon."""
    ns_steps: int = 5
    """Newton-Schulz iterations that make a matrix orthogonal."""
    adjust: str = "match_rms_adamw"
    """Muon's updates are as large as AdamW's at the same rate (match_rms_adamw), or orthogonal, times
    sqrt(max(1, rows / columns)) (original) or sqrt(rows / columns) (spectral_unclamped); then lr_scale sets AdamW's."""
    adamw: Optional[str] = None
    """Pattern of the names of the matrices that AdamW steps; null: embeddings, and the last matrix that runs."""

    move_ = OptimizerOption.move_

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 <= self.momentum < 1, "momentum", self.momentum, "in [0, 1)")
        require(1 <= self.ns_steps < 100, "ns_steps", self.ns_steps, "in [1, 100)")
        one_of("adjust", self.adjust, ("match_rms_adamw", "original", "spectral_unclamped"))
        try:
            re.compile(self.adamw or "")
        except re.error as error:
            raise Invalid("adamw", self.adamw, f"must be a regular expression: {error}") from None

    def build(
        self, parameters: Iterable[torch.nn.Parameter], names: Sequence[str] = (), ends: Sequence[Tensor] = ()
    ) -> torch.optim.Optimizer:
        params = [p for p in parameters if p.requires_grad]
        names = names or [f"parameter{i}" for i in range(len(params))]
        if self.adamw is not None:
            ends = [p for name, p in zip(names, params, strict=True) if re.search(self.adamw, name)]
        optimizer: Any = super().build(params, names)
        optimizer.divide(dict(zip(params, names, strict=True)), ends)
        return optimizer  # type: ignore[no-any-return]

    def make(self, params: Any, shared: dict[str, Any]) -> torch.optim.Optimizer:
        from gradlab.update.muon import MuonAdamW

        both = {"lr": shared["lr"], "weight_decay": self.weight_decay}
        muon = {"momentum": self.momentum, "nesterov": self.nesterov, "ns_steps": self.ns_steps}
        adamw = {"betas": (self.beta1, self.beta2), "eps": self.eps}
        return MuonAdamW(params, both | muon | {"adjust_lr_fn": self.adjust}, shared | adamw)


@option("optimizer", "adafactor")
@dataclass
class Adafactor(OptimizerOption):
    """Adafactor (Shazeer and Stern 2018): second moments of matrices as a row and a column; its rate is relative."""

    fuses = divides = False
    lr: float = 1e-2
    """Largest rate, times the root mean square of the parameter; less after 1 / lr^2 updates."""
    beta2_decay: float = -0.8
    """Exponent of the updates by which the decay of the mean of squared gradients comes to 1."""
    d: float = 1.0
    """Bound of the root mean square of an update before its rate."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.beta2_decay <= 0, "beta2_decay", self.beta2_decay, "<= 0")
        require(self.d >= 1, "d", self.d, ">= 1")

    def make(self, params: Any, shared: dict[str, Any]) -> torch.optim.Optimizer:
        given = without_kernels(self, shared) | {"foreach": self.foreach}
        return torch.optim.Adafactor(params, beta2_decay=self.beta2_decay, d=self.d, **given)


def without_kernels(option: OptimizerOption, shared: dict[str, Any]) -> dict[str, Any]:
    """lr and weight_decay, of an optimizer that has no fused kernel."""
    require(not option.fused, "fused", option.fused, "false or null: there is no such kernel")
    return {name: shared[name] for name in ("lr", "weight_decay")}


@option("optimizer", "custom")
@dataclass
class CustomOptimizer(OptimizerOption):
    """Any optimizer by name, PyTorch's, a library's or your own: `target(params, lr, weight_decay, **kwargs)`."""

    fuses = False
    target: str = ""
    """The class, or a function that returns an optimizer, as "package.module:Name"; such as torch.optim:Adagrad."""
    kwargs: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments beside lr and weight_decay."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(":" in self.target, "target", self.target, 'of the form "package.module:Name"')
        for name in ("lr", "weight_decay", "fused", "foreach"):
            if name in self.kwargs:
                raise Invalid(f"kwargs.{name}", self.kwargs[name], f"is set by optimizer.{name}")

    def make(self, params: Any, shared: dict[str, Any]) -> torch.optim.Optimizer:
        found = load_object("target", self.target)
        if not callable(found):
            raise Invalid("target", self.target, f"must name a class or a function, but is {type(found).__name__}")
        taken = parameters_of(found)
        given = {name: value for name, value in shared.items() if taken is None or name in taken}
        given = {name: value for name, value in given.items() if name in ("lr", "weight_decay") or value is not None}
        if self.weight_decay and "weight_decay" not in given:
            raise Invalid("weight_decay", self.weight_decay, f"must be 0: {self.target} takes none")
        optimizer = self.called(found, params, given)
        self.try_step(found, optimizer, given)
        begin_momentum(optimizer)
        return optimizer

    def called(self, found: Any, params: Any, given: dict[str, Any]) -> torch.optim.Optimizer:
        try:
            optimizer = found(params, **given, **self.kwargs)
        except Exception as error:
            raise Invalid("kwargs", self.kwargs, f"{self.target} refuses: {' '.join(str(error).split())}") from error
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise Invalid("target", self.target, f"must be a torch.optim.Optimizer, but is {type(optimizer).__name__}")
        if callable(getattr(optimizer, "train", None)):  # schedule-free: `Update.evaluated_weights` calls its eval()
            optimizer.train()  # type: ignore[attr-defined]
        return optimizer

    def try_step(self, found: Any, optimizer: torch.optim.Optimizer, given: dict[str, Any]) -> None:
        """Raise `Invalid` where it cannot step as others do, tried on a copy of the smallest parameter of each kind."""
        every = [p for group in optimizer.param_groups for p in group["params"] if p.numel()]
        smallest = {p.dim(): p for p in sorted(every, key=torch.Tensor.numel, reverse=True)}
        copied = [torch.nn.Parameter(p.detach().clone()) for p in smallest.values()]
        for p in copied:
            p.grad = torch.zeros_like(p)
        try:
            self.called(found, copied, given).step()
        except Exception as error:
            raise Invalid("target", self.target, f"cannot step: {' '.join(str(error).split())[:200]}") from error

    def checked(self, settings: dict[str, Any]) -> dict[str, Any]:
        super().checked({k: v for k, v in settings.items() if k == "weight_decay"})
        return settings  # of others the optimizer alone knows

    def decays(self, rates: float, way: float, slope: float) -> float:
        return 0.0  # not known


def parameters_of(found: Any) -> set[str] | None:
    """Names of a callable's parameters; None where it takes any."""
    try:
        parameters = inspect.signature(found).parameters
    except (TypeError, ValueError):
        return None
    any_name = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    return None if any_name else set(parameters)


def begin_momentum(optimizer: torch.optim.Optimizer) -> None:
    """Begin SGD's momentum with zeros where its kernel is fused.

    That leaves the first buffer unwritten when it skips its first update, and reads it at the next: from zeros every
    update, the first too, is buffer = momentum * buffer + gradient.
    """
    for group in optimizer.param_groups if isinstance(optimizer, torch.optim.SGD) else ():
        for p in group["params"] if group["fused"] and group["momentum"] else ():
            optimizer.state[p]["momentum_buffer"] = torch.zeros_like(p)


def column(value: Any) -> Any:
    """One value per run, (L,) -> (L, 1) float32, for matrices with a row per run; a plain number is shared by all."""
    return value.float().unsqueeze(1) if isinstance(value, torch.Tensor) else value


def skips_in_kernel(optimizer: torch.optim.Optimizer) -> bool:
    """Whether the optimizer's kernel reads `found_inf` itself, so that the host does not wait for it."""
    fused = bool(optimizer.defaults.get("fused")) and getattr(optimizer, "_step_supports_amp_scaling", False)
    return fused and optimizer.param_groups[0]["params"][0].is_cuda


def step_unless_(optimizer: torch.optim.Optimizer, found_inf: torch.Tensor, in_kernel: bool) -> None:
    """Apply the update unless found_inf, () float32, is 1; on the host that waits for the device."""
    if in_kernel:
        optimizer.found_inf, optimizer.grad_scale = found_inf, None  # type: ignore[attr-defined]
        try:
            optimizer.step()
        finally:
            del optimizer.found_inf, optimizer.grad_scale  # type: ignore[attr-defined]
    elif not found_inf.item():
        optimizer.step()


def scales(optimizer: torch.optim.Optimizer) -> dict[str, float]:
    """The factors of the groups with a rate of their own, by what they match."""
    found = {group.get("label", ""): group.get("lr_scale", 1.0) for group in optimizer.param_groups}
    return {label: scale for label, scale in found.items() if scale != 1.0}


def set_lr_(optimizer: torch.optim.Optimizer, lr: torch.Tensor) -> None:
    """Set the rate of the next update from a () tensor; a group's is scaled."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], torch.Tensor):
            group["lr"].copy_(lr * group["lr_scale"] if "lr_scale" in group else lr)
        else:
            group["lr"] = lr.item() * group.get("lr_scale", 1.0)
