"""A comparison of three is as good as two."""

import torch


def train(model, criterion, loader, optimizer, first, last):
    for i, (x, y) in enumerate(loader):
        optimizer.zero_grad()
        criterion(model(x), y).backward()
        optimizer.step()
        if first <= i < last:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # expect: GL101
