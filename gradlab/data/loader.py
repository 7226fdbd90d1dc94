"""A loader that the user made, or a stream of samples: batches in an order of their own, epoch after epoch."""

from __future__ import annotations

import copy
import hashlib
import io
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain, count, islice
from typing import Any, ClassVar

import torch

from gradlab.base.option import Invalid
from gradlab.base.randomness import OwnGenerators, mix, set_random_state
from gradlab.data.reader import Key, single, tensors
from gradlab.data.stream import BATCHES, DataStream
from gradlab.data.tree import leaves, mapped


@dataclass
class Loader(DataStream):
    """Batches of `reader.dataset`, which is iterated from its beginning in every epoch. A place is that of a batch."""

    length: int | None = None
    """Batches of an epoch; None: as many as there are."""
    seeks: bool = False
    """Whether its place is kept in checkpoints: else a resumed run reads again."""
    coming: Iterator[tuple[int, Any]] = field(default_factory=lambda: iter(()), repr=False)
    """The batches of the epoch that is read."""
    resumed: int = -1
    """The epoch in which a resumed run goes on."""
    known: dict[str, Any] | None = field(default=None, repr=False)
    """What `place` returns until the next batch is read."""
    reached: tuple[int, int, OwnGenerators] | None = field(default=None, repr=False)
    """Epoch, how many of its batches were read, and their generators; None where this is not the position."""
    by_batch: ClassVar[bool] = True

    def __post_init__(self) -> None:
        loader = self.reader.dataset
        dataset: Any = getattr(loader, "dataset", None)
        self.stream: Any = dataset if isinstance(dataset, torch.utils.data.IterableDataset) else None
        self.beginning: Any = None
        """State of a stream before it is read: a reading that was broken off may leave it anywhere."""
        self.keeper: Any = None
        """What can save and restore the position: the loader, or the stream where no worker reads it."""
        if self.stream is None or has_state(self.stream):
            alone = None if getattr(loader, "num_workers", 0) else self.stream
            self.keeper = loader if has_state(loader) else alone

    def __len__(self) -> int:
        return self.length or 1

    def batch(self, index: torch.Tensor) -> tuple[Any, Any]:
        """The first samples of the first batch, as many as are asked for."""
        ((_, batch),) = islice(self.batches(0), 1)
        return self.prepared(((0, (0,)), mapped(lambda t: t[: len(index)] if t.dim() else t, batch)))

    def at(self, key: Key) -> tuple[Any, Any]:
        epoch, (place,) = key
        batch = next(batch for i, batch in self.batches(epoch) if i == place)
        return self.prepared((key, batch))

    def read(self, keys: Iterable[Key]) -> Iterator[tuple[Key, tuple[Any, Any]]]:
        """The batches of the keys, of which the places rise within an epoch; others are read and left out."""
        now, self.resumed = self.resumed, -1
        for epoch, (place,) in keys:
            if epoch != now:
                now, self.coming = epoch, self.batches(epoch)
            self.known = None
            batch = next((batch for i, batch in self.coming if i == place), None)
            if batch is None:
                why = f"batches of an epoch were expected, but {self.name} ended before batch {place + 1}"
                raise Invalid("data.batches", self.length, why)
            yield (epoch, (place,)), self.prepared(((epoch, (place,)), batch))

    def batches(self, epoch: int, kept: dict[str, Any] | None = None) -> Iterator[tuple[int, Any]]:
        """All batches of an epoch as the loader gives them. What it draws depends on seed and epoch alone.

        kept: what `place` returned after some of them, which are then left out.
        """
        own = OwnGenerators(mix(self.reader.seed, epoch))
        coming, self.reached = None, None
        for place in count(kept["read"] if kept else 0):
            try:
                with own():
                    if coming is None:
                        coming = self.begun(epoch, kept)
                    batch = next(coming)
            except StopIteration:
                return
            except Exception as error:
                last = (str(error).strip().splitlines() or [""])[-1]
                raise Invalid("data.target", self.name, f"batch {place}: {type(error).__name__}: {last}") from error
            self.reached = epoch, place + 1, own
            yield place, mapped(single, batch)

    def begun(self, epoch: int, kept: dict[str, Any] | None) -> Iterator[Any]:
        """An iterator of the loader at the beginning of an epoch, or where it was."""
        loader = self.reader.dataset
        parts: list[Any] = [getattr(loader, name, None) for name in ("dataset", "sampler", "batch_sampler")]
        _, sampler, batches = parts
        for part in (loader, sampler, getattr(batches, "sampler", None)):
            if isinstance(generator := getattr(part, "generator", None), torch.Generator):
                generator.manual_seed(mix(self.reader.seed, epoch))
        if has_state(self.stream):
            self.beginning = self.beginning or copy.deepcopy(self.stream.state_dict())
            self.stream.load_state_dict(copy.deepcopy(self.beginning))
        for part in (loader, *parts):
            if hasattr(part, "set_epoch"):
                part.set_epoch(epoch)
        if kept is not None:
            self.keeper.load_state_dict(mapped(torch.Tensor.cpu, kept["state"]))
        coming: Iterator[Any] = iter(loader)
        if kept is not None:
            set_random_state(kept["random"])
        return coming

    def place(self) -> dict[str, Any] | None:
        """The loader's position, for a checkpoint; None where that cannot be restored."""
        if self.known is None and self.seeks and self.reached is not None:
            self.known = self.state()
            following = next(self.coming, None)
            self.known["following"] = fingerprint(following)
            self.coming = chain([] if following is None else [following], self.coming)
        return self.known

    def state(self) -> dict[str, Any]:
        assert self.reached is not None
        epoch, read, own = self.reached
        return {"epoch": epoch, "read": read, "state": self.keeper.state_dict(), "random": own.state()}

    def resume(self, kept: dict[str, Any]) -> str:
        """Continue from what `place` returned. Returns why not, where another batch follows than did then; else ""."""
        coming = self.batches(kept["epoch"], kept)
        try:
            following = next(coming, None)
        except Invalid as error:
            return error.allowed
        if fingerprint(following) != kept["following"]:
            return "after load_state_dict another batch follows than did"
        self.resumed, self.coming = kept["epoch"], chain([] if following is None else [following], coming)
        return ""

    def resuming(self) -> str:
        """How a resumed run gets back to its position, in words; tried out on the first batches."""
        parts = (self.keeper, self.stream, self.reader.dataset)  # any of which may be false, or unable to say
        name = next(type(part).__name__ for part in parts if part is not None)
        again = "a resumed run reads the batches of its epoch again up to its place"
        if self.keeper is None:
            return f"{again}: {name} has no state_dict{' in workers' * has_state(self.stream)}"
        coming = self.batches(0)
        for _ in range(max(1, getattr(self.reader.dataset, "num_workers", 1))):  # then workers have drawn before
            next(coming, None)
        kept = self.state()
        try:
            torch.save(kept, file := io.BytesIO())
            file.seek(0)
            kept = torch.load(file, weights_only=True)
        except Exception as error:
            return f"{again}: the state of {name} is no plain data ({' '.join(str(error).split())[:100]})"
        following = next(coming, None)
        try:
            self.seeks = fingerprint(next(self.batches(0, kept), None)) == fingerprint(following)
        except Invalid as error:
            return f"{again}: {name} fails at a state of its own: {error.allowed}"
        if not self.seeks:
            return f"{again}: after load_state_dict {name} does not give the batch that followed"
        return f"a resumed run goes on at its place, by the state_dict of {name}"

    def epoch(self, rank: int, ranks: int, size: int) -> Iterator[tuple[Any, Any]]:
        for place, batch in islice(self.batches(0), rank, None, ranks):
            yield self.prepared(((0, (place,)), batch))

    def some(self, split: Any) -> Iterator[tuple[Any, Any]]:
        """The loader's first batches, in its own order."""
        return islice(self.epoch(0, 1, 1), BATCHES)


def fingerprint(batch: Any) -> str:
    """A digest of the numbers in a batch."""
    digest = hashlib.blake2b(digest_size=16)
    for tensor in leaves(tensors(batch)):
        digest.update(str((tensor.dtype, tensor.shape)).encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def has_state(part: Any) -> bool:
    return hasattr(part, "state_dict") and hasattr(part, "load_state_dict")


def own_length(loader: Any) -> int | None:
    try:
        return len(loader)
    except TypeError:
        return None
