"""A file whose functions others call: what they give shows what its parameters are."""

from __future__ import annotations

import pytest
from audited_snippets import audited

from gradlab.audit.file_audit import audit
from gradlab.audit.rules.registry import load_rules
from gradlab.audit.source.files import read
from gradlab.audit.source.project import Project

ENGINE = """
from torch.nn import functional as F
def train(net, loader, opt, policy, n):
    for i, (x, y) in enumerate(loader):
        (F.cross_entropy(net(x), y) / n).backward()
        if (i + 1) % n == 0:
            opt.step()
            opt.zero_grad()
        policy.step()
def fit(net, loader, opt):
    for x, y in loader:
        opt.zero_grad()
        F.cross_entropy(net.module(x), y).backward()
        opt.step()
"""
MAIN = """
import torch
from torch import nn
from {name} import train, fit
def main(loader):
    net = nn.Linear(8, 4)
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
    {made}
    {call}
"""
SCHEDULE = "policy = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=100)"
CASES = {
    "a schedule": (SCHEDULE, "train(net, loader, opt, policy, 4)", {"GL401"}),
    "an environment": ("policy = Environment()", "train(net, loader, opt, policy, 4)", set()),
    "a wrapped model": ("net = nn.parallel.DistributedDataParallel(net)", "fit(net, loader, opt)", {"GL504"}),
    "a container": ("net = Container(net)", "fit(net, loader, opt)", set()),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("place", ["beside", "above"])
def test_a_caller_shows_what_a_parameter_is(name, place, tmp_path):
    made, call, codes = CASES[name]
    folder = tmp_path if place == "beside" else tmp_path / "lib"
    folder.mkdir(exist_ok=True)
    (folder / "engine.py").write_text(ENGINE)
    module = "engine" if place == "beside" else "lib.engine"
    (tmp_path / "main.py").write_text(MAIN.format(name=module, made=made, call=call))
    found = {f.code for f in audited(folder / "engine.py") if f.severity != "advice"}
    assert found == codes


def test_what_is_wrong_in_the_caller_is_not_reported_for_the_file(tmp_path):
    (tmp_path / "engine.py").write_text("def backward(loss):\n    loss.backward()\n")
    loop = "for x, y in loader:\n        backward(net(x).mean())\n        opt.step()"
    (tmp_path / "main.py").write_text(MAIN.format(name="engine", made="from engine import backward", call=loop))
    assert "GL305" in {f.code for f in audited(tmp_path / "main.py")}
    assert audited(tmp_path / "engine.py") == []


def test_tests_are_no_callers(tmp_path):
    (tmp_path / "engine.py").write_text(ENGINE)
    made, call, _ = CASES["a schedule"]
    (tmp_path / "test_main.py").write_text(MAIN.format(name="engine", made=made, call=call))
    assert not {f.code for f in audited(tmp_path / "engine.py") if f.severity != "advice"}


@pytest.mark.parametrize("word", ["import engine", "import lib.engine as engine", "from lib import engine"])
def test_a_script_that_imports_a_file_which_trains_is_followed(word, tmp_path):
    folder = tmp_path / "lib" if "lib" in word else tmp_path
    folder.mkdir(exist_ok=True)
    (folder / "engine.py").write_text(ENGINE)
    made, call, codes = CASES["a schedule"]
    text = MAIN.replace("from {name} import train, fit", word) + "main([])\n"
    (tmp_path / "main.py").write_text(text.format(made=made, call=f"engine.{call}"))
    result = audit(read(tmp_path / "main.py"), Project(), load_rules())
    assert {f.code for f in result.elsewhere if f.severity != "advice"} == codes


TRAINER = """
class Trainer:
    def __init__(self, net, opt):
        self.net, self.opt = net, opt
    def train(self, loader, objective):
        for batch in loader:
            self.opt.zero_grad()
            loss = objective(self.net, batch)
            loss.backward()
            self.opt.step()
"""
RANKS = """
import torch
from torch import nn
import engine
def main(loader, distributed):
    net = nn.Linear(8, 4)
    if distributed:
        net = nn.parallel.DistributedDataParallel(net)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    def objective(model, batch):
        x, y, mask = batch
        mask = mask.float()
        loss = nn.functional.cross_entropy(model(x), y, reduction="none")
        return (loss * mask).sum() / {count}
    engine.Trainer(net, opt).train(loader, objective)
main([], True)
"""


@pytest.mark.parametrize(("count", "found"), [("mask.sum()", {14}), ("128", set())])
def test_a_mean_that_a_loop_of_another_file_is_given_is_reported_where_it_is(count, found, tmp_path):
    (tmp_path / "engine.py").write_text(TRAINER)
    (tmp_path / "main.py").write_text(RANKS.format(count=count))
    assert {f.line for f in audited(tmp_path / "main.py", "GL508")} == found
