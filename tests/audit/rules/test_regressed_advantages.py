"""Advantages that one term of a loss regresses and another weighs an action with, of networks that are not seen."""

from __future__ import annotations

import pytest
from audited_snippets import assert_marked

UPDATE = """
def update(agent, optimizer, rollouts):
    values, log_probs, entropy = agent.judge(rollouts.states, rollouts.actions)
{body}
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
CASES = {
    "its square trains the value": """
    advantages = rollouts.returns[:-1] - values
    value_loss = advantages.pow(2).mean()
    loss = 0.5 * value_loss - (log_probs * advantages).mean()  # expect: GL711""",
    "its square trains the value, and the policy has the numbers": """
    advantages = rollouts.returns[:-1] - values
    value_loss = advantages.pow(2).mean()
    loss = 0.5 * value_loss - (log_probs * advantages.detach()).mean()""",
    "the other's loss is for the log": """
    advantages = rollouts.returns[:-1] - rollouts.values
    shown = (advantages**2).mean()
    print(shown.item())
    loss = -(log_probs * advantages).mean()""",
    "a regression of both": """
    advantage = rollouts.returns - values
    value_loss = F.mse_loss(values, rollouts.returns)
    loss = value_loss - (advantage * log_probs * rollouts.masks).mean()  # expect: GL711""",
    "the square of the difference, of a name that was something else before": """
    advantage = rollouts.advantages
    advantage = rollouts.returns - values
    value_loss = 0.5 * (values - rollouts.returns).pow(2).mean()
    loss = value_loss - (advantage * log_probs).mean()  # expect: GL711""",
    "the square of a difference, where the name may be something else": """
    advantage = rollouts.advantages
    if rollouts.fresh:
        advantage = rollouts.returns - values
    value_loss = 0.5 * (values - rollouts.returns).pow(2).mean()
    loss = value_loss - (advantage * log_probs).mean()""",
    "less its mean": """
    advantage = rollouts.advantages
    advantage = advantage - values
    value_loss = 0.5 * (advantage - values).pow(2).mean()
    loss = value_loss - (advantage * log_probs).mean()""",
    "a regression of another value": """
    advantage = rollouts.returns - rollouts.values
    value_loss = F.mse_loss(values, rollouts.returns)
    loss = value_loss - (advantage * log_probs).mean()""",
    "a regression of the value that is computed again": """
    with torch.no_grad():
        advantage = rollouts.returns - values
    value_loss = F.mse_loss(values, rollouts.returns)
    loss = value_loss - (advantage * log_probs).mean()""",
    "bound again to its numbers": """
    advantage = rollouts.returns - values
    value_loss = advantage.square().mean()
    advantage = normalised(advantage)
    loss = value_loss - (advantage * log_probs).mean()""",
    "the value is bound again": """
    advantage = rollouts.returns - values
    values = agent.values(rollouts.states)
    value_loss = F.mse_loss(values, rollouts.returns)
    loss = value_loss - (advantage * log_probs).mean()""",
    "in lists of terms": """
    actions, critics = [], []
    for (log_prob, value), R in zip(agent.saved, rollouts.returns):
        advantage = R - value
        actions.append(-log_prob * advantage)  # expect: GL711
        critics.append(F.smooth_l1_loss(value, torch.tensor([R])))
    loss = torch.stack(actions).sum() + torch.stack(critics).sum()""",
    "in lists of terms, of the number": """
    actions, critics = [], []
    for (log_prob, value), R in zip(agent.saved, rollouts.returns):
        advantage = R - value.item()
        actions.append(-log_prob * advantage)
        critics.append(F.smooth_l1_loss(value, torch.tensor([R])))
    loss = torch.stack(actions).sum() + torch.stack(critics).sum()""",
    "a ratio in a range": """
    ratios = torch.exp(log_probs - rollouts.old_log_probs)
    advantages = rollouts.returns - values
    first = ratios * advantages  # expect: GL711
    second = torch.clamp(ratios, 0.8, 1.2) * advantages  # expect: GL711
    loss = 0.5 * agent.mse(values, rollouts.returns) - torch.min(first, second).mean()""",
    "a ratio in a range, of numbers": """
    ratios = torch.exp(log_probs - rollouts.old_log_probs)
    advantages = rollouts.returns - values.detach()
    first, second = ratios * advantages, torch.clamp(ratios, 0.8, 1.2) * advantages
    loss = 0.5 * agent.mse(values, rollouts.returns) - torch.min(first, second).mean()""",
    "the logarithm of a probability, and a value that is computed twice": """
    pi_a = agent.pi(rollouts.states).gather(1, rollouts.actions)
    advantage = rollouts.returns - agent.v(rollouts.states)
    loss = -torch.log(pi_a) * advantage + F.smooth_l1_loss(agent.v(rollouts.states), rollouts.returns.detach())  # expect: GL711
    loss = loss.mean()""",
    "a sum of discounted errors": """
    policy_loss, value_loss, gae, R = 0, 0, torch.zeros(1), torch.zeros(1)
    for i in reversed(range(len(rollouts.rewards))):
        R = 0.9 * R + rollouts.rewards[i]
        advantage = R - values[i]
        value_loss = value_loss + 0.5 * advantage.pow(2)
        delta = rollouts.rewards[i] + 0.9 * values[i + 1] - values[i]
        gae = 0.9 * gae + delta
        policy_loss = policy_loss - log_probs[i] * gae  # expect: GL711
    loss = policy_loss + value_loss""",
    "a sum of discounted errors, and its numbers": """
    policy_loss, value_loss, gae, R = 0, 0, torch.zeros(1), torch.zeros(1)
    for i in reversed(range(len(rollouts.rewards))):
        R = 0.9 * R + rollouts.rewards[i]
        advantage = R - values[i]
        value_loss = value_loss + 0.5 * advantage.pow(2)
        delta = rollouts.rewards[i] + 0.9 * values[i + 1].detach() - values[i].detach()
        gae = 0.9 * gae + delta
        policy_loss = policy_loss - log_probs[i] * gae - log_probs[i] * gae.detach()
    loss = policy_loss + value_loss""",
    "a regression of numbers": """
    advantage = rollouts.returns - rollouts.values
    value_loss = F.mse_loss(torch.tensor([1.0]), torch.tensor([2.0]))
    loss = value_loss - (advantage * log_probs).mean()""",
}
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


@pytest.mark.parametrize("name", CASES)
def test_an_advantage_is_detached_where_it_weighs_an_action(name, tmp_path):
    assert_marked(UPDATE.replace("{body}", CASES[name].strip("\n")), tmp_path)


@pytest.mark.parametrize("numbers, mark", [("", "  # expect: GL718"), (".detach()", "")])
def test_lists_that_a_loop_fills_have_the_graph_of_their_items(numbers, mark, tmp_path):
    assert_marked(LISTS.format(numbers=numbers, mark=mark), tmp_path)


ROWS = """
actor, critic = nn.Linear(4, 2), nn.Linear(4, 1)
opt = torch.optim.Adam([*actor.parameters(), *critic.parameters()])
for episode in range(1000):
    state, done, rows = env.reset(), False, []
    while not done:
        chosen = torch.distributions.Categorical(logits=actor(state))
        action = chosen.sample()
        row_value = critic(state)
        state, reward, done = env.step(action.item())
        rows.append((chosen.log_prob(action), row_value, reward))
    chances, says, rewards = zip(*rows)
    gain = torch.tensor(discounted(rewards)) - torch.cat(says){cut}
    loss = -(torch.stack(chances) * gain).mean(){mark}
    opt.zero_grad()
    loss.backward()
    opt.step()
"""


@pytest.mark.parametrize("cut, mark", [("", "  # expect: GL711"), (".detach()", "")])
def test_columns_of_a_list_of_rows(cut, mark, tmp_path):
    assert_marked(ROWS.format(cut=cut, mark=mark), tmp_path)
