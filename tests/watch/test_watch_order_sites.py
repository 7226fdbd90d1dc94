"""Calls that are made too early or too late in a function of their own are named where that function is called."""

import ast

import pytest
from torch.nn.utils import clip_grad_norm_
from torch.optim import SGD
from torch.optim.lr_scheduler import ExponentialLR
from watched_loops import batches, loss_of, marked, net

import gradlab
from gradlab.watch.order_sites import is_zeroed

pytestmark = pytest.mark.filterwarnings("ignore:Detected call of .lr_scheduler.step")


class Parts:
    """Each call of an update in a method of its own."""

    def __init__(self, right=False):
        self.model, self.right = net(), right
        self.optimizer = SGD(self.model.parameters(), 0.1)
        self.schedule = ExponentialLR(self.optimizer, 0.99)

    def clip(self):
        for group in self.optimizer.param_groups:
            clip_grad_norm_(group["params"], 1.0)

    def zero(self):
        for each in (self.optimizer,):
            each.zero_grad()

    def backward(self, batch):
        loss_of(self.model, batch).backward()

    def step(self):
        self.optimizer.step()

    def slower(self):
        self.schedule.step()

    def run(self, folder):
        with gradlab.watch(self.model, self.optimizer, folder=folder, quiet=True) as watch:
            for batch in batches(6):
                self.update(batch)
        assert not watch.broken
        return [(f.name, f.site[1]) for f in watch.faults]


class ClipsTooEarly(Parts):
    def update(self, batch):
        self.zero()
        if not self.right:
            self.clip()  # here
        self.backward(batch)
        self.clip()
        self.step()


class ClipsTooLate(Parts):
    def finish(self):
        self.step()
        if not self.right:
            self.clip()  # here

    def update(self, batch):
        self.zero()
        self.backward(batch)
        self.finish()


class ZeroesTooLate(Parts):
    def update(self, batch):
        self.zero()
        self.backward(batch)
        if not self.right:
            self.zero()  # here
        self.step()


class ZeroesInAReport(Parts):
    """A function that does something else is where the call is wrong, and not where it is called."""

    def norms(self):
        self.seen = [p.grad.norm() for p in self.model.parameters()]
        if not self.right:
            self.optimizer.zero_grad()  # here

    def update(self, batch):
        self.zero()
        self.backward(batch)
        self.norms()
        self.step()


class Handlers(Parts):
    """What is called through a variable was decided where it was written."""

    def __init__(self, right=False):
        super().__init__(right)
        self.handlers = {"after": []} if right else {"after": self.late()}

    def fire(self, event):
        for handler in self.handlers[event]:
            handler()

    def update(self, batch):
        self.zero()
        self.backward(batch)
        self.fire("after")
        self.step()


class ZeroesInALambda(Handlers):
    def late(self):
        return [lambda: self.optimizer.zero_grad(set_to_none=False)]  # here


class ZeroesInAHandler(Handlers):
    def late(self):
        def clean():
            self.zero()  # here

        return [clean]


def called_often(function):
    def counted(*args):
        return function(*args)

    return counted


class ZeroesWrapped(Parts):
    """A function that is wrapped is called by its name."""

    @called_often
    def clean(self):
        self.optimizer.zero_grad()

    def update(self, batch):
        self.clean()
        self.backward(batch)
        if not self.right:
            self.clean()  # here
        self.step()


class SlowsTooEarly(Parts):
    def finish(self):
        if not self.right:
            self.slower()  # here
        self.optimizer.step()

    def update(self, batch):
        self.zero()
        self.backward(batch)
        self.finish()
        if self.right:
            self.slower()


class ZeroesAlone(Parts):
    def update(self, batch):
        self.optimizer.zero_grad(); self.backward(batch); self.late(); self.step()  # fmt: skip  # noqa: E702

    def late(self):
        if not self.right:
            self.zero_and_clip()

    def zero_and_clip(self):
        self.clip()
        self.optimizer.zero_grad()  # here


FAULTS = {
    ClipsTooEarly: "clip-before-backward",
    ClipsTooLate: "clip-after-step",
    ZeroesTooLate: "zero-before-step",
    SlowsTooEarly: "schedule-before-step",
    ZeroesAlone: "zero-before-step",
    ZeroesInAReport: "zero-before-step",
    ZeroesInALambda: "zero-before-step",
    ZeroesInAHandler: "zero-before-step",
    ZeroesWrapped: "zero-before-step",
}


@pytest.mark.parametrize("right", [False, True])
@pytest.mark.parametrize("kind", FAULTS)
def test_a_call_in_a_function_of_its_own(kind, right, tmp_path):
    expected = [] if right else [(FAULTS[kind], marked(kind))]
    assert kind(right).run(tmp_path) == expected


@pytest.mark.parametrize(
    ("text", "zeroed"),
    [
        ("p.grad = None", True),
        ("main_grads[i] = None", True),
        ("p.grad.zero_()", True),
        ("self.grad_clip = None", False),
        ("p.requires_grad = None", False),
        ("p.zero_()", False),
    ],
)
def test_a_gradient_is_told_from_settings_by_its_name(text, zeroed):
    node = ast.parse(text).body[0]
    assert is_zeroed(getattr(node, "value", node) if isinstance(node, ast.Expr) else node) == zeroed
