"""Loops that break, are broken off, or share the process with others."""

import json
import sys
import threading
import types
import warnings

import pytest
from torch.optim import lr_scheduler
from watched_loops import batches, lines, loss_of, pair, train, update

import gradlab
from gradlab.watch.patches import PATCHES


def moved_too_early(schedule):
    schedule.step()


def test_warnings_of_pytorch_name_the_line_of_the_loop(tmp_path):
    """The same as without a watch."""
    places = []
    for watched in (False, True):
        model, optimizer = pair()
        schedule = lr_scheduler.StepLR(optimizer, 5)
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            if watched:
                with gradlab.watch(model, optimizer, schedule=schedule, folder=tmp_path, quiet=True):
                    moved_too_early(schedule)
            else:
                moved_too_early(schedule)
        places.append([(w.filename, w.lineno) for w in seen])
    assert places[0] == places[1] == [(__file__, moved_too_early.__code__.co_firstlineno + 1)]


def test_the_gradients_of_other_threads_are_left_alone(tmp_path):
    """Another thread trains its own model: nobody looks at the gradients of this one from there."""
    (model, optimizer), (other, others) = pair(), pair(1)
    looked, here = set(), threading.get_ident()
    with gradlab.watch(model, optimizer, folder=tmp_path, quiet=True) as watch:
        follower = watch.loop.trackers[0]
        versions = follower.versions

        def seen():
            looked.add(threading.get_ident())
            return versions()

        follower.versions = seen
        thread = threading.Thread(target=train, args=(other, others, 20))
        thread.start()
        train(model, optimizer, 20)
        thread.join()
    assert looked == {here}
    assert len(lines(tmp_path)) == 20


def test_a_loop_in_a_thread_of_its_own(tmp_path):
    model, optimizer = pair()
    with gradlab.watch(model, optimizer, folder=tmp_path, quiet=True) as watch:
        thread = threading.Thread(target=train, args=(model, optimizer, 20))
        thread.start()
        thread.join()
    assert watch.faults == []
    assert [line["attempt"] for line in lines(tmp_path)] == [*range(1, 21)]
    assert sum("train/loss" in line for line in lines(tmp_path)) == 19  # the first step tells which thread it is


def test_watches_at_once(tmp_path):
    """Within each other, left in the wrong order, and each about its own."""
    (model, optimizer), (other, others) = pair(), pair(1)
    first = gradlab.watch(model, optimizer, folder=tmp_path / "first", quiet=True)
    second = gradlab.watch(other, others, folder=tmp_path / "second", quiet=True)
    first.__enter__()
    second.__enter__()
    train(model, optimizer, 3)
    for batch in batches(3):
        loss_of(other, batch).backward()
        others.step()
    first.__exit__(None, None, None)
    train(other, others, 3)
    second.__exit__(None, None, None)
    assert [watch.loop.outputs[0].num_updates for watch in (first, second)] == [3, 6]
    assert [[seen.code for seen in watch.faults] for watch in (first, second)] == [[], ["GL305"]]
    assert not PATCHES


def test_an_exception_is_not_taken_for_a_failed_update(tmp_path):
    model, optimizer = pair()
    with pytest.raises(KeyError), gradlab.watch(model, optimizer, folder=tmp_path, quiet=True) as watch:
        train(model, optimizer)
        {}["lr"]
    told = json.loads((tmp_path / "diagnosis.json").read_text())
    assert told["verdict"] == "interrupted"
    assert told["sentence"] == "stopped after 6 updates: KeyError: 'lr'"
    assert told["outcome"]["status"] == "failed"
    assert watch.report().count("KeyError") == 1


def test_strict_says_it_once(tmp_path):
    model, optimizer = pair()
    with (
        pytest.raises(gradlab.watch.Fault),
        gradlab.watch(model, optimizer, folder=tmp_path, quiet=True, strict=True) as watch,
    ):
        for batch in batches(4):
            loss_of(model, batch).backward()
            optimizer.step()
    assert watch.report().count("GL305 error") == 1
    assert "it ended with: Fault: GL305 (strict=True)" in watch.report()


@pytest.mark.parametrize("ends, status", [(0, "completed"), (None, "completed"), (3, "interrupted")])
def test_a_program_that_ends_within(ends, status, tmp_path):
    model, optimizer = pair()
    with pytest.raises(SystemExit), gradlab.watch(model, optimizer, folder=tmp_path, quiet=True) as watch:
        train(model, optimizer)
        sys.exit(ends)
    assert watch.status == status
    assert ("SystemExit: 3" in watch.report()) == (ends == 3)


def test_a_generator_that_is_left(tmp_path):
    watches = []

    def training() -> types.GeneratorType:
        model, optimizer = pair()
        with gradlab.watch(model, optimizer, folder=tmp_path, quiet=True) as watch:
            watches.append(watch)
            for batch in batches(6):
                update(model, optimizer, batch)
                yield

    loop = training()
    next(loop), next(loop)
    assert "(2 updates)" in watches[0].report()
    loop.close()
    assert watches[0].status == "completed"
    assert not PATCHES


def test_reports_while_it_goes_on_count_the_latest_update(tmp_path):
    model, optimizer = pair()
    with gradlab.watch(model, optimizer, folder=tmp_path, quiet=True) as watch:
        for i, batch in enumerate(batches(4)):
            update(model, optimizer, batch)
            assert f"({i + 1} update" in watch.report()
    assert [line["attempt"] for line in lines(tmp_path)] == [1, 2, 3, 4]
