"""Which loss is scaled for which optimizer, where a scaler steps several."""

from __future__ import annotations

import pytest
from audited_snippets import assert_marked

TWO = """
judge = nn.Linear(4, 1)
second = torch.optim.SGD(judge.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")


def train(nets, optimizers, scaler):
    maker, judge = nets
    first, second = optimizers
    for x, y in loader:
        with torch.autocast("cuda"):
            fake = maker(x)
            mine, other = F.mse_loss(judge(fake.detach()), y), F.mse_loss(judge(fake), y)
        BODY
        scaler.update()


train([model, judge], [optimizer, second], scaler)
"""
CASES = {
    "one of two, a sum with a term of unknown making": """
        second.zero_grad()
        scaler.scale(mine).backward()
        scaler.step(second)
        first.zero_grad()
        loss = other + compute(fake) + weight * F.l1_loss(fake, y)
        loss.backward()  # expect: GL207
        scaler.step(first)""",
    "one of two, a sum times a factor of unknown making": """
        second.zero_grad()
        scaler.scale(mine).backward()
        scaler.step(second)
        first.zero_grad()
        loss = (other + F.l1_loss(fake, y)) * weight
        loss.backward()
        scaler.step(first)""",
    "a gradient that is scaled": """
        second.zero_grad()
        scaler.scale(mine).backward()
        scaler.step(second)
        first.zero_grad()
        fake.backward(scaler.scale(compute(fake)))
        scaler.step(first)""",
    "a gradient that is not scaled": """
        second.zero_grad()
        scaler.scale(mine).backward()
        scaler.step(second)
        first.zero_grad()
        fake.backward(compute(fake))  # expect: GL207
        scaler.step(first)""",
    "one of two losses": """
        second.zero_grad()
        mine.backward()  # expect: GL207
        scaler.step(second)
        first.zero_grad()
        scaler.scale(other).backward()
        scaler.step(first)""",
    "the later one, halved": """
        first.zero_grad()
        second.zero_grad()
        scaler.scale(other).backward()  # expect: GL704
        scaler.step(first)
        loss = 0.5 * mine
        loss.backward()  # expect: GL207
        scaler.step(second)""",
    "two of one forward pass, one of them scaled": """
        first.zero_grad()
        smooth = fake.square().mean()
        scaler.scale(other).backward(retain_graph=True)
        smooth.backward()  # expect: GL207
        scaler.step(first)""",
    "two of one forward pass, both scaled": """
        first.zero_grad()
        smooth = fake.square().mean()
        scaler.scale(other).backward(retain_graph=True)
        (scaler.get_scale() * smooth).backward(retain_graph=True)
        scaler.scale(smooth).backward()
        scaler.step(first)""",
    "the other without a scaler": """
        second.zero_grad()
        mine.backward()
        second.step()
        first.zero_grad()
        scaler.scale(other).backward()
        scaler.step(first)""",
}


@pytest.mark.parametrize("name", CASES)
def test_each_optimizer_that_the_scaler_steps_needs_a_scaled_loss(name, tmp_path):
    assert_marked(TWO.replace("BODY", CASES[name].strip()), tmp_path)


FLAG = """
def train(half):
    scaler = torch.amp.GradScaler("cuda", enabled=ENABLED)
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = F.cross_entropy(model(x), y)
        if half:
            scaler.scale(loss).backward()
        else:
            loss.backward()
        scaler.step(optimizer)
        scaler.update()
"""


def test_a_disabled_scaler_does_not_scale(tmp_path):
    assert_marked(FLAG.replace("ENABLED", "half"), tmp_path)
    assert_marked(
        FLAG.replace("ENABLED", "True").replace("  loss.backward()", "  loss.backward()  # expect: GL207"), tmp_path
    )


APEX = """
from apex import amp
def backward(loss, optimizer):
    BODY
def train(model, optimizer, half):
    if half:
        model, optimizer = amp.initialize(model, optimizer, opt_level="LEVEL")
    for x, y in loader:
        optimizer.zero_grad()
        backward(F.cross_entropy(model(x), y), optimizer)
        optimizer.step()
train(model, optimizer, True)
"""
SCALED = """with amp.scale_loss(loss, optimizer) as scaled:
        scaled.backward()"""
CASES |= {
    "one that is scaled in the other branch alone": """
        first.zero_grad()
        if weight > 1:
            loss = other / weight
            loss.backward()  # expect: GL207
        else:
            scaler.scale(other).backward()
        scaler.step(first)""",
    "one that is scaled in both branches": """
        first.zero_grad()
        if weight > 1:
            loss = other / weight
            scaler.scale(loss).backward()
        else:
            scaler.scale(other).backward()
        scaler.step(first)""",
}


@pytest.mark.parametrize(
    ("level", "body"),
    [("O1", "loss.backward()  # expect: GL207"), ("O0", "loss.backward()"), ("O1", SCALED)],
)
def test_a_loss_is_scaled_where_apex_prepared_the_optimizer(level, body, tmp_path):
    assert_marked(APEX.replace("LEVEL", level).replace("BODY", body), tmp_path)
