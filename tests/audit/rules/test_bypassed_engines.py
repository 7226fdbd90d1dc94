"""backward() of a loss itself, where an accelerator, an engine or Apex has to do it."""

from __future__ import annotations

import pytest
from audited_snippets import assert_faults

ACCELERATE = """
from accelerate import Accelerator
accelerator = Accelerator()
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for x, y in loader:
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    {backward}
    optimizer.step()
"""
WINDOW = """
from accelerate import Accelerator
accelerator = Accelerator()
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
batches = iter(loader)
for update in range(9):
    optimizer.zero_grad()
    for _ in range(4):
        x, y = next(batches)
        loss = F.cross_entropy(model(x), y)
        {backward}
    optimizer.step()
"""
FOUND_BY_USE = """
import somewhere  # of DeepSpeed
engine = somewhere.distribute(model)
for x, y in loader:
    loss = F.cross_entropy(engine(x), y)
    {backward}
    engine.step()
"""
APEX = """
from apex import amp
for x, y in loader:
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    with amp.scale_loss(loss, optimizer) as scaled:
        {backward}
    optimizer.step()
"""
ENGINE = """
import deepspeed
engine, _, _, _ = deepspeed.initialize(model=model)
for x, y in loader:
    loss = F.cross_entropy(engine(x), y)
    {backward}
    engine.step()
"""
FUNCTION = """
def fit(net, stepper, apex):
    for x, y in loader:
        net.zero_grad()
        loss = F.cross_entropy(net(x), y)
        if apex:
            stepper.backward(loss)
        else:
            loss.backward()
        stepper.step()
"""
CASES = {
    "Accelerate's": (ACCELERATE, "accelerator.backward(loss)", "loss.backward()  # expect: GL509"),
    "Accelerate's, by an annotation": (
        ACCELERATE.replace("\n", "\n    ")
        .replace("accelerator = Accelerator()", "")
        .replace("    from", "from")
        .replace(
            "import Accelerator\n", "import Accelerator\ndef fit(model, optimizer, loader, accelerator: Accelerator):\n"
        ),
        "accelerator.backward(loss)",
        "loss.backward()  # expect: GL509",
    ),
    "Accelerate's, or none, by an annotation": (
        ACCELERATE.replace("\n", "\n    ")
        .replace("accelerator = Accelerator()", "")
        .replace("    from", "from")
        .replace(
            "import Accelerator\n",
            "import Accelerator\ndef fit(model, optimizer, loader, accelerator: Accelerator | None):\n",
        ),
        "accelerator.backward(loss)",
        "loss.backward()",
    ),
    "Accelerate's, before an attack through it": (
        ACCELERATE.replace(
            "    optimizer.step()",
            "    if attacked:\n        accelerator.backward(F.cross_entropy(model(x + 0.1), y))\n    optimizer.step()",
        ),
        "accelerator.backward(loss)",
        "loss.backward()  # expect: GL509",
    ),
    "Accelerate's, in the loop of a window": (
        WINDOW,
        "accelerator.backward(loss / 4)",
        "(loss / 4).backward()  # expect: GL509",
    ),
    "DeepSpeed's": (ENGINE, "engine.backward(loss)", "loss.backward()  # expect: GL509"),
    "an engine of a helper": (FOUND_BY_USE, "engine.backward(loss)", "loss.backward()  # expect: GL509"),
    "an engine by its name": (
        FOUND_BY_USE.replace("  # of DeepSpeed", ""),
        "engine.backward(loss)",
        "loss.backward()  # expect: GL509",
    ),
    "Apex's": (APEX, "scaled.backward()", "loss.backward()  # expect: GL207"),
}


@pytest.mark.parametrize("name", CASES)
def test_a_loss_goes_backward_through_what_steps(name, tmp_path):
    text, right, wrong = CASES[name]
    assert_faults(text.format(backward=right), tmp_path)
    assert_faults(text.format(backward=wrong), tmp_path)


def test_what_steps_may_be_an_engine_under_one_flag_alone(tmp_path):
    assert_faults(FUNCTION, tmp_path)
