"""What options of optimizers share: groups of parameters, and several optimizers of one model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from math import inf
from typing import TYPE_CHECKING, Any, ClassVar, Optional, Union, get_args, get_origin, get_type_hints

import torch

from gradlab.base import components
from gradlab.base.option import OPTIONS, Invalid, require, within
from gradlab.base.suggestions import did_you_mean, must_be
from gradlab.update.groups import Group, grouped

if TYPE_CHECKING:
    from torch import Tensor  # at run time it would import what is imported lazily


GROUP_SETTINGS = ["optimizer", "lr_scale", "lr_decay"]
"""Settings of a group that are gradlab's, and not the optimizer's."""
KINDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text", dict: "{NAME: VALUE}"}


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
    """Settings of the parameters whose names match: [{match: "norm|bias", weight_decay: 0, lr_scale: 0.1}]; also an
    optimizer of their own: [{match: embed, optimizer: sgd, lr: 0.1}]."""

    fuses: ClassVar[bool] = True
    """Whether `make` takes `fused`."""
    shardable: ClassVar[bool] = True
    """Whether it can step a parameter of which each rank holds a part."""
    elementwise: ClassVar[bool] = False
    """Whether an element's step depends on its own gradients alone, so that a part of a parameter steps by itself."""

    def __post_init__(self) -> None:
        require(0 < self.lr < inf, "lr", self.lr, "> 0 and finite")
        require(0 <= self.weight_decay < inf, "weight_decay", self.weight_decay, ">= 0 and finite")
        require(not (self.fused and self.foreach), "foreach", self.foreach, "false or null where fused=true")
        self.group_optimizers()

    def build(
        self, parameters: Iterable[torch.nn.Parameter], names: Sequence[str] = (), ends: Sequence[Tensor] = ()
    ) -> torch.optim.Optimizer:
        """The optimizer of all parameters that need a gradient, on the device where they are.

        names: of those parameters, for `groups`. ends: embeddings, and the head.
        """
        params = [p for p in parameters if p.requires_grad]
        if not self.groups:
            return self.make(params, self.shared(params))
        return self.of_groups(grouped(self.groups, names), dict(zip(names, params, strict=True)), ends)

    def shared(self, params: Sequence[Tensor]) -> dict[str, Any]:
        """The settings that `make` passes to any optimizer."""
        fused = self.fused
        if fused is None and not self.foreach:
            fused = self.fuses and all(p.is_floating_point() and p.device.type in ("cpu", "cuda") for p in params)
        # On CUDA the rate is a tensor: the schedule moves it without waiting for the device.
        lr = torch.tensor(self.lr, device=params[0].device) if fused and params[0].is_cuda else self.lr
        return {"lr": lr, "weight_decay": self.weight_decay, "fused": fused or None, "foreach": self.foreach}

    def of_groups(
        self, groups: Sequence[Group], named: Mapping[str, torch.nn.Parameter], ends: Sequence[Tensor]
    ) -> torch.optim.Optimizer:
        """One optimizer of all groups, also where some have optimizers of their own."""
        others = {group.label: group for group in groups if "optimizer" in group.settings}
        own = [group for group in groups if group.label not in others]
        if not self.group_optimizers():
            return self.of_own(own, named, ends)
        from gradlab.update.joined_optimizers import Joined, describe

        parts: dict[str | None, torch.optim.Optimizer] = {}
        for label, group in others.items():
            with within("groups"):
                option, scale = self.named_by(group)
                parts[label] = option.of_own([group._replace(settings={"lr_scale": scale})], named, ends)
        if own:
            parts[None] = self.of_own(own, named, ends)
        return Joined(parts, "optimizer", f"optimizer.groups: parameters {describe(parts)}")

    def of_own(
        self, groups: Sequence[Group], named: Mapping[str, torch.nn.Parameter], ends: Sequence[Tensor]
    ) -> torch.optim.Optimizer:
        shared = self.shared([named[name] for group in groups for name in group.names])
        made = [self.group(group, named, shared["lr"]) for group in groups]
        return self.make([part for group in made for part in self.split_group(group, ends)], shared)

    def split_group(self, group: dict[str, Any], ends: Sequence[Tensor]) -> list[dict[str, Any]]:
        """A group as several, where the optimizer steps some of its parameters in another way."""
        return [group]

    def group_optimizers(self) -> dict[str, type[OptimizerOption]]:
        """The optimizers that entries of `groups` name, by their fields."""
        entries = ((f"groups.{i}.optimizer", one) for i, one in enumerate(self.groups) if isinstance(one, dict))
        return {field: option_of(field, one["optimizer"]) for field, one in entries if "optimizer" in one}

    def named_by(self, group: Group) -> tuple[OptimizerOption, float]:
        """A group's own optimizer, and the factor from the run's learning rate to its own."""
        settings = dict(group.settings)
        cls, scale = option_of("optimizer", settings.pop("optimizer")), settings.pop("lr_scale", 1.0)
        check_settings(cls, settings, [f.name for f in fields(cls) if f.name != "groups"])
        option = cls(**settings)
        return option, scale * (option.lr / self.lr)

    def add_parameter(
        self,
        optimizer: torch.optim.Optimizer,
        names: Sequence[str],
        ends: Sequence[Tensor],
        name: str,
        p: torch.nn.Parameter,
    ) -> None:
        """Let the optimizer step a parameter that was frozen when it was built, like others with its settings.

        names: of the parameters that were not frozen. ends: see `build`.
        """
        if self.groups:
            own = next(one for one in grouped(self.groups, [*names, name]) if name in one.names)
            fresh = self.of_groups([own._replace(names=[name])], {name: p}, ends)
        else:
            fresh = self.build([p], [name], ends)
        made = fresh.param_groups[0]
        for group in optimizer.param_groups:
            if all(group.get(key) == made.get(key) for key in ("label", "muon", "optimizer")):
                group["params"].append(p)
                group.get("names", []).append(name)
                break
        else:
            optimizer.param_groups.append(made)
            if (add_parts := getattr(optimizer, "add_parts", None)) is not None:
                add_parts(fresh)
        optimizer.state.update(fresh.state)

    def group(self, group: Group, named: Mapping[str, torch.nn.Parameter], lr: Any) -> dict[str, Any]:
        """A group as PyTorch's optimizers take it; a rate that is a tensor is copied for it."""
        lr = lr.clone() if isinstance(lr, torch.Tensor) else lr
        own = {"params": [named[name] for name in group.names], "lr": lr, "names": group.names, "label": group.label}
        settings = {name: value for name, value in group.settings.items() if name != "lr_scale"}
        return own | {"lr_scale": group.settings.get("lr_scale", 1.0)} | self.checked(settings)

    def checked(self, settings: dict[str, Any]) -> dict[str, Any]:
        """A group's settings as PyTorch names them, checked as the option's own fields are."""
        shared = {"lr", "fused", "foreach", "groups", "target", "kwargs", "adjust", "adamw"}
        with within("groups"):
            check_settings(type(self), settings, [f.name for f in fields(self) if f.name not in shared])
            replace(self, **settings)
        return settings

    def make(self, params: Any, shared: dict[str, Any]) -> torch.optim.Optimizer:
        """params: parameters, or groups of them, as PyTorch's optimizers take them."""
        raise NotImplementedError

    def decays(self, lr_sum: float, path_length: float, grad_ratio: float) -> float:
        """How many times a run's weight decay alone would divide the weights by e.

        lr_sum: of its learning rates. path_length: the sum over its updates of ||update|| / ||weights||.
        grad_ratio: the usual ||gradient|| / ||weights||.
        """
        return lr_sum * self.weight_decay

    def moments(self) -> tuple[str, ...]:
        """Names of the state per element, as in torch.optim; it starts at zero."""
        raise NotImplementedError

    def move_(self, params: Tensor, grads: Tensor, moments: list[Tensor], lr: Tensor, applied: Tensor) -> None:
        """The update of many lanes at once, by the rule of `make`'s optimizer; fields may be (L,) tensors.

        params, grads, moments: (L, N), changed in place, the gradients too. lr: (L,) float64. applied: (L,) int64, the
        updates applied before this one.
        """
        raise NotImplementedError

    def decay_(self, params: Tensor, grads: Tensor) -> None:
        """Add the gradient of half the squared norm of the weights, times weight_decay."""
        if isinstance(self.weight_decay, torch.Tensor) or self.weight_decay:
            grads.add_(params * column(self.weight_decay))


def option_of(field: str, name: Any) -> type[OptimizerOption]:
    """The class of an optimizer that an entry of `groups` names."""
    components.load("optimizer")
    known: dict[str, Any] = {option: cls for (group, option), cls in OPTIONS.items() if group == "optimizer"}
    if not isinstance(name, str) or name not in known:
        raise Invalid(field, name, must_be(str(name), sorted(known)))
    return known[name]  # type: ignore[no-any-return]


def check_settings(cls: type[OptimizerOption], settings: dict[str, Any], known: list[str]) -> None:
    """Raise `Invalid` for one that is none of those known, or of another kind than the field of its name."""
    hints = get_type_hints(cls)
    for name, value in settings.items():
        if name not in known:
            every = GROUP_SETTINGS + known
            allowed = f"no such setting{did_you_mean(name, every)}; there are {', '.join(every)}"
            raise Invalid(name, value, "needs an optimizer of its own; lr_scale multiplies" * (name == "lr") or allowed)
        if not fits(value, hints[name]):
            hinted = get_args(hints[name]) if get_origin(hints[name]) is Union else [hints[name]]
            kinds = " or ".join(KINDS.get(get_origin(hint) or hint, "null") for hint in hinted)
            raise Invalid(name, value, f"must be {kinds}")


def fits(value: Any, hint: Any) -> bool:
    """Whether a value is of a field's type."""
    if get_origin(hint) is Union:
        return any(fits(value, each) for each in get_args(hint))
    return hint is Any or type(value) is (get_origin(hint) or hint) or (hint is float and type(value) is int)


def without_kernels(option: OptimizerOption, shared: dict[str, Any]) -> dict[str, Any]:
    """lr and weight_decay, of an optimizer that has no fused kernel."""
    require(not option.fused, "fused", option.fused, "false or null: there is no such kernel")
    return {name: shared[name] for name in ("lr", "weight_decay")}


def column(value: Any) -> Any:
    """One value per lane, (L,) -> (L, 1) float32, for matrices with a row per lane; a plain number is shared by all."""
    return value.float().unsqueeze(1) if isinstance(value, torch.Tensor) else value
