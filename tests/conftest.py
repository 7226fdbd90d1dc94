"""One thread a process, here and in the processes that tests start: several share two cores."""

import os
from collections.abc import Iterator
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # before PyTorch is imported; children inherit it

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """A headless browser, for `browser.opened`."""
    from browser import launched

    with launched() as browser:
        yield browser
