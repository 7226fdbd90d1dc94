"""What is done where there are several processes: however a program asks, there is one answer."""

from __future__ import annotations

import pytest
from audited_snippets import assert_faults, findings

TEXT = """
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
def several():
    return dist.is_available() and dist.is_initialized()
def size():
    if not several():
        return 1
    return dist.get_world_size()
{wrap}
class Trainer:
    def __init__(self, net, args):
        self.args = args
        self.net = wrap(net, args)
        self.opt = torch.optim.SGD(self.net.parameters(), 0.1)
    def average(self):
        for p in self.net.parameters():
            if p.grad is not None:
                dist.all_reduce(p.grad)  # expect: GL505
                p.grad /= size()
    def fit(self):
        for x, y in loader:
            self.opt.zero_grad()
            F.cross_entropy(self.net(x), y).backward()
            if {asked}:
                self.average()
            self.opt.step()
def main(args):
    Trainer(model, args).fit()
"""
EARLY = "def wrap(net, args):\n    if not several():\n        return net\n    return DDP(net)"
CHOSEN = "def wrap(net, args):\n    return DDP(net) if {flag} else net"
FLAG = CHOSEN.format(flag="args.parallel")
ASKED = {
    "by the same question": (EARLY, "several()"),
    "by the number of processes": (EARLY, "size() > 1"),
    "of another": (CHOSEN.format(flag="size() != 1"), "dist.is_initialized()"),
    "which a flag of the wrapper needs": (FLAG, "several()"),
    "by the type of the network": (FLAG, "isinstance(self.net, DDP)"),
    "by any flag, where there is a wrapper": ("wrap = lambda net, args: DDP(net)", "self.args.average"),
}
OTHERWISE = {
    "where there is one process": (EARLY, "size() == 1"),
    "where the network is not wrapped": (FLAG, "not isinstance(self.net, DDP)"),
    "by the flag of the wrapper": (FLAG, "several() and not self.args.parallel"),
    "by a flag that the wrapper may exclude": (FLAG, "several() and self.args.average"),
}


@pytest.mark.parametrize("name", ASKED)
def test_gradients_are_reduced_twice(name, tmp_path):
    wrap, asked = ASKED[name]
    assert_faults(TEXT.format(wrap=wrap, asked=asked), tmp_path)


@pytest.mark.parametrize("name", OTHERWISE)
def test_gradients_are_reduced_where_nothing_else_does(name, tmp_path):
    wrap, asked = OTHERWISE[name]
    assert findings(TEXT.format(wrap=wrap, asked=asked), tmp_path, "GL505") == set()


@pytest.mark.parametrize(("inner", "found"), [("net.module", True), ("net", False)])
def test_the_module_inside_is_called_under_a_flag(inner, found, tmp_path):
    text = f"""
from torch.nn.parallel import DistributedDataParallel as DDP
def train(args):
    net = DDP(model)
    for x, y in loader:
        optimizer.zero_grad()
        if args.half:
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = F.cross_entropy(net(x), y)
        else:
            loss = F.cross_entropy({inner}(x), y){"  # expect: GL504" if found else ""}
        loss.backward()
        optimizer.step()
"""
    assert_faults(text, tmp_path)


@pytest.mark.parametrize("asked", ["isinstance(net, DDP)", 'hasattr(net, "module")'])
@pytest.mark.parametrize(("called", "found"), [("inner", True), ("net", False)])
def test_the_module_inside_where_there_is_a_wrapper(asked, called, found, tmp_path):
    text = f"""
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
def train():
    net = model
    if dist.is_initialized():
        net = DDP(net)
    inner = net.module if {asked} else net
    for x, y in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy({called}(x), y){"  # expect: GL504" if found else ""}
        loss.backward()
        optimizer.step()
"""
    assert_faults(text, tmp_path)
