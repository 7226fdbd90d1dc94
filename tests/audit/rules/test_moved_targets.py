"""Returns that begin with what a critic says of the last state, and keep its graph."""

from __future__ import annotations

import pytest
from audited_snippets import assert_marked, findings

WORKER = """
import torch
from model import ActorCritic
from player import Player
def share(model, shared):
    for param, other in zip(model.parameters(), shared.parameters()):
        other._grad = param.grad
def train(args, env, shared, optimizer=None):
    player = Player(env)
    player.model = model = ActorCritic(env)
    if optimizer is None:
        optimizer = torch.optim.Adam(shared.parameters())
    while True:
        model.load_state_dict(shared.state_dict())
        {values}
        for step in range(args.num_steps):
            {act}
        R = torch.zeros(1, 1)
        if not player.done:
            value, _ = player.model(player.state)
            R = value{cut}
        {list}.append(R)
        loss = 0
        for i in reversed(range(len(player.rewards))):
            R = args.gamma * R + player.rewards[i]
            advantage = R - {list}[i]
            loss = loss + 0.5 * advantage.pow(2)  # expect: GL718
            loss = loss - player.log_probs[i] * advantage.detach()
        {zero}
        loss.backward()
        {clip}
        share(model, shared)
        optimizer.step()
"""
OWN = {
    "values": "values = []",
    "act": "value, p = model(player.state)\n            values.append(value)\n            player.act(p)",
    "list": "values",
}
UNSEEN = {"values": "player.clear()", "act": "player.act()", "list": "player.values"}
SHARED = {"clip": "torch.nn.utils.clip_grad_norm_(model.parameters(), 40)", "zero": "optimizer.zero_grad()"}
ZEROED = {"clip": "", "zero": "player.model.zero_grad()"}
RETURNS = """
import torch
from torch import nn
from torch.nn import functional as F
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.actor, self.critic = nn.Linear(4, 2), nn.Linear(4, 1)
    def forward(self, x):
        return torch.distributions.Categorical(logits=self.actor(x)), self.critic(x)
def returns_of(R, rewards, masks, gamma=0.99):
    returns = []
    for step in reversed(range(len(rewards))):
        R = rewards[step] + gamma * R * masks[step]
        returns.insert(0, R)
    return returns
def train(env, net):
    optimizer = torch.optim.Adam(net.parameters())
    state = env.reset()
    for update in range(99):
        log_probs, values, rewards, masks = [], [], [], []
        for _ in range(5):
            dist, value = net(state)
            action = dist.sample()
            state, reward, done = env.step(action)
            log_probs.append(dist.log_prob(action))
            values.append(value)
            rewards.append(reward)
            masks.append(1 - done)
        _, last = net(state)
        returns = torch.cat(returns_of(last, rewards, masks)){cut}
        values = torch.cat(values)
        advantage = returns - values
        policy_loss = -(torch.cat(log_probs) * advantage.detach()).mean()
        loss = policy_loss + {loss}  # expect: GL718
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
train(object(), Net())
"""
AGENT = """
import torch
from torch.nn import functional as F
from nets import Actor, Critic
class Agent:
    def __init__(self, cfg):
        self.gamma = cfg.gamma
        self.actor, self.critic = Actor(cfg).to(cfg.device), Critic(cfg).to(cfg.device)
        self.actor_optimizer = torch.optim.Adam(self.actor.parameters())
        self.critic_optimizer = torch.optim.Adam(self.critic.parameters())
        self.values, self.rewards, self.log_probs = [], [], []
    def act(self, state):
        dist = self.actor(state)
        action = dist.sample()
        self.log_probs.append(dist.log_prob(action))
        self.values.append(self.critic(state))
        return action
    def returns(self, state, done):
        R = self.critic(state){cut} * (1 - done)
        out = []
        for reward in self.rewards[::-1]:
            R = reward + self.gamma * R
            out.insert(0, R)
        return torch.stack(out)
    def learn(self, state, done):
        returns, values = self.returns(state, done), torch.stack(self.values)
        loss = -(torch.stack(self.log_probs) * (returns - values).detach()).mean()
        self.actor_optimizer.zero_grad()
        loss.backward()
        self.actor_optimizer.step()
        self.critic_optimizer.zero_grad()
        F.smooth_l1_loss(values, returns).backward()  # expect: GL718
        self.critic_optimizer.step()
def main(cfg, env):
    agent = Agent(cfg)
    for episode in range(99):
        state = env.reset()
        for t in range(cfg.steps):
            state, reward, done = env.step(agent.act(state))
            agent.rewards.append(reward)
        agent.learn(state, done)
"""
CASES = {
    "values of the text, clipped": (WORKER, OWN | SHARED),
    "values of the text, zeroed": (WORKER, OWN | ZEROED),
    "values of an object that is not seen": (WORKER, UNSEEN | ZEROED),
    "returns of a function": (RETURNS, {"loss": "F.mse_loss(values, returns)"}),
    "returns of a function, squared": (RETURNS, {"loss": "(returns - values).pow(2).mean()"}),
    "an agent": (AGENT, {}),
}


@pytest.mark.parametrize("cut", ["", ".detach()"])
@pytest.mark.parametrize("name", CASES)
def test_the_graph_of_a_return_is_cut(name, cut, tmp_path):
    text, parts = CASES[name]
    for key, part in (parts | {"cut": cut}).items():
        text = text.replace("{" + key + "}", part)
    line = next(i for i, one in enumerate(text.split("\n"), 1) if "expect" in one)
    assert findings(text, tmp_path, "GL718") == (set() if cut else {(line, "GL718")})


EVALUATED = """
from torch import optim
class A2C:
    def __init__(self, actor_critic):
        self.actor_critic = actor_critic
        self.optimizer = optim.RMSprop(actor_critic.parameters())
    def update(self, batch, gamma):
        obs, later, actions, rewards, masks = batch
        values, log_probs, entropy = self.actor_critic.evaluate_actions(obs, actions)
        ahead, _, _ = self.actor_critic.evaluate_actions(later, actions)
        advantages = rewards + gamma * masks * ahead{cut} - values
        self.optimizer.zero_grad()
        (advantages.pow(2).mean() - (advantages.detach() * log_probs).mean() - entropy).backward()  # expect: GL718
        self.optimizer.step()
"""


@pytest.mark.parametrize("cut", ["", ".detach()"])
def test_a_method_that_evaluates_actions_calls_the_network(cut, tmp_path):
    found = findings(EVALUATED.replace("{cut}", cut), tmp_path, "GL718")
    assert found == (set() if cut else {(13, "GL718")})


SHARPENED = """
import torch
from torch import nn, optim
import torch.nn.functional as F
class Clusters(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.centres = nn.Linear(8, 4), nn.Parameter(torch.zeros(3, 4))
    def forward(self, x):
        z = self.encoder(x)
        near = 1.0 / (1.0 + (z.unsqueeze(1) - self.centres).pow(2).sum(2))
        return z, (near.t() / near.sum(1)).t()
def sharpened(q):
    weight = q**2 / q.sum(0)
    return (weight.t() / weight.sum(1)).t()
model = Clusters()
optimizer = optim.Adam(model.parameters())
for x in loader:
    z, q = model(x)
    {p}
    loss = F.kl_div(q.log(), p, reduction="batchmean")
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    "p, faults",
    [
        ("p = sharpened(q)", {(21, "GL718")}),
        ("p = sharpened(q.detach())", set()),
        ("p = sharpened(q).detach()", set()),
        ("p = sharpened(model(x + 1)[1])", {(21, "GL718")}),
        ("p = q.flip(0)", set()),
    ],
)
def test_a_distribution_that_is_sharpened_from_the_output_itself(p, faults, tmp_path):
    assert findings(SHARPENED.replace("{p}", p), tmp_path, "GL718") == faults


LISTS = """
judge = nn.Linear(8, 1)
opt = torch.optim.Adam(judge.parameters(), lr=0.1)
def discounted(last, rewards, gamma=0.99):
    found, R = [], last
    for reward in reversed(rewards):
        R = reward + gamma * R
        found.insert(0, R)
    return found
while True:
    state, values, rewards = env.reset(), [], []
    for _ in range(5):
        state, reward = env.step(state)
        values.append(judge(torch.FloatTensor(state)))
        rewards.append(torch.FloatTensor([reward]))
    returns = torch.cat(discounted(judge(torch.FloatTensor(state)), rewards)){numbers}
    error = returns - torch.cat(values)
    opt.zero_grad()
    error.pow(2).mean().backward(){mark}
    opt.step()
"""


@pytest.mark.parametrize("numbers, mark", [("", "  # expect: GL718"), (".detach()", "")])
def test_lists_that_a_loop_fills_have_the_graph_of_their_items(numbers, mark, tmp_path):
    assert_marked(LISTS.format(numbers=numbers, mark=mark), tmp_path)
