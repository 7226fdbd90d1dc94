import torch
from torch import nn


class Agent:
    def __init__(self, actor, critic):
        self.actor, self.critic = actor, critic
        self.actor_optim = torch.optim.Adam(self.actor.parameters())
        self.critic_optim = torch.optim.Adam(self.critic.parameters())

    def update(self, batch):
        s, a, r, s2 = batch
        q = self.critic(s, a)
        critic_loss = nn.functional.mse_loss(q, r)
        self.critic_optim.zero_grad()
        critic_loss.backward()
        nn.utils.clip_grad_norm_(self.critic.parameters(), 0.5)
        self.critic_optim.step()
        actor_loss = -self.critic(s, self.actor(s)).mean()
        self.actor_optim.zero_grad()
        actor_loss.backward()
        self.actor_optim.step()

    def learn(self, env, memory):
        state = env.reset()
        while True:
            action = self.actor(state)
            state, reward, done, info = env.step(action)
            if len(memory) > 100:
                self.update(memory.sample())
            if done:
                break
