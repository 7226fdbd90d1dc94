"""A schedule that ends long before the training, or is never stepped, and those of which nothing is said."""

import functools
import inspect
import math

import pytest
import torch
from torch.optim import SGD
from torch.optim import lr_scheduler as schedules
from watched_loops import batches, loss_of, net

import gradlab
from gradlab.watch import later_steps
from gradlab.watch.call_site import USER, format_site
from gradlab.watch.rules import plateaus

MADE = {
    "exponential": lambda optimizer: schedules.ExponentialLR(optimizer, 0.8),
    "steps": lambda optimizer: schedules.StepLR(optimizer, 5, 0.1),
    "linear": lambda optimizer: schedules.PolynomialLR(optimizer, total_iters=8),
    "lambda": lambda optimizer: schedules.LambdaLR(optimizer, lambda epoch: 0.8**epoch),
}
USUAL = {
    "cosine": lambda optimizer: schedules.CosineAnnealingLR(optimizer, 80),
    "restarts": lambda optimizer: schedules.CosineAnnealingWarmRestarts(optimizer, 20),
    "one_cycle": lambda optimizer: schedules.OneCycleLR(optimizer, 0.1, total_steps=81),
    "slow": lambda optimizer: schedules.ExponentialLR(optimizer, 0.97),
}


def trained(folder, make, step_at, updates=8):
    """Ten epochs. step_at: whether the schedule steps at an update of an epoch."""
    model = net()
    optimizer = SGD(model.parameters(), 0.1)
    made = inspect.currentframe().f_lineno + 1
    schedule = make(optimizer)
    with gradlab.watch(model, optimizer, schedule=schedule, folder=folder, quiet=True) as watch:
        for _ in range(10):
            for i, batch in enumerate(batches(updates)):
                optimizer.zero_grad()
                loss_of(model, batch).backward()
                optimizer.step()
                if step_at(i):
                    schedule.step()
                line = inspect.currentframe().f_lineno - 1
    assert not watch.broken
    since = [f.update for f in watch.faults if f.name == "schedule-too-short"]
    assert [f.update for f in watch.faults if f.update is not None] == since, "others are judged of the whole run"
    assert all(update <= 40 for update in since), "from where on it holds, not where it was noticed"
    for fault in watch.faults:
        if fault.name in ("schedule-too-short", "schedule-length-in-updates"):
            assert fault.site[1] == made
            assert fault.detail.endswith(f"it is stepped at {format_site((fault.site[0], line))}")
            return [fault.name], line
    return [(f.name, f.site[1]) for f in watch.faults], line


@pytest.mark.parametrize("name", MADE)
def test_a_schedule_of_epochs_that_is_stepped_for_each_batch(name, tmp_path):
    faults, _ = trained(tmp_path, MADE[name], lambda i: True)
    assert faults == ["schedule-too-short"]
    assert trained(tmp_path, MADE[name], lambda i: i == 7)[0] == []


@pytest.mark.parametrize("name", USUAL)
def test_a_schedule_that_is_as_long_as_the_training(name, tmp_path):
    assert trained(tmp_path, USUAL[name], lambda i: True)[0] == []


@pytest.mark.parametrize(
    ("milestones", "gamma", "wrong"), [([6, 8], 0.1, True), ([6, 40], 0.1, False), ([6, 8], 0.2, False)]
)
def test_milestones_of_epochs_that_are_counted_in_updates(milestones, gamma, wrong, tmp_path):
    """They end at a low rate, that never changes again; where they come later, or end higher, nothing is said."""
    faults, _ = trained(
        tmp_path, lambda optimizer: schedules.MultiStepLR(optimizer, milestones, gamma), lambda i: True, 20
    )
    assert faults == ["schedule-too-short"] * wrong


def test_a_schedule_that_is_never_stepped(tmp_path):
    faults, line = trained(tmp_path, USUAL["cosine"], lambda i: False)
    assert faults == [("schedule-never-stepped", line - 2)]


LONG = {
    "cosine": lambda optimizer, n: schedules.CosineAnnealingLR(optimizer, n),
    "one_cycle": lambda optimizer, n: schedules.OneCycleLR(optimizer, 0.1, total_steps=n),
    "linear": lambda optimizer, n: schedules.LinearLR(optimizer, 0.1, total_iters=n),
    "lambda": lambda optimizer, n: schedules.LambdaLR(optimizer, lambda step: 1 - step / n),
    "partial": lambda optimizer, n: schedules.LambdaLR(optimizer, functools.partial(lambda step, num: 1, num=n)),
    "sequential": lambda optimizer, n: schedules.SequentialLR(
        optimizer,
        [schedules.LinearLR(optimizer, 0.1, total_iters=5), schedules.CosineAnnealingLR(optimizer, n - 5)],
        [5],
    ),
}


@pytest.mark.parametrize("name", LONG)
def test_a_schedule_of_updates_that_is_stepped_for_each_epoch(name, tmp_path):
    faults, _ = trained(tmp_path / "epochs", lambda optimizer: LONG[name](optimizer, 80), lambda i: i == 7)
    assert faults == ["schedule-length-in-updates"]
    for n, step_at in ((81, lambda i: True), (200, lambda i: i == 7), (40, lambda i: i % 2)):
        assert trained(tmp_path / str(n), lambda optimizer, n=n: LONG[name](optimizer, n), step_at)[0] == []


def measured(model, kind):
    data = tuple(map(torch.cat, zip(*batches(8, seed=99), strict=True)))
    with torch.no_grad():
        return (model(data[0]).argmax(1) == data[1]).float().mean().item() if kind == "share" else loss_of(model, data)


@pytest.mark.parametrize("mode", ["min", "max"])
@pytest.mark.parametrize("kind", ["share", "loss"])
def test_a_plateau_schedule_whose_mode_is_the_contrary_one(kind, mode, tmp_path):
    model = net()
    optimizer = SGD(model.parameters(), 0.3)
    line = inspect.currentframe().f_lineno + 1
    schedule = schedules.ReduceLROnPlateau(optimizer, mode=mode, factor=0.5, patience=3)
    with gradlab.watch(model, optimizer, schedule=schedule, folder=tmp_path, quiet=True) as watch:
        for epoch in range(16):
            for batch in batches(16, seed=epoch):
                optimizer.zero_grad()
                loss_of(model, batch).backward()
                optimizer.step()
            schedule.step(measured(model, kind))
    wrong = (kind, mode) in {("share", "min"), ("loss", "max")}
    assert not watch.broken
    assert [(f.name, f.site[1]) for f in watch.faults] == [("plateau-of-an-improving-metric", line)] * wrong


@pytest.mark.parametrize(("first", "wrong"), [(0.82, True), (0.6, False)])
def test_an_error_rate_worse_than_guessing_is_an_accuracy(first, wrong, tmp_path):
    """Of four classes, while the loss falls and does not halve; an error rate of less may rise by overfitting."""
    model = net()
    optimizer = SGD(model.parameters(), 0.02)
    schedule = schedules.ReduceLROnPlateau(optimizer, factor=0.5, patience=2)
    with gradlab.watch(model, optimizer, schedule=schedule, folder=tmp_path, quiet=True) as watch:
        for epoch in range(12):
            for batch in batches(16, seed=epoch):
                optimizer.zero_grad()
                loss_of(model, batch).backward()
                optimizer.step()
            schedule.step(round(200 * (first + 0.01 * epoch)) / 200)
    assert not watch.broken and watch.loop.trackers[0].constant.loss(1) > 1.2
    assert [f.name for f in watch.faults] == ["plateau-of-an-improving-metric"] * wrong


@pytest.mark.parametrize("kind", ["validation", "error"])
def test_a_plateau_schedule_of_a_metric_that_gets_worse(kind, tmp_path):
    """The training loss falls, and what is not trained on gets worse from the first epoch on."""
    model = net()
    optimizer = SGD(model.parameters(), 0.3)
    schedule = schedules.ReduceLROnPlateau(optimizer, factor=0.5, patience=3)
    with gradlab.watch(model, optimizer, schedule=schedule, folder=tmp_path, quiet=True) as watch:
        for epoch in range(16):
            for batch in batches(16, seed=epoch):
                optimizer.zero_grad()
                loss_of(model, batch).backward()
                optimizer.step()
            schedule.step(1.3 + 0.1 * epoch**0.7 if kind == "validation" else round(200 * (0.1 + 0.02 * epoch)) / 200)
    assert not watch.broken and optimizer.param_groups[0]["lr"] < 0.1
    assert watch.faults == []


FOLLOWING = {
    "decibels": ("min", lambda loss, t: 13 - 10 * math.log10(loss), True),
    "decibels of other errors": ("min", lambda loss, t: 13 - 18 * math.log10(loss), True),
    "explained": ("min", lambda loss, t: 0.9 - 2 * loss, True),
    "reward": ("min", lambda loss, t: -40 * loss, True),
    "overlap": ("min", lambda loss, t: 1 - 0.8 * loss, True),
    "overfitted": ("min", lambda loss, t: 0.8 + 0.9 * t, False),
    "in other units": ("min", lambda loss, t: 30 + 2 * t, False),
    "negative accuracy": ("min", lambda loss, t: -0.5 + 0.1 * t, False),
    "better at first": ("min", lambda loss, t: abs(t - 0.2) + 0.1, False),
    "error in other units": ("max", lambda loss, t: 40 * loss + 3, True),
    "accuracy that falls": ("max", lambda loss, t: 0.9 - 0.3 * t, False),
}


@pytest.mark.parametrize("kind", FOLLOWING)
def test_a_score_follows_the_training_loss(kind):
    mode, metric, wrong = FOLLOWING[kind]
    losses = [0.9 * math.exp(-i / 5) + 0.05 for i in range(16)]
    seen = [plateaus.Measured(metric(loss, i / 15), loss, i % 4 == 3) for i, loss in enumerate(losses)]
    assert bool(list(plateaus.contrary(mode, seen, None))) == wrong


def shares(first, last, loss, number=16):
    """Of 100 samples, with the training loss from `loss` on, and every fourth lowers the rate."""
    steps = [i / (number - 1) for i in range(number)]
    return [
        plateaus.Measured(round(first + (last - first) * t, 2), loss - 0.3 * t, not i % 4) for i, t in enumerate(steps)
    ]


@pytest.mark.parametrize(
    ("first", "last", "loss", "wrong"),
    [(0.32, 0.44, 1.2, True), (0.32, 0.44, 1.0, False), (0.6, 0.8, 1.2, False), (0.32, 0.36, 1.2, False)],
)
def test_who_has_learnt_nothing_is_wrong_more_often(first, last, loss, wrong):
    """Of three classes; where something was learnt, or the metric hardly rises, it may be an error rate."""
    seen = [plateaus.Measured(first, math.nan, False), *shares(first, last, loss)]
    assert len(list(plateaus.contrary("min", seen, math.log(3), 0.34))) == wrong


@pytest.mark.parametrize(
    ("first", "last", "loss", "wrong"),
    [
        (0.0, 0.25, 0.8, True),
        (0.02, 0.62, 0.8, True),
        (0.05, 0.3, 0.8, False),
        (0.03, 0.9, 0.05, False),
        (0.02, 3, 0.8, False),
    ],
)
@pytest.mark.parametrize("flat", [0, 7])
def test_an_error_does_not_begin_at_nothing(first, last, loss, wrong, flat):
    """An F1 does, also for a while; an error rate grows less by overfitting, and a validation loss begins near that of
    training."""
    steps = [i / 15 for i in range(16)]
    seen = [
        plateaus.Measured(first + (last - first) * t**0.7, loss * (1 - 0.2 * t), i % 4 == 3)
        for i, t in enumerate(steps)
    ]
    seen = [plateaus.Measured(first, loss, not i % 3) for i in range(flat)] + seen
    assert bool(list(plateaus.contrary("min", seen, None))) == wrong


@pytest.mark.parametrize("how", ["twice", "differently", "each"])
def test_two_schedules_of_one_optimizer_and_none_of_the_other(how, tmp_path):
    model = net()
    one, two = SGD(model[0].parameters(), 0.1), SGD(model[2].parameters(), 0.1)
    first = schedules.ExponentialLR(one, 0.9)
    line = inspect.currentframe().f_lineno + 1
    second = schedules.ExponentialLR(two if how == "each" else one, 0.8 if how == "differently" else 0.9)
    with gradlab.watch(model, [one, two], folder=tmp_path, quiet=True) as watch:
        for epoch in range(6):
            for batch in batches(8, seed=epoch):
                model.zero_grad()
                loss_of(model, batch).backward()
                one.step()
                two.step()
            first.step()
            second.step()
    found = [(f.name, f.optimizer, f.site[1]) for f in watch.faults if f.name.startswith("schedule")]
    assert not watch.broken and found == [("schedule-of-another-optimizer", 1, line)] * (how == "twice")


@pytest.mark.parametrize("how", ["replaced", "discovered", "never", "copied", "scheduled", "shared", "briefly"])
def test_a_schedule_of_an_optimizer_that_steps_no_more(how, tmp_path):
    model = net()
    first, second = SGD(model[2].parameters(), 0.1), SGD(model.parameters(), 0.1)
    if how == "shared":
        second.param_groups[0]["params"] = second.param_groups[0]["params"][:2]
        second.param_groups.append(first.param_groups[0])
    made = [schedules.ExponentialLR(first, 0.9)] + [schedules.ExponentialLR(second, 0.9)] * (how == "scheduled")
    given = None if how == "discovered" else [second] if how == "never" else [first, second]
    stage = {"never": 0, "briefly": 12}.get(how, 4)
    with gradlab.watch(model, given, folder=tmp_path, quiet=True) as watch:
        for epoch in range(14):
            optimizer = first if epoch < stage else second
            for batch in batches(8, seed=epoch):
                model.zero_grad()
                loss_of(model, batch).backward()
                optimizer.step()
            if how == "copied":
                second.param_groups[0]["lr"] = first.param_groups[0]["lr"]
            for schedule in made:
                line = inspect.currentframe().f_lineno + 1
                schedule.step()
    assert not watch.broken
    found = [(f.name, f.site[1]) for f in watch.faults if f.name.startswith("schedule")]
    assert found == [("schedule-of-another-optimizer", line)] * (how in ("replaced", "discovered", "never"))


def rising(optimizer):
    return schedules.LambdaLR(optimizer, lambda s: min(1.0, (s + 1) / 6))


ANEW = {
    "unchanged": (lambda o: schedules.StepLR(o, 5), True),
    "rising": (rising, True),
    "hardly begun": (lambda o: schedules.CosineAnnealingLR(o, 32), True),
    "restarts": (lambda o: schedules.CosineAnnealingLR(o, 8), False),
    "chained": (lambda o: schedules.ExponentialLR(o, 0.9), False),
    "stopped early": (lambda o: schedules.CosineAnnealingLR(o, 32), False),
    "cut short": (lambda o: schedules.CosineAnnealingLR(o, 32), True),
}
UPDATES = {"stopped early": (7, 3, 8, 5, 4), "cut short": (8, 8, 8, 8, 3)}
"""Of each epoch, where they are not 8."""


@pytest.mark.parametrize("once", [False, True])
@pytest.mark.parametrize("kind", ANEW)
def test_a_schedule_that_is_made_anew(kind, once, tmp_path):
    make, is_wrong = ANEW[kind]
    model = net()
    optimizer = SGD(model.parameters(), 0.1)
    schedule = make(optimizer)
    with gradlab.watch(model, optimizer, folder=tmp_path, quiet=True) as watch:
        for epoch in range(5):
            line = inspect.currentframe().f_lineno + 2
            if not once:
                schedule = make(optimizer)
            for i, batch in enumerate(batches(UPDATES.get(kind, (8,) * 5)[epoch], seed=epoch)):
                optimizer.zero_grad()
                loss_of(model, batch).backward()
                optimizer.step()
                if kind not in ("unchanged", "chained") or i == 7:
                    schedule.step()
    assert not watch.broken
    assert [(f.name, f.site[1]) for f in watch.faults] == [("schedule-made-anew", line)] * (is_wrong and not once)


def test_a_schedule_of_micro_batches_is_not_too_short_as_well(tmp_path):
    model = net()
    optimizer = SGD(model.parameters(), 0.1)
    schedule = schedules.LinearLR(optimizer, 1.0, 1e-6, 45)
    with gradlab.watch(model, optimizer, folder=tmp_path, quiet=True) as watch:
        for i, batch in enumerate(batches(180)):
            (loss_of(model, batch) / 4).backward()
            if i % 4 == 3:
                optimizer.step()
                optimizer.zero_grad()
            schedule.step()
    assert [f.name for f in watch.faults] == ["schedule-every-micro-batch"]


def test_an_accuracy_that_comes_to_few_values_under_a_schedule_that_minimises_it():
    values = [(0.385, False), (0.755, False), (0.81, True), (0.81, False), (0.81, True), (0.815, False)]
    for divisor, wrong in ((1, True), (math.pi, False)):
        seen = [plateaus.Measured(v / divisor, 1.4 / (i + 1), reduced) for i, (v, reduced) in enumerate(values)]
        assert bool(list(plateaus.contrary("min", seen, None))) == wrong


def warmed_up(optimizer, length):
    parts = [schedules.LinearLR(optimizer, 0.1, total_iters=2), schedules.CosineAnnealingLR(optimizer, length - 2)]
    return schedules.SequentialLR(optimizer, parts, [2])


FALLING = {
    "cosine": schedules.CosineAnnealingLR,
    "warmed up": warmed_up,
    "by hand": lambda o, length: schedules.LambdaLR(o, lambda s: 0.5 + 0.5 * math.cos(math.pi * s / length)),
    "to a half": lambda o, length: schedules.LambdaLR(o, lambda s: 0.75 + 0.25 * math.cos(math.pi * s / length)),
    "linear": lambda o, length: schedules.LinearLR(o, 1.0, 0.0, total_iters=length),
    "polynomial": lambda o, length: schedules.PolynomialLR(o, total_iters=length),
}
STAYS = ("linear", "polynomial")


@pytest.mark.parametrize("kind", FALLING)
@pytest.mark.parametrize(("epochs", "length", "each_batch"), [(10, 10, True), (10, 10, False), (8, 10, True)])
def test_a_cosine_that_counts_epochs_and_is_stepped_for_each_batch(epochs, length, each_batch, kind, tmp_path):
    """Its rate rises again, or stays; where its length is not that of the epochs, it may be one of several cycles."""
    model = net()
    optimizer = SGD(model.parameters(), 0.1)
    line = inspect.currentframe().f_lineno + 1
    schedule = FALLING[kind](optimizer, length)
    with gradlab.watch(model, optimizer, folder=tmp_path, quiet=True) as watch:
        for _epoch in range(1, epochs + 1):
            for batch in batches(5):
                optimizer.zero_grad()
                loss_of(model, batch).backward()
                optimizer.step()
                if each_batch:
                    schedule.step()
            if not each_batch:
                schedule.step()
    wrong = each_batch and epochs == length and kind != "to a half"
    if kind in STAYS:
        assert not wrong or "the number of epochs; the rate is 0 after that" in watch.faults[0].detail
        return
    assert [(f.name, f.site[1], f.update) for f in watch.faults] == [("schedule-too-short", line, 12)] * wrong
    assert all("the rate rises again from here on" in f.detail for f in watch.faults)


CALLBACK = """
class Late:
    def __init__(self, schedule):
        self.schedule = schedule

    def later(self):
        self.schedule.step()

"""
PROGRAM = """
import torch
from torch.optim import lr_scheduler
from watched_loops import batches, loss_of, net

import gradlab

model = net()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
schedule = lr_scheduler.{made}
with gradlab.watch(model, optimizer, folder=folder, quiet=True) as watch:
    for i, batch in enumerate(batches(50)):
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        optimizer.step()
{more}
"""


@pytest.mark.parametrize(
    ("made", "more", "wrong"),
    [
        ("LambdaLR(optimizer, lambda step: 1 / (1 + step))", "", True),
        ("LambdaLR(optimizer, lambda step: 1 / (1 + step))", "        if i == 99:\n            schedule.step()", False),
        (
            "LambdaLR(optimizer, lambda step: 1 / (1 + step))",
            "        optimizer.param_groups[0]['lr'] = 1 / (i + 1)",
            False,
        ),
        ("ReduceLROnPlateau(optimizer)", "", False),
        ("LambdaLR(optimizer, lambda step: 1 / (1 + step))" + CALLBACK, "", True),
        ("LambdaLR(optimizer, lambda step: 1 / (1 + step))" + CALLBACK + "callback = Late(schedule)", "", True),
        ("LambdaLR(optimizer, lambda step: 1 / (1 + step))" + CALLBACK + "later = Late(schedule).later", "", False),
    ],
)
def test_a_schedule_that_was_not_passed_and_is_never_stepped(made, more, wrong, tmp_path, monkeypatch):
    """Unless the text steps it, at a line that the loop does not come to."""
    program = tmp_path / "train.py"
    program.write_text(PROGRAM.format(made=made, more=more))
    names = {"folder": tmp_path / "watch", "__name__": "train"}
    monkeypatch.setattr(later_steps, "ORIGINS", {str(program): USER})  # and not the files of other tests
    exec(compile(program.read_text(), str(program), "exec"), names)
    found = [(f.name, f.site[1]) for f in names["watch"].faults]
    line = program.read_text().split("\n").index("        optimizer.step()") + 1
    assert found == [("schedule-never-stepped", line)] * wrong


def test_half_of_a_schedule_whose_optimizer_is_replaced_by_another(tmp_path):
    """Passes that the second optimizer uses are no micro-batches of the first."""
    model = net()
    with gradlab.watch(model, folder=tmp_path, quiet=True) as watch:
        for _ in range(2):
            optimizer = SGD(model.parameters(), 0.1)
            schedule = schedules.PolynomialLR(optimizer, total_iters=80)
            for batch in batches(40):
                optimizer.zero_grad()
                loss_of(model, batch).backward()
                optimizer.step()
                schedule.step()
    assert "schedule-length-in-micro-batches" not in [fault.name for fault in watch.faults]


MAKERS = {
    "in a constructor": (
        "class Loop:\n    def __init__(self, o, n):\n        length = n + 0\n"
        "        self.schedule = cosine(o, T_max=length)  # here",
        "Loop(optimizer, length)",
    ),
    "one of two": (
        "class Loop:\n    def __init__(self, o, n):\n        length = n + 0\n"
        "        self.other = cosine(other(), length)\n"
        "        self.schedule = cosine(o, length)  # here",
        "Loop(optimizer, length)",
    ),
    "in a dictionary": (
        "def made(o, n):\n    return {'other': cosine(other(), n + 0),\n            'one': cosine(o, n + 0)}  # here\n"
        "class Loop:\n    def __init__(self, o, n):\n"
        "        self.all = made(o, n)\n        self.schedule = self.all['one']",
        "Loop(optimizer, length)",
    ),
    "handed to a constructor": (
        "class Loop:\n    def __init__(self, o, n):\n        self.schedule = cosine(o, n)",
        "Loop(optimizer, length)  # here",
    ),
    "handed to a function's function": (
        "def made(o, n):\n    def factor(s):\n        return max(1 - s / n, 0)\n"
        "    return schedules.LambdaLR(o, factor)\n"
        "class Loop:\n    def __init__(self, o, n):\n        length = n + 0\n"
        "        self.schedule = made(o, length)  # here",
        "Loop(optimizer, length)",
    ),
}
LOOP = """
    def run(self, model, optimizer, updates):
        for batch in batches(updates):
            optimizer.zero_grad()
            loss_of(model, batch).backward()
            optimizer.step()
            self.schedule.step()
def train(watched, length, updates):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    loop = {call}
    with watched(model, optimizer) as watch:
        loop.run(model, optimizer, updates)
    return watch
"""
HEAD = """import torch
from torch.optim import lr_scheduler as schedules
from watched_loops import batches, loss_of, net
def cosine(optimizer, T_max):
    return schedules.PolynomialLR(optimizer, total_iters=T_max)
def other():
    return torch.optim.SGD([torch.zeros(1, requires_grad=True)], 0.1)
"""


@pytest.mark.parametrize("kind", MAKERS)
def test_a_schedule_is_named_where_its_length_is_given(kind, tmp_path):
    made, call = MAKERS[kind]
    marked, path = HEAD + made + LOOP.format(call=call), tmp_path / "program.py"
    path.write_text(marked)
    names = {}
    exec(compile(marked, str(path), "exec"), names)

    def watched(model, optimizer):
        return gradlab.watch(model, optimizer, folder=tmp_path / "out", quiet=True)

    found = names["train"](watched, 8, 80).faults
    lines = marked.split("\n")
    assert [(f.name, lines[f.site[1] - 1].endswith("# here")) for f in found] == [("schedule-too-short", True)]
    assert not names["train"](watched, 81, 80).faults
