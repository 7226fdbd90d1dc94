"""DDP's flag `require_backward_grad_sync`, set by hand in place of no_sync()."""

from __future__ import annotations

import pytest
from audited_snippets import assert_faults

LOOP = """
model = nn.parallel.DistributedDataParallel(model)
n = 4
for epoch in range(3):
    for i, (x, y) in enumerate(loader):
        {before}
        loss = F.cross_entropy(model(x), y) / n
        loss.backward()
        if {full}:
            optimizer.step()
            optimizer.zero_grad()
        {after}
"""
FULL, LAST = "(i + 1) % n == 0", "(i + 1) % n == 0 or i + 1 == len(loader)"
CASES = {
    "on in the last micro-batch": (f"model.require_backward_grad_sync = {FULL}", FULL, "pass"),
    "on where the optimizer steps": (f"model.require_backward_grad_sync = {LAST}", LAST, "pass"),
    "on again after the step": (f"if not ({FULL}): model.require_backward_grad_sync = False", FULL, "MODEL = True"),
    "set for the next forward pass": ("pass", FULL, "MODEL = (i + 2) % n == 0"),
    "on in the first one": ("MODEL = i % n == 0  # expect: GL502", FULL, "pass"),
    "off in the last one": (f"MODEL = not ({FULL})  # expect: GL502", FULL, "pass"),
    "never on again": (f"if not ({FULL}): MODEL = False  # expect: GL502", FULL, "pass"),
    "off at the end of an epoch": (f"MODEL = {FULL}  # expect: GL506", LAST, "pass"),
}
REDUCED = """
model = nn.parallel.DistributedDataParallel(model)
model.require_backward_grad_sync = False{mark}
for x, y in loader:
    F.cross_entropy(model(x), y).backward()
    {reduce}
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.parametrize("name", CASES)
def test_the_flag_is_no_sync_by_hand(name, tmp_path):
    before, full, after = (part.replace("MODEL", "model.require_backward_grad_sync") for part in CASES[name])
    text = LOOP.format(before=before, full=full, after=after)
    assert_faults(text, tmp_path)


def test_gradients_that_are_reduced_by_hand_need_no_flag(tmp_path):
    assert_faults(REDUCED.format(mark="", reduce="average_gradients(model)"), tmp_path)
    assert_faults(REDUCED.format(mark="  # expect: GL502", reduce="pass"), tmp_path)


WINDOW = """
from elsewhere import export
model = nn.parallel.DistributedDataParallel(model)
for epoch in range(9):
    export(model)
    if epoch % 3 == 0:
        with torch.no_grad():
            for k in range(9):
                print(F.cross_entropy(model(x), y))
    for micro in range(n):
        model.require_backward_grad_sync = {on}
        loss = F.cross_entropy(model(x), y) / n
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    "on",
    [
        "micro == 0  # expect: GL502",
        "(micro + 1) % n == 0",
        "micro < 1  # expect: GL502",
        "micro == n - 1",
        "micro > 0",
    ],
)
def test_the_flag_in_a_window_that_is_a_loop(on, tmp_path):
    assert_faults(WINDOW.format(on=on), tmp_path)


ACCUMULATE = """
from accelerate import Accelerator
def main(args):
    accelerator = Accelerator({steps})
    net, opt, data = accelerator.prepare(model, optimizer, loader)
    for x, y in data:
        {before}
        with accelerator.accumulate(net):
            {first}
            accelerator.backward(F.cross_entropy(net(x), y))
            opt.step()
            {after}
"""
STEPS = "gradient_accumulation_steps=args.steps"


@pytest.mark.parametrize(
    ("steps", "before", "first", "after"),
    [
        (STEPS, "pass", "opt.zero_grad()  # expect: GL306", "pass"),
        (STEPS, "pass", "pass", "opt.zero_grad()"),
        (STEPS, "opt.zero_grad()", "pass", "pass"),
        ("gradient_accumulation_steps=1", "pass", "opt.zero_grad()", "pass"),
        ("", "pass", "opt.zero_grad()", "pass"),
    ],
)
def test_accelerate_zeroes_in_the_last_micro_batch_of_a_window(steps, before, first, after, tmp_path):
    assert_faults(ACCUMULATE.format(steps=steps, before=before, first=first, after=after), tmp_path)


FORWARD = """
from torch.nn.parallel import DistributedDataParallel as DDP
from elsewhere import process
outer = DDP(model) if distributed else model
for x, y in loader:
    optimizer.zero_grad()
    for i in range(0, len(x), 4):
        last = i + 4 >= len(x)
        if WHERE:
            loss = process.training_loss(outer, x[i : i + 4])
        else:
            with outer.no_sync():MARK
                loss = process.training_loss(outer, x[i : i + 4])
        (loss * 4 / len(x)).backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("where", "mark"), [("last or not distributed", ""), ("not last or not distributed", "  # expect: GL502")]
)
def test_the_wrapper_decides_in_its_forward_pass(where, mark, tmp_path):
    assert_faults(FORWARD.replace("WHERE", where).replace("MARK", mark), tmp_path)


PASSED = """
from torch.nn.parallel import DistributedDataParallel as DDP
from elsewhere import process
model = DDP(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in loader:
    CALL
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    "call",
    [
        "loss = process.training_losses(model.module, x)['loss'].mean()  # expect: GL504",
        "loss = process.training_losses(model, x)['loss'].mean()",
        "loss = process.losses(model.module, model(x), y)['loss'].mean()",
        "loss = sum(part for part in process.terms(model.module(x), y).values())  # expect: GL504",
        "loss = sum(part for part in process.terms(model(x), y).values())",
    ],
)
def test_what_computes_a_loss_calls_the_network_that_it_is_given(call, tmp_path):
    assert_faults(PASSED.replace("CALL", call), tmp_path)
