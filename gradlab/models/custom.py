"""A module that is named in the configuration: a user's own, or a library's such as Hugging Face's causal LMs.

B batch, T time steps, V outputs: whatever the module takes -> its logits, (B, V) or (B, T, V)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from gradlab.base.importing import load_object
from gradlab.base.option import Invalid, option, require
from gradlab.data.spec import Spec
from gradlab.models.arguments import Arguments
from gradlab.models.base import ModelOption

if TYPE_CHECKING:
    from torch import Tensor, nn  # at run time it would import what is imported lazily


@option("model", "custom")
@dataclass
class CustomOption(ModelOption):
    """Any module, yours or a library's: `target(*args, **kwargs)`."""

    usual_data = "digits"
    target: str = ""
    """What to call, as "package.module:Name" or "package.module:Name.method"; the working directory is searched too."""
    args: list[Any] = field(default_factory=list)
    """Positional arguments; a mapping of just `target` and maybe `args` and `kwargs`, at any depth, is built first."""
    kwargs: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments, with the same rule for mappings."""

    def __post_init__(self) -> None:
        require(":" in self.target, "target", self.target, 'of the form "package.module:Name"')

    def build(self, spec: Spec) -> nn.Module:
        """Call the target; from then on the module returns the logits in its output."""
        model = call(self.target, self.args, self.kwargs)
        if not isinstance(model, torch.nn.Module):
            raise Invalid("target", self.target, f"must return a torch.nn.Module, but returned {type(model).__name__}")
        # A hook, not a wrapper: the model keeps its type, methods and parameter names.
        if not spec.whole_output:
            model.register_forward_hook(only_logits)
        if spec.inputs == "batch":
            model.register_forward_pre_hook(Arguments(model), with_kwargs=True)
        return model


def only_logits(model: nn.Module, inputs: Any, output: Any) -> Tensor:
    """The tensor in an output: itself, its `logits` (attribute or key), or a tuple's first element."""
    logits = output
    if isinstance(output, Mapping):  # ModelOutput is one
        logits = output.get("logits")
    elif isinstance(output, tuple | list) and not hasattr(output, "logits"):
        logits = output[0] if output else None
    elif not isinstance(output, torch.Tensor):
        logits = getattr(output, "logits", None)
    if not isinstance(logits, torch.Tensor):
        name = type(model).__name__
        raise Invalid("model.target", name, f"must return a tensor or logits, but returned {type(output).__name__}")
    return logits


def call(target: str, args: list[Any], kwargs: Mapping[str, Any], path: str = "") -> Any:
    """target(*args, **kwargs); mappings in the arguments that name a target are built first. path: for errors."""
    found = find(target, f"{path}target")
    positional = [resolve(value, f"{path}args.{i}") for i, value in enumerate(args)]
    named = {name: resolve(value, f"{path}kwargs.{name}") for name, value in kwargs.items()}
    try:
        return found(*positional, **named)
    except TypeError as error:
        raise Invalid(f"{path}kwargs", dict(kwargs), f"{target} refuses: {' '.join(str(error).split())}") from error


def resolve(value: Any, path: str) -> Any:
    """Build what the value, or anything inside it, names as a target."""
    if isinstance(value, Mapping):
        if isinstance(value.get("target"), str) and value.keys() <= {"target", "args", "kwargs"}:
            return call(value["target"], value.get("args") or [], value.get("kwargs") or {}, f"{path}.")
        return {name: resolve(inner, f"{path}.{name}") for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [resolve(inner, f"{path}.{i}") for i, inner in enumerate(value)]
    return value


def find(target: str, path: str) -> Any:
    """Import what "package.module:Name.attribute" names, to be called."""
    found = load_object(path, target)
    if not callable(found) or isinstance(found, torch.nn.Module):
        raise Invalid(path, target, f"must name a class or a function, but is {type(found).__name__}")
    return found
