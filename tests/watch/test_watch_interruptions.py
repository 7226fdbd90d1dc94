"""Loops that fail, are interrupted, or share the process with others."""

import json
import sys
import threading
import types
import warnings

import pytest
from torch.optim import SGD, lr_scheduler
from watched_loops import batches, codes, lines, loss_of, net, pair, train, update

import gradlab
from gradlab.watch.patches import PATCHES


def moved_too_early(schedule):
    schedule.step()


def test_warnings_of_pytorch_name_the_same_line_as_without_a_watch(tmp_path):
    lines_of_warnings = []
    for watched in (False, True):
        model, optimizer = pair()
        schedule = lr_scheduler.StepLR(optimizer, 5)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            if watched:
                with gradlab.watch(model, optimizer, schedule=schedule, folder=tmp_path, quiet=True):
                    moved_too_early(schedule)
            else:
                moved_too_early(schedule)
        lines_of_warnings.append([(w.filename, w.lineno) for w in caught])
    plain, observed = lines_of_warnings
    assert observed == [(__file__, moved_too_early.__code__.co_firstlineno + 1)]
    assert plain == observed or "lr_scheduler" in plain[0][0]  # PyTorch 2.10 names a line of its own


def test_gradients_are_read_in_the_observed_thread_alone(tmp_path):
    """Another thread trains its own model meanwhile."""
    (model, optimizer), (other, others) = pair(), pair(1)
    threads, here = set(), threading.get_ident()
    with gradlab.watch(model, optimizer, folder=tmp_path, quiet=True) as watch:
        tracker = watch.loop.trackers[0]
        versions = tracker.versions

        def recording_thread():
            threads.add(threading.get_ident())
            return versions()

        tracker.versions = recording_thread
        thread = threading.Thread(target=train, args=(other, others, 20))
        thread.start()
        train(model, optimizer, 20)
        thread.join()
    assert threads == {here}
    assert len(lines(tmp_path)) == 20


def test_a_loop_in_another_thread(tmp_path):
    model, optimizer = pair()
    with gradlab.watch(model, optimizer, folder=tmp_path, quiet=True) as watch:
        thread = threading.Thread(target=train, args=(model, optimizer, 20))
        thread.start()
        thread.join()
    assert watch.faults == []
    assert [line["attempt"] for line in lines(tmp_path)] == [*range(1, 21)]
    assert sum("train/loss" in line for line in lines(tmp_path)) == 19  # the thread is known from the first step on


def test_overlapping_watches(tmp_path):
    """Entered within each other and left in the wrong order; each observes its own optimizer."""
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
    assert [[fault.code for fault in watch.faults] for watch in (first, second)] == [[], ["GL305"]]
    assert not PATCHES


def test_an_exception_is_not_a_failed_update(tmp_path):
    model, optimizer = pair()
    with pytest.raises(KeyError), gradlab.watch(model, optimizer, folder=tmp_path, quiet=True) as watch:
        train(model, optimizer)
        {}["lr"]
    diagnosis = json.loads((tmp_path / "diagnosis.json").read_text())
    assert diagnosis["verdict"] == "interrupted"
    assert diagnosis["sentence"] == "stopped after 6 updates: KeyError: 'lr'"
    assert diagnosis["outcome"]["status"] == "failed"
    assert watch.report().count("KeyError") == 1


def test_strict_reports_the_error_once(tmp_path):
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
def test_sys_exit_inside_the_watch(ends, status, tmp_path):
    model, optimizer = pair()
    with pytest.raises(SystemExit), gradlab.watch(model, optimizer, folder=tmp_path, quiet=True) as watch:
        train(model, optimizer)
        sys.exit(ends)
    assert watch.status == status
    assert ("SystemExit: 3" in watch.report()) == (ends == 3)


def test_a_generator_that_is_closed(tmp_path):
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


def test_a_report_inside_the_loop_counts_the_latest_update(tmp_path):
    model, optimizer = pair()
    with gradlab.watch(model, optimizer, folder=tmp_path, quiet=True) as watch:
        for i, batch in enumerate(batches(4)):
            update(model, optimizer, batch)
            assert f"({i + 1} update" in watch.report()
    assert [line["attempt"] for line in lines(tmp_path)] == [1, 2, 3, 4]


def test_a_watch_that_is_entered_again(tmp_path):
    """It continues its folder, and ignores what happened in between."""
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    watch = gradlab.watch(model, optimizer, folder=tmp_path, quiet=True)
    for epoch in range(3):
        with watch:
            train(model, optimizer, 5, epoch)
        train(model, optimizer, 1)
        assert not PATCHES
    assert codes(watch) == []
    assert [line["attempt"] for line in lines(tmp_path)] == [*range(1, 16)]
    with watch, pytest.raises(RuntimeError, match="running already"), watch:
        pass


@pytest.mark.parametrize("error, status", [(KeyboardInterrupt, "interrupted"), (ZeroDivisionError, "failed")])
def test_an_exception_is_reported_and_everything_restored(error, status, tmp_path):
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    with pytest.raises(error), gradlab.watch(model, optimizer, folder=tmp_path, quiet=True) as watch:
        train(model, optimizer)
        raise error
    assert watch.status == status
    assert error.__name__ in watch.report()
    assert not PATCHES
    assert not optimizer._optimizer_step_pre_hooks
    assert (tmp_path / "report.html").is_file()


def test_strict_restores_everything(tmp_path):
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    with (
        pytest.raises(gradlab.watch.Fault, match="GL305 error") as caught,
        gradlab.watch(model, optimizer, folder=tmp_path, quiet=True, strict=True),
    ):
        for batch in batches(4):
            loss_of(model, batch).backward()
            optimizer.step()
    assert caught.value.code == "GL305"
    assert not PATCHES
    assert len(lines(tmp_path)) == 1
