"""The window is a loop of its own; after it gradients are divided once and several optimizers step."""

from contextlib import nullcontext

import torch
from torch.nn.parallel import DistributedDataParallel


def train(net, loader, criterion, window, updates):
    model = DistributedDataParallel(net)
    optimizers = [torch.optim.AdamW(net.head.parameters()), torch.optim.SGD(net.body.parameters(), lr=0.1)]
    schedules = [torch.optim.lr_scheduler.LambdaLR(one, lambda i: 1 / (i + 1)) for one in optimizers]
    for _ in range(updates):
        for j in range(window):
            x, y = next(loader)
            with model.no_sync() if j < window - 1 else nullcontext():
                criterion(model(x), y).backward()
        for p in model.parameters():
            p.grad /= window
        torch.nn.utils.clip_grad_norm_(model.parameters(), 2.0)
        for optimizer, schedule in zip(optimizers, schedules):
            optimizer.step()
            schedule.step()
        model.zero_grad(set_to_none=True)
