import torch
from torch import nn


def train_epoch(model, loader, criterion, optimizer, scaler, args, scheduler=None, teacher=None):
    losses = []
    optimizer.zero_grad()
    counter = 0
    for step, batch in enumerate(loader):
        x, y = batch["x"], batch["y"]
        with torch.autocast("cuda", enabled=args.amp):
            out = model(x)
            loss = criterion(out, y)
            if teacher is not None:
                loss = loss + 0.5 * nn.functional.mse_loss(out, teacher(x))
        if not torch.isfinite(loss):
            print("bad loss", loss.item())
            optimizer.zero_grad()
            continue
        if args.accum > 1:
            loss = loss / args.accum
        if args.amp:
            scaler.scale(loss).backward()
        else:
            loss.backward()
        counter += 1
        if counter == args.accum:
            if args.amp:
                scaler.unscale_(optimizer)
            if args.clip > 0:
                nn.utils.clip_grad_norm_(model.parameters(), args.clip)
            if args.amp:
                scaler.step(optimizer)
                scaler.update()
            else:
                optimizer.step()
            optimizer.zero_grad()
            counter = 0
            if scheduler is not None:
                scheduler.step()
        losses.append(loss.detach())
    return losses
