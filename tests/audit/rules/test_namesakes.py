"""Optimizers that are named after one network and have the weights of another."""

from __future__ import annotations

import pytest
from audited_snippets import assert_marked

PAIR = """
from nets import Maker, Judge
from torch.optim import Adam
class Agent:
    def __init__(self, args):
        self.{maker}, self.{judge} = Maker(args), Judge(args)
        self.{maker} = Maker(args)
        self.{judge} = Judge(args)
        {first}
        {second}{mark}
"""
CASES = {
    "the same network twice": ("netG", "netD", "self.optimizer_G = Adam(self.netG.parameters())",
        "self.optimizer_D = Adam(self.netG.parameters(), lr=1e-4)", True),
    "each its own": ("netG", "netD", "self.optimizer_G = Adam(self.netG.parameters())",
        "self.optimizer_D = Adam(self.netD.parameters(), lr=1e-4)", False),
    "by its first letter": ("generator", "discriminator", "self.G_optim = Adam(self.generator.parameters())",
        "self.D_optim = Adam(self.generator.parameters())", True),
    "one optimizer of a network of another name": ("actor", "critic", "self.critic_opt = Adam(self.actor.parameters())",
        "self.last = [self.actor.parameters()]", False),
    "two rates of one network": ("actor", "critic", "self.actor_opt = Adam(self.actor.parameters())",
        "self.slow_opt = Adam(self.actor.parameters(), lr=1e-6)", False),
    "its own network has an optimizer too": ("actor", "critic", "self.actor_opt = Adam(self.actor.parameters())",
        "self.critic_opt = Adam(self.actor.parameters()); self.last = Adam(self.critic.parameters())", False),
    "in one branch, and clipped": ("actor", "critic", "self.optimizer_actor = Adam(self.actor.parameters())",
        "self.optimizer_critic = Adam(self.actor.parameters())  # expect: GL702\n        if args.fine:\n"
        "            self.optimizer_critic = Adam(self.critic.parameters(), eps=1e-5)\n"
        "        torch.nn.utils.clip_grad_norm_(self.critic.parameters(), 1.0)", False),
    "another in the other branch": ("policy", "critic", "self.critic_optim = Adam(self.critic.parameters())",
        "self.policy_optim = Adam(self.policy.parameters() if args.own else self.critic.parameters())", False),
}  # fmt: skip
FUNCTION = """
def define_optimizers(g_model, d_model, config):
    g_optimizer = torch.optim.Adam(g_model.parameters(), config.rate)
    d_optimizer = torch.optim.Adam({given}.parameters(), config.rate){mark}
    return g_optimizer, d_optimizer
"""


@pytest.mark.parametrize("name", CASES)
def test_an_optimizer_has_the_weights_that_it_is_named_after(name, tmp_path):
    maker, judge, first, second, wrong = CASES[name]
    mark = "  # expect: GL702" if wrong else ""
    assert_marked(PAIR.format(maker=maker, judge=judge, first=first, second=second, mark=mark), tmp_path)


@pytest.mark.parametrize("given, mark", [("g_model", "  # expect: GL702"), ("d_model", "")])
def test_optimizers_that_a_function_makes(given, mark, tmp_path):
    assert_marked(FUNCTION.format(given=given, mark=mark), tmp_path)


CALLED = """
from nets import build
class Agent:
    def __init__(self, shape):
        self.actor, self.critic = build("actor", shape), build("critic", shape)
        self.actor_optimizer = torch.optim.Adam(self.{given}.parameters()){mark}
        self.critic_optimizer = torch.optim.Adam(self.critic.parameters())
    def act(self, x):
        return self.actor(x)
"""


@pytest.mark.parametrize("given, mark", [("critic", "  # expect: GL702"), ("actor", "")])
def test_networks_that_are_only_called(given, mark, tmp_path):
    assert_marked(CALLED.format(given=given, mark=mark), tmp_path)
