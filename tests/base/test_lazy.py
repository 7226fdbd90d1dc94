"""What is imported once and stays is passed over by the garbage collector, which is left as it was."""

import gc
import sys
from pathlib import Path

import pytest

from gradlab.base.lazy import import_uncollected


@pytest.mark.parametrize("enabled", [True, False])
def test_an_import_is_not_interrupted_by_collections_and_leaves_the_collector_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, enabled: bool
) -> None:
    (tmp_path / "many_objects.py").write_text(
        "import gc\nbefore = [s['collections'] for s in gc.get_stats()]\n"
        "kept = [[i] for i in range(20_000)]\n"
        "collected = [s['collections'] for s in gc.get_stats()] != before\n"
    )
    (tmp_path / "fails.py").write_text("raise ValueError('as it may')\n")
    monkeypatch.syspath_prepend(tmp_path)
    frozen, was = gc.get_freeze_count(), gc.isenabled()
    try:
        gc.enable() if enabled else gc.disable()
        module = import_uncollected("many_objects")
        assert not module.collected and gc.isenabled() is enabled
        assert gc.get_freeze_count() >= frozen + 20_000
        with pytest.raises(ValueError, match="as it may"):
            import_uncollected("fails")
        assert gc.isenabled() is enabled
    finally:
        gc.enable() if was else gc.disable()
        sys.modules.pop("many_objects", None)
