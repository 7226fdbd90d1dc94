"""A recurrent network of a class that is not seen: its state goes on with its graph, unless something cuts it."""

from __future__ import annotations

import pytest
from audited_snippets import assert_faults

ROLLOUT = """
from nets import Agent
net = Agent(4)
opt = torch.optim.Adam(net.parameters())
net.train()
def new():
    return torch.zeros(1, 8)
done, obs = True, env.reset()
while True:
    {start}
    values, rewards = [], []
    for step in range(20):
        value, logit, {state} = net({given})
        values.append(value)
        obs, reward, done, _ = env.step(logit.argmax())
        rewards.append(reward)
        if done:
            break
    R, loss = 0, 0
    for i in reversed(range(len(rewards))):
        R = 0.9 * R + rewards[i]
        loss = loss + (R - values[i]).pow(2)
    opt.zero_grad()
    loss.backward(){mark}
    opt.step()
"""
ANEW = "if done:\n        {} = new()"
PAIR = {"state": "(hx, cx)", "given": "(obs, (hx, cx))"}
ONE = {"state": "h", "given": "obs, hidden=h"}
MARK = "  # expect: GL719"
CUT = "hx, cx = hx.detach(), cx.detach()"
REPLAY = """
from nets import Agent
net = Agent(4)
opt = torch.optim.Adam(net.parameters())
net.train()
for i in range(9):
    if done:
        h = torch.zeros(1, 8)
    value, h = net(obs, h)
    obs, reward, done = env.step(value)
    {drawn}
    loss = (net(batch.obs, {state})[0] - batch.reward).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
"""
CASES = {
    "two states": ROLLOUT.format(start=ANEW.format("hx = cx"), mark=MARK, **PAIR),
    "a state": ROLLOUT.format(start=ANEW.format("h"), mark=MARK, **ONE),
    "cut where it goes on": ROLLOUT.format(
        start=ANEW.format("hx = cx") + f"\n    else:\n        {CUT}", mark="", **PAIR
    ),
    "cut by a method": ROLLOUT.format(start=ANEW.format("h") + "\n    h.detach_()", mark="", **ONE),
    "cut by what is not seen": ROLLOUT.format(start=ANEW.format("h") + "\n    h = repackage(h)", mark="", **ONE),
    "new each time": ROLLOUT.format(start="h = new()", mark="", **ONE),
    "never new": ROLLOUT.format(start="pass", mark="", **ONE),
    "the loss is of what is drawn": REPLAY.format(drawn="batch = memory.sample(4)", state="batch.state"),
}


@pytest.mark.parametrize("name", CASES)
def test_a_state_goes_on_with_its_graph(name, tmp_path):
    assert_faults(CASES[name], tmp_path)
