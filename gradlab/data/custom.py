"""The user's own data: pairs that are read once and kept on the device, or any data set, read anew in every epoch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from gradlab.base.importing import load_callable
from gradlab.base.option import Invalid, option, require
from gradlab.data.base import Splits, TensorSplit
from gradlab.data.batch_format import DIMENSIONS, INTEGER, kind_of_targets
from gradlab.data.batch_format import kind_of_inputs as any_kind
from gradlab.data.spec import Spec
from gradlab.data.streamed_set import StreamedSet, is_array


@option("data", "custom")
@dataclass
class CustomData(StreamedSet):
    """What `target(**kwargs)` returns: a training set, or a tuple of a training and a test set (which may be None).

    A set is a sequence of (input, target) pairs, such as a `torch.utils.data.Dataset` with a length, or a tuple of two
    tensors or arrays with a sample a row. All inputs have one shape, and so have all targets. Other samples, such as
    dictionaries, and those that differ from one reading to the next are streamed: read anew in every epoch.
    """

    def load(self, device: torch.device) -> Splits:
        found = load_callable("target", self.target, "a class or a function")
        try:
            made = found(**self.kwargs)
        except TypeError as error:
            raise Invalid("kwargs", self.kwargs, f"{self.target} refuses: {' '.join(str(error).split())}") from error
        if isinstance(made, dict):
            parts = ", ".join(map(str, made))
            raise Invalid("target", self.target, f"returns {parts}: must return the training set, or it and a test set")
        pair = isinstance(made, tuple) and len(made) == 2 and not all(map(is_array, made))
        train, test = made if pair else (made, None)
        if why := self.streams(train):
            return self.streamed(train, test, device, why)
        x, y = self.stack(train)
        kinds = self.inputs or kind_of_inputs(x), self.targets or kind_of_targets(y)
        splits = [self.shaped(x, y, *kinds)]
        if test is not None:
            splits.append(self.shaped(*self.stack(test), *kinds))
        spec = replace(self.spec(splits, *kinds), single=kinds[1] == "values" and y.dim() == 1)
        on_device = [TensorSplit(split.inputs.to(device), split.targets.to(device)) for split in splits]
        return Splits(on_device[0], on_device[1] if test is not None else None, spec, "custom")

    def stack(self, samples: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """(N, ...) inputs and (N, ...) targets of a set."""
        whole = getattr(samples, "tensors", samples)  # a TensorDataset need not be read sample by sample
        if isinstance(whole, tuple) and len(whole) == 2 and all(map(is_array, whole)):
            return torch.as_tensor(whole[0]), torch.as_tensor(whole[1])
        if not (hasattr(samples, "__len__") and hasattr(samples, "__getitem__")):
            message = f"a set must have a length and items, which {type(samples).__name__} does not"
            raise Invalid("target", self.target, message)
        columns: tuple[list[torch.Tensor], list[torch.Tensor]] = ([], [])
        for i in range(len(samples)):
            try:
                values = [torch.as_tensor(value) for value in samples[i]]
            except (TypeError, ValueError, RuntimeError) as error:
                message = f"sample {i} does not turn into tensors: {' '.join(str(error).split())}"
                raise Invalid("target", self.target, message) from error
            if len(values) != 2:
                raise Invalid("target", self.target, f"sample {i} is not a pair of an input and a target")
            for name, value, column in zip(("input", "target"), values, columns, strict=True):
                if column and column[0].shape != value.shape:
                    shapes = f"shape {tuple(value.shape)} but the first {tuple(column[0].shape)}"
                    raise Invalid("target", self.target, f"{name} {i} has {shapes}: pad them")
                column.append(value)
        if not columns[0]:
            raise Invalid("target", self.target, "returns an empty set")
        return torch.stack(columns[0]), torch.stack(columns[1])

    def shaped(self, x: torch.Tensor, y: torch.Tensor, inputs: str, targets: str) -> TensorSplit:
        """The types of the kinds: int64 for tokens and classes, float32 for all else."""
        if x.dim() - 1 != DIMENSIONS[inputs]:
            message = f"must have {DIMENSIONS[inputs]} dimensions, but an input has shape {tuple(x.shape[1:])}"
            raise Invalid("inputs", inputs, message)
        if targets == "values" and y.dim() == 1:
            y = y.unsqueeze(1)  # (N,) -> (N, 1)
        if targets != "values" and (y.dim() > 1) != (targets == "tokens"):
            raise Invalid("targets", targets, f"cannot have the shape {tuple(y.shape[1:])} of a target")
        for name, kind, tensor in (("inputs", inputs, x), ("targets", targets, y)):
            if kind in INTEGER and tensor.is_floating_point():
                raise Invalid(name, kind, f"must be integers, but are {str(tensor.dtype).removeprefix('torch.')}")
        return TensorSplit(x.long() if inputs in INTEGER else x.float(), y.long() if targets in INTEGER else y.float())

    def spec(self, splits: list[TensorSplit], inputs: str, targets: str) -> Spec:
        """Shapes of a sample; number of classes or vocabulary from the largest label or token of all splits."""

        def size(tensors: list[torch.Tensor]) -> int:
            return max((int(t.max()) + 1 for t in tensors if t.numel()), default=0)

        first = splits[0]
        if targets == "values":
            outputs = first.targets.shape[1:].numel()
            require(self.outputs in (None, outputs), "outputs", self.outputs, f"{outputs}, the size of a target")
        else:
            outputs = self.outputs or size([split.targets for split in splits])
        vocabulary = size([split.inputs for split in splits]) if inputs == "tokens" else 0
        if inputs == targets == "tokens" and any(map(one_language, splits)):
            vocabulary = self.outputs or max(vocabulary, outputs)  # a language model reads what it writes
            outputs = vocabulary
        return Spec(inputs, tuple(first.inputs.shape[1:]), targets, outputs, vocabulary)


def one_language(split: TensorSplit) -> bool:
    """Whether targets are tokens of the inputs, the next or the same, and no tags; those below 0 do not count."""
    x, y = split.inputs, split.targets
    pairs = [(x, y), (x[:, 1:], y[:, :-1])] if x.shape == y.shape else []
    return any(bool((t >= 0).any() and (i == t)[t >= 0].all()) for i, t in pairs)


def kind_of_inputs(x: torch.Tensor) -> str:
    """tokens of integers (T,), vectors of floats (D,), sequences (T, F), images (C, H, W)."""
    if (kind := any_kind(x)) == "batch":
        raise Invalid("inputs", None, f"an input has shape {tuple(x.shape[1:])}, but must have 1, 2 or 3 dimensions")
    return kind
