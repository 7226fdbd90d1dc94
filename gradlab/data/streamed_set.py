"""A set of the user's own that is read as it is needed: samples by place, a loader, or a stream."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Optional

import torch

from gradlab.base.importing import calling, load_callable
from gradlab.base.limits import MOST_AT_ONCE
from gradlab.base.option import Invalid, at_least, one_of, require
from gradlab.base.randomness import seeded
from gradlab.data.base import Data, Splits
from gradlab.data.batch_format import DIMENSIONS, BatchFormat
from gradlab.data.budget import BatchReader, Budgeted, budgeted
from gradlab.data.collate import KNOWN
from gradlab.data.loader import Loader, has_state, own_length
from gradlab.data.reader import Reader, Unreadable, alike, leave_signals, stacked
from gradlab.data.stream import DataStream, Loading

READ_TWICE = 8
"""Samples that are read twice, to see whether each reading draws anew."""


@dataclass
class StreamedSet(Data):
    """The fields of `data=custom`, and what makes streams of a set."""

    target: str = ""
    """What to call, as "package.module:Name"; the working directory is searched too."""
    kwargs: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments."""
    inputs: Optional[str] = None
    """tokens, vectors, images or sequences; null: by their shape and type."""
    targets: Optional[str] = None
    """classes, tokens or values; null: by their shape and type."""
    outputs: Optional[int] = None
    """Number of classes, or size of the vocabulary; null: one more than the largest in the data."""
    stream: Optional[bool] = None
    """Whether samples are read anew in every epoch, and not once; null: where they have to be, or one of the following
    fields is given."""
    workers: int = 0
    """Processes that read ahead, of each rank; 0: the run itself reads."""
    prefetch: int = 2
    """Micro-batches that each worker reads ahead."""
    pin_memory: Optional[bool] = None
    """Whether batches are read into memory from which a GPU copies at once; null: where there is one."""
    collate: str = ""
    """What makes a batch of a list of samples: padded (with what does not count), packed (one after the other in a row,
    for Hugging Face's models), or "package.module:function"; empty: PyTorch's own, which stacks."""
    batches: Optional[int] = None
    """Batches of an epoch, where a set is a loader or a stream; null: all, of one that knows how many."""
    lengths: str = ""
    """What returns the length of each sample of a set that it is given, as "package.module:function": then
    samples of like lengths are in one micro-batch, and little is padded."""
    max_tokens: Optional[int] = None
    """Size of a micro-batch in place of batch_size: its samples times the longest of their `lengths`, at most; of
    packed ones the sum of these. Its samples are the same in every epoch."""
    labels: Optional[str] = None
    """Key of the targets, where a batch is a mapping; null: labels, targets, target or label."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(":" in self.target, "target", self.target, 'of the form "package.module:Name"')
        if self.inputs is not None:
            one_of("inputs", self.inputs, tuple(DIMENSIONS))
        if self.targets is not None:
            one_of("targets", self.targets, ("classes", "tokens", "values"))
        at_least(self, outputs=1, prefetch=1, batches=1, max_tokens=1)
        require(0 <= self.workers <= MOST_AT_ONCE, "workers", self.workers, f"in [0, {MOST_AT_ONCE}]")
        if self.max_tokens and (self.without or not self.lengths):
            why = "cannot be given together with without" if self.lengths else "needs data.lengths"
            raise Invalid("max_tokens", self.max_tokens, why)
        form = 'of the form "package.module:function"'
        require(not self.lengths or ":" in self.lengths, "lengths", self.lengths, form)
        fine = not self.collate or self.collate in KNOWN or ":" in self.collate
        require(fine, "collate", self.collate, f"{', '.join(KNOWN)} or {form}")
        for name in ("workers", "collate", "labels", "lengths"):
            if self.stream is False and getattr(self, name):
                raise Invalid("stream", False, f"cannot be given together with {name}, of data that is streamed")

    def streams(self, samples: Any) -> str:
        """Why a set is streamed; empty where it is kept on the device."""
        if self.stream is not None:
            return "as data.stream says" if self.stream else ""
        if is_loader(samples):
            return "in its own order"
        if self.workers or self.collate or self.labels or self.lengths:
            return "as data.workers, data.collate, data.labels and data.lengths ask"
        if not (hasattr(samples, "__len__") and hasattr(samples, "__getitem__") and len(samples)):
            return ""  # `stack` says what is wrong
        if isinstance(samples, tuple) or hasattr(samples, "tensors"):
            return ""
        with seeded(0):
            try:
                sample = samples[0]
                if isinstance(sample, Mapping) or any(isinstance(part, Mapping | tuple) for part in sample):
                    return "since a sample is no pair of tensors"
                for i in range(min(READ_TWICE, len(samples))):
                    if not alike(samples[i], samples[i]):
                        return "since two readings of a sample differ; data.stream=false keeps the first"
            except Exception:
                return ""  # `stack` reads them all, and says what is wrong
        return ""

    def streamed(self, train: Any, test: Any, device: torch.device, why: str) -> Splits:
        """Splits that are read as they are needed."""
        train, test = self.by_row(train), self.by_row(test)
        self.check_readable(train)
        if test is not None:
            self.check_readable(test)
        collate, batch_format = self.collating(), BatchFormat(self.inputs, self.targets, self.labels)
        pin = device.type == "cuda" if self.pin_memory is None else self.pin_memory
        loading = Loading(self.workers, self.prefetch, pin and device.type == "cuda")
        made: list[DataStream] = []
        for part in (train, test) if test is not None else (train,):
            if is_loader(part):
                made.append(self.loader(part, device, batch_format, loading, collate, training=not made))
            else:
                made.append(self.by_place(part, device, batch_format, loading, collate))
        notes = [f"data={self.target}: samples are read anew in every epoch, {why}"]
        if isinstance(made[0], Loader):
            self.batch_size = 1  # what has a place in an epoch is a batch of the loader
            notes.append(f"the best constant answer of a loader is not known; {made[0].resuming()}")
            if getattr(train, "persistent_workers", False):
                notes.append("persistent_workers: what workers draw after the first epoch is not repeated when resumed")
        first, again = self.read_first(made[0], train), self.read_first(made[0], train)
        if not alike(first, again):
            notes.append(f"data={self.target}: samples draw from a generator of their own: no resumed run repeats them")
        classes = getattr(getattr(train, "dataset", train), "classes", ())
        spec = batch_format.infer_spec(first, self.outputs or len(classes))
        return Splits(made[0], made[1] if test is not None else None, spec, "custom", notes)

    def check_readable(self, part: Any) -> None:
        """Refuse what has neither batches of its own nor samples with places."""
        has_items = hasattr(part, "__getitem__")
        if not (is_loader(part) or (hasattr(part, "__len__") and has_items and len(part))):
            what = f"{type(part).__name__} {'has no sample' if has_items else 'has no length and items'}"
            raise Invalid("target", self.target, f"a set must have a length and items; {what}")

    def collating(self) -> Any:
        """What makes a batch of a list of samples."""
        collate: Any = KNOWN.get(self.collate) or (load_callable("collate", self.collate) if self.collate else stacked)
        return collate() if isinstance(collate, type) else collate

    def read_first(self, stream: DataStream, samples: Any) -> Any:
        """The first batch of a loader, or the first two samples of a set."""
        if isinstance(stream, Loader):
            batch = next((batch for _, batch in stream.batches(0)), None)
            if batch is None:
                raise Invalid("target", self.target, "the loader has no batch")
        else:
            batch = stream.sample((0, tuple(range(min(2, len(samples))))))[1]
        if isinstance(batch, Unreadable):
            raise Invalid("target", self.target, f"{batch.why}{self.hint(batch.why)}")
        return batch

    def by_row(self, samples: Any) -> Any:
        """A tuple of two tensors or arrays as the set of its rows."""
        if not (isinstance(samples, tuple) and len(samples) == 2 and all(map(is_array, samples))):
            return samples
        x, y = map(torch.as_tensor, samples)
        if not x.dim() or x.shape[:1] != y.shape[:1]:
            why = f"inputs and targets have unequal numbers of rows: {tuple(x.shape)} and {tuple(y.shape)}"
            raise Invalid("target", self.target, why)
        return torch.utils.data.TensorDataset(x, y)

    def by_place(
        self, part: Any, device: torch.device, batch_format: BatchFormat, loading: Loading, collate: Any
    ) -> DataStream:
        """Samples that have places in the set, in batches of batch_size or max_tokens."""
        place = (device, batch_format, loading, self.target)
        if not self.lengths:
            return DataStream(Reader(part, collate), *place)
        lengths = self.measured(part)
        if self.max_tokens is None:
            return DataStream(Reader(part, collate), *place, lengths=lengths)
        self.batch_size = 1  # what has a place in an epoch is a batch
        if (longest := lengths.max().item()) > self.max_tokens:
            which = f"sample {int(lengths.argmax())} has {longest}"
            raise Invalid("max_tokens", self.max_tokens, f"is less than the longest sample: {which}")
        return Budgeted(
            BatchReader(part, collate, batches=budgeted(lengths, self.max_tokens, self.collate == "packed")), *place
        )

    def measured(self, samples: Any) -> torch.Tensor:
        """(N,) the length of each sample."""
        measure = load_callable("lengths", self.lengths)
        with calling("lengths", self.lengths):
            found = torch.as_tensor(measure(samples))
        if found.shape != (len(samples),):
            why = f"must return one number for each of the {len(samples)} samples, but returned {tuple(found.shape)}"
            raise Invalid("lengths", self.lengths, why)
        return found

    def loader(
        self,
        given: Any,
        device: torch.device,
        batch_format: BatchFormat,
        loading: Loading,
        collate: Any,
        training: bool,
    ) -> Loader:
        """A loader, or a stream of samples in batches of batch_size."""
        if self.lengths:
            raise Invalid("lengths", self.lengths, "not with a loader or a stream, whose samples have no places")
        if self.without:
            raise Invalid("without", list(self.without), "not with a loader, whose samples have no places")
        kind = type(given).__name__
        if isinstance(given, torch.utils.data.IterableDataset):
            given = torch.utils.data.DataLoader(
                given,
                self.batch_size,
                collate_fn=collate,
                num_workers=self.workers,
                prefetch_factor=self.prefetch if self.workers else None,
                worker_init_fn=leave_signals,
            )
        elif self.workers or self.collate:
            raise Invalid("workers", self.workers, "and data.collate are of no use for a DataLoader, which has its own")
        if isinstance(getattr(given, "sampler", None), torch.utils.data.distributed.DistributedSampler):
            raise Invalid("target", self.target, "must not divide samples among ranks: its batches are divided here")
        length = self.batches or own_length(given)
        if training and length is None:
            raise Invalid("batches", None, f"must be given: {kind} does not know how many there are")
        return Loader(
            Reader(given, collate), device, batch_format, loading, self.target, length=length if training else None
        )

    def hint(self, why: str) -> str:
        return "" if self.collate or "stack" not in why else ": data.collate=padded fills them up"


def is_array(part: Any) -> bool:
    """Whether it is a tensor or an array: a table, such as Hugging Face's, has a shape too."""
    return hasattr(part, "shape") and hasattr(part, "dtype")


def is_loader(samples: Any) -> bool:
    """Whether a set is a DataLoader, one of another kind, or a stream of samples, and not read by place."""
    data = torch.utils.data
    other = hasattr(samples, "__iter__") and not hasattr(samples, "__getitem__") and has_state(samples)
    return isinstance(samples, data.DataLoader | data.IterableDataset) or other
