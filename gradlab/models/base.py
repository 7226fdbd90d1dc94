"""What all models share. An option imports its network, and PyTorch with it, only in `build`: errors come at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from gradlab.base.option import Invalid
from gradlab.data.spec import Spec

if TYPE_CHECKING:
    from torch import nn


@dataclass
class ModelOption:
    """What is trained: `build` makes the module that fits the data, its weights drawn from torch's global generator."""

    usual_data: ClassVar[str] = ""
    """The option of `data` where none is chosen; empty: it must be chosen."""

    def build(self, spec: Spec) -> nn.Module:
        """Make the module; raise `Invalid` with an empty field name where the model does not fit the data."""
        raise NotImplementedError


def check_fit(name: str, spec: Spec, inputs: tuple[str, ...], targets: tuple[str, ...]) -> None:
    """Raise `Invalid` unless the model accepts the data's inputs and predicts its kind of targets."""
    if spec.inputs not in inputs:
        given = f"{spec.inputs} of shape {tuple(spec.shape)}"
        raise Invalid("", name, f"needs {' or '.join(inputs)}, but the data provides {given}")
    if spec.targets not in targets:
        raise Invalid("", name, f"predicts {' or '.join(targets)}, but the data's targets are {spec.targets}")


STEPS = ("tokens", "sequences", "images")
ANSWERS = ("classes", "values", "tokens")
