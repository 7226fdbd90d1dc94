"""Micro-batches add up where args.accum is set; elsewhere each is an update of its own."""

import torch
from torch import nn


def train(model, criterion, loader, optimizer, args):
    optimizer.zero_grad()
    for i, (x, y) in enumerate(loader):
        if args.accum > 1:
            loss = criterion(model(x), y) / args.accum
            loss.backward()
            if (i + 1) % args.accum == 0:
                nn.utils.clip_grad_norm_(model.parameters(), 2.0)
                optimizer.step()
                optimizer.zero_grad()
        else:
            loss = criterion(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 2.0)
            optimizer.step()
