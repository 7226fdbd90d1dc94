"""The state of every random number generator, and seeds."""

from __future__ import annotations

import hashlib
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


def random_state() -> dict[str, Any]:
    """The state of PyTorch's generators, taken before every update: microseconds."""
    state = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_initialized():  # unlike is_available, which asks the driver at every call
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def set_random_state(state: dict[str, Any]) -> None:
    """Put the generators back."""
    torch.set_rng_state(state["cpu"].cpu())
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"].cpu())
    if "python" in state:
        random.setstate(state["python"])
    if "numpy" in state:
        import numpy

        kind, keys, *rest = state["numpy"]
        numpy.random.set_state((kind, keys.cpu().numpy().astype("uint32"), *rest))


@contextmanager
def random_state_restored() -> Iterator[None]:
    """Code after the block, or after a call of the function, draws from PyTorch's generators as if it had not run."""
    state = random_state()
    try:
        yield
    finally:
        set_random_state(state)


def all_random_state() -> dict[str, Any]:
    """The state of every generator that a user's model or loss may draw from, Python's and NumPy's included."""
    return random_state() | plain(states())


def plain(given: tuple[Any, ...]) -> dict[str, Any]:
    """What `states` returns, as a checkpoint holds it."""
    state: dict[str, Any] = {"cpu": given[0], "python": given[1]}
    if given[2] is not None:
        kind, keys, *rest = given[2]
        state["numpy"] = [kind, torch.from_numpy(keys.astype("int64")), *rest]
    return state


def mix(*parts: int) -> int:
    """One seed from several. PyTorch's generator on the CPU uses 32 bits of its seed only: shifting is not mixing."""
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=4).digest(), "little")


def seed_all(seed: int) -> None:
    """Seed every generator that a model or its data may draw from."""
    torch.manual_seed(seed)
    seed_cpu(seed)


def seed_cpu(seed: int) -> None:
    """Seed the generators of the CPU: torch.manual_seed would seed every device."""
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed % 2**32)


SPARE: list[Any] = []
"""NumPy's generators that no block draws from. Making one takes longer than most blocks."""


@contextmanager
def generators_restored() -> Iterator[None]:
    """Code after the block draws on the CPU as if the block had not run. The block seeds what it draws from.

    NumPy's generator is put aside, which takes a hundredth of what its state takes to copy; the second of a pair of
    normal numbers is not kept for it.
    """
    with put_aside(SPARE.pop() if SPARE else None) as own:
        yield
    SPARE.append(own)


def numbers_of_each() -> tuple[int, int, bytes]:
    """A number of each generator of the CPU; after `seed_cpu` always the same, if nothing was drawn in between."""
    import numpy

    return int(torch.randint(2**62, ())), random.getrandbits(62), numpy.random.bytes(8)


@contextmanager
def put_aside(own: Any) -> Iterator[Any]:
    """The block draws from this generator of NumPy, a new one if it is None; from it and Python's nothing is kept."""
    from numpy.random import MT19937, mtrand

    before = torch.get_rng_state(), random.getstate(), mtrand.get_bit_generator()
    own = MT19937() if own is None else own
    mtrand.set_bit_generator(own)
    try:
        yield own
    finally:
        torch.set_rng_state(before[0])
        random.setstate(before[1])
        mtrand.set_bit_generator(before[2])


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """What the block draws on the CPU depends on the seed alone; code after it draws as if it had not run."""
    with generators_restored():
        seed_cpu(seed)
        yield


class OwnGenerators:
    """Blocks that draw on the CPU from generators of their own, one block where the last one ended."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.kept: tuple[Any, ...] | None = None
        """Where the last block ended."""

    @contextmanager
    def __call__(self) -> Iterator[None]:
        with put_aside(self.kept and self.kept[2]) as numpy:
            if self.kept is not None:
                torch.set_rng_state(self.kept[0])
                random.setstate(self.kept[1])
            else:
                seed_cpu(self.seed)
            try:
                yield
            finally:
                self.kept = torch.get_rng_state(), random.getstate(), numpy

    def state(self) -> dict[str, Any]:
        """Where the last block ended, as a checkpoint holds it."""
        import numpy

        assert self.kept is not None
        return plain((*self.kept[:2], numpy.random.RandomState(self.kept[2]).get_state()))


def states() -> tuple[Any, ...]:
    """The states of the CPU's generators: PyTorch's, Python's, and NumPy's, None where that is not imported."""
    numpy = sys.modules["numpy"].random.get_state() if "numpy" in sys.modules else None
    return torch.get_rng_state(), random.getstate(), numpy
