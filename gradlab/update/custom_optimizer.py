"""`optimizer=custom`: any optimizer by name."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from typing import Any

import torch

from gradlab.base.importing import load_callable
from gradlab.base.option import Invalid, option, require
from gradlab.update.optimizer import GROUP_SETTINGS, OptimizerOption
from gradlab.update.sgd import begin_momentum

OWN = {"params", "names", "label", "lr_scale"}
"""What a group holds beside what its optimizer knows."""


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
                raise Invalid(f"kwargs.{name}", self.kwargs[name], f"is set by the field {name}")

    def make(self, params: Any, shared: dict[str, Any]) -> torch.optim.Optimizer:
        found = load_callable("target", self.target, "a class or a function")
        taken = parameters_of(found)
        used = {name for group in params if isinstance(group, dict) for name in group.keys() - OWN}
        given = {name: value for name, value in shared.items() if taken is None or name in taken}
        given = {name: value for name, value in given.items() if name in ("lr", "weight_decay") or value is not None}
        if self.weight_decay and "weight_decay" not in given:
            raise Invalid("weight_decay", self.weight_decay, f"must be 0: {self.target} takes none")
        optimizer = self.called(found, params, given)
        for name in used - optimizer.defaults.keys():
            known = ", ".join((*GROUP_SETTINGS, *optimizer.defaults))
            raise Invalid("groups", name, f"no such setting; there are {known}")
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

    def decays(self, lr_sum: float, path_length: float, grad_ratio: float) -> float:
        return 0.0  # not known


def parameters_of(found: Any) -> set[str] | None:
    """Names of a callable's parameters; None where it takes any."""
    try:
        parameters = inspect.signature(found).parameters
    except (TypeError, ValueError):
        return None
    any_name = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    return None if any_name else set(parameters)
