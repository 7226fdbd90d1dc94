"""What tests of the watch share with each other, and must not."""

import gc
import sys

import pytest

from gradlab.watch import call_site, loop_state


@pytest.fixture(autouse=True)
def frozen_objects() -> None:
    """What was there before a test is none of its loop's: watches search all objects that are not frozen."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def nothing_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a process in which something was compiled, or a compiler was loaded, no calls are followed."""
    monkeypatch.setattr(loop_state, "COMPILERS", ())
    if (dynamo := sys.modules.get("torch._dynamo.utils")) is not None:
        dynamo.counters.clear()


@pytest.fixture(autouse=True)
def nothing_has_run() -> None:
    """The files of other tests are none of the loop's program: some rules read all of them."""
    call_site.ORIGINS.clear()
