"""Garbage collection skips what was imported before: a watch without an optimizer searches all objects."""

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="package", autouse=True)
def frozen_objects() -> Iterator[None]:
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
