"""A scaler that is called: it scales, goes backward, and where an update is due clips and steps."""

import torch


def train(model, criterion, loader, optimizer, loss_scaler, args):
    optimizer.zero_grad()
    for i, (x, y) in enumerate(loader):
        due = (i + 1) % args.accum == 0
        with torch.autocast("cuda"):
            loss = criterion(model(x), y)
        loss_scaler(loss, optimizer, parameters=model.parameters(), update_grad=due)  # expect: GL301, GL307
        if due:
            optimizer.zero_grad()
