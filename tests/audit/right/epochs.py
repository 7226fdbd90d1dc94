import argparse

import torch
from torch import nn, optim
from torch.optim.lr_scheduler import StepLR


def train(args, model, device, train_loader, optimizer, epoch):
    model.train()
    for batch_idx, (data, target) in enumerate(train_loader):
        data, target = data.to(device), target.to(device)
        optimizer.zero_grad()
        output = model(data)
        loss = nn.functional.nll_loss(output, target)
        loss.backward()
        optimizer.step()
        if batch_idx % args.log_interval == 0:
            print(loss.item())
            if args.dry_run:
                break


def test(model, device, test_loader):
    model.eval()
    total = 0
    with torch.no_grad():
        for data, target in test_loader:
            total += nn.functional.nll_loss(model(data), target, reduction="sum").item()


def main():
    args = argparse.ArgumentParser().parse_args()
    model = nn.Sequential(nn.Linear(3, 3), nn.LogSoftmax(-1))
    optimizer = optim.Adadelta(model.parameters(), lr=args.lr)
    scheduler = StepLR(optimizer, step_size=1, gamma=args.gamma)
    for epoch in range(1, args.epochs + 1):
        train(args, model, "cpu", args.loader, optimizer, epoch)
        test(model, "cpu", args.loader)
        scheduler.step()


if __name__ == "__main__":
    main()
