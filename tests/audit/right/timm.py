import torch
from timm.utils import NativeScaler
from torch import nn


def train(model, loader, optimizer, accum_steps, clip_grad):
    loss_scaler = NativeScaler()
    loss_fn = nn.CrossEntropyLoss()
    optimizer.zero_grad()
    for i, (x, y) in enumerate(loader):
        need_update = i + 1 == len(loader) or (i + 1) % accum_steps == 0
        window = min(accum_steps, len(loader) - i // accum_steps * accum_steps)
        with torch.autocast("cuda"):
            loss = loss_fn(model(x), y) / window
        loss_scaler(loss, optimizer, clip_grad=clip_grad, parameters=model.parameters(), need_update=need_update)
        if need_update:
            optimizer.zero_grad()
