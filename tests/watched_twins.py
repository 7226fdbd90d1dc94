"""Loops with a mistake, and their correct twins: what a watch must say of each."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import Adam
from watched_loops import batches, loss_of, marked, net

import gradlab


class Twins:
    """The loops of a file of tests, by their names."""

    def __init__(self):
        self.of_mistakes, self.of_right_loops = {}, {}

    def wrong(self, code, optimizer=0):
        def keep(loop):
            self.of_mistakes[loop.__name__] = (code, optimizer, loop)
            return loop

        return keep

    def right(self, loop):
        self.of_right_loops[loop.__name__] = loop
        return loop

    def check_mistake(self, name, folder):
        code, optimizer, loop = self.of_mistakes[name]
        watch = loop(watched(folder))
        assert not watch.broken
        found = [(fault.name, fault.site[1], fault.optimizer) for fault in watch.faults]
        assert found == [(code, marked(loop), optimizer)]

    def check_right_loop(self, name, folder):
        watch = self.of_right_loops[name](watched(folder))
        assert not watch.broken
        assert [fault.line for fault in watch.faults] == []
        assert all(output.num_updates for output in watch.loop.outputs)


def watched(folder, **more):
    return lambda *parts: gradlab.watch(*parts, folder=folder, quiet=True, **more)


def adversaries():
    torch.manual_seed(0)
    maker, judge = nn.Linear(4, 8), nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    return maker, judge, Adam(maker.parameters(), 1e-3), Adam(judge.parameters(), 1e-3)


def judged(judge, x, made):
    return F.softplus(-judge(x)).mean() + F.softplus(judge(made)).mean()


def dropping(seed=0):
    model = net(seed)
    model.insert(2, nn.Dropout(0.2))
    return model


def validated(model):
    model.eval()
    with torch.no_grad():
        loss_of(model, next(batches(1)))


def actor_and_critic():
    torch.manual_seed(0)
    return net(), nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))


def chosen(actor, x):
    policy = torch.distributions.Categorical(logits=actor(x))
    action = policy.sample()
    return policy.log_prob(action), (action == x[:, :4].argmax(1)).float()
