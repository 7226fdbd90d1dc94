"""torchrun starts ranks again: they agree on a start, and go on with what the ranks before had begun."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from torch.distributed import HashStore

from gradlab.base.restarts import Start, agree


@pytest.mark.parametrize("size", [1, 2, 4])
def test_all_ranks_agree_on_a_start_whatever_earlier_ones_left(size: int) -> None:
    store = HashStore()
    for number in (1, 2, 3):
        with ThreadPoolExecutor(size) as pool:
            found = list(pool.map(lambda rank: agree(store, rank, size), range(size)))
        assert found == [number] * size


def test_ranks_that_come_late_and_those_that_died_on_the_way_do_not_matter() -> None:
    store, found = HashStore(), list[int]()
    store.set("gradlab/token_1", "of a rank that died before it was told a number")
    main = threading.Thread(target=lambda: found.append(agree(store, 0, 3)))
    main.start()
    for rank in (2, 1):
        found.append(agree(store, rank, 3))
    main.join()
    assert found == [1, 1, 1]


def test_only_what_had_begun_goes_on(tmp_path: Path) -> None:
    store = HashStore()
    assert Start(2, store).left() is None
    Start(1, store).remember(tmp_path)
    assert Start(2, store).left() is None  # a configuration that was refused leaves an empty folder, or none
    (tmp_path / "multirun.yaml").touch()
    assert Start(1, store).left() is None and Start(2, store).left() == tmp_path
