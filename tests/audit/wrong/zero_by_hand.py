"""Gradients of all parameters are set to None before the step."""

import torch


def train(model, criterion, loader):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in loader:
        criterion(model(x), y).backward()
        for p in model.parameters():
            if p.grad is not None:
                p.grad = None  # expect: GL103
        optimizer.step()
