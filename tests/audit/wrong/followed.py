"""Loops that are understood though something stands between the names and what they are."""

from abc import abstractmethod
from functools import partial

import lightning
import torch
from torch import nn
from zoo import OPTIMIZERS, wrapped


class Sparse(torch.optim.Optimizer):
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                p.data.sub_(p.grad)


def own_optimizer(model, criterion, loader):
    optimizer = Sparse(model.parameters(), {})
    for x, y in loader:
        model.zero_grad()
        criterion(model(x), y).backward()
        optimizer.step()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # expect: GL101


def by_a_table(model, criterion, loader, name):
    opt = OPTIMIZERS[name](model.parameters())
    for x, y in loader:
        model.zero_grad()
        criterion(model(x), y).backward()
        opt.step()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # expect: GL101


def of_a_dictionary(model, criterion, loader, optimizers):
    for x, y in loader:
        for optim in optimizers.values():
            optim.zero_grad()
        criterion(model(x), y).backward()
        for optim in optimizers.values():
            optim.step()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # expect: GL101


class Agent:
    """The optimizer belongs to the policy; the loss is a method of subclasses."""

    @abstractmethod
    def loss(self, x):
        raise NotImplementedError

    def train(self, loader):
        for x in loader:
            loss = self.loss(x)
            self.policy.optimizer.zero_grad()
            loss.backward()
            self.policy.optimizer.step()
            nn.utils.clip_grad_norm_(self.policy.parameters(), 1.0)  # expect: GL101


def backward(scale, loss):
    (loss * scale).backward()


def given_some(model, criterion, loader, optimizer):
    go = partial(backward, 2.0)
    for x, y in loader:
        optimizer.zero_grad()
        go(criterion(model(x), y))
        optimizer.step()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # expect: GL101


def compiled(model, criterion, loader, optimizer):
    def update(x, y):
        optimizer.zero_grad()
        criterion(model(x), y).backward()
        optimizer.step()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # expect: GL101

    update = wrapped(torch.compile(update))
    for x, y in loader:
        update(x, y)


class Pair(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch):
        first, second = self.optimizers()
        first.zero_grad()
        self.manual_backward(self(batch))
        first.step()
        self.clip_gradients(first, gradient_clip_val=1.0)  # expect: GL101
