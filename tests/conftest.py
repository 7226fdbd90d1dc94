"""One thread a process, here and in the processes that tests start: several share two cores."""

import os
from collections.abc import Iterator
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # before PyTorch is imported; children inherit it

import pytest
import torch
from forked import Commands

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def gradlab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Commands]:
    """`python -m gradlab` in forks of one warm process: it takes seconds to begin, and every file of tests needs it."""
    commands = Commands(tmp_path_factory.mktemp("commands"))
    yield commands
    commands.close()


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """A headless browser, for `browser.opened`."""
    from browser import launched

    with launched() as browser:
        yield browser
