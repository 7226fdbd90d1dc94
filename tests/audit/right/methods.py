import torch
from torch import nn


class Trainer:
    def __init__(self, model, optimizer, scheduler=None, amp=True, max_norm=None, accumulation=1):
        self.model, self.optimizer, self.scheduler = model, optimizer, scheduler
        self.scaler = torch.amp.GradScaler("cuda") if amp else None
        self.amp, self.max_norm, self.accumulation = amp, max_norm, accumulation
        self.criterion = nn.CrossEntropyLoss()

    def compute(self, x, y):
        with torch.autocast("cuda", dtype=torch.float16, enabled=self.amp):
            return self.criterion(self.model(x), y) / self.accumulation

    def backward(self, loss):
        if self.scaler is not None:
            self.scaler.scale(loss).backward()
        else:
            loss.backward()

    def update(self):
        if self.scaler is not None:
            self.scaler.unscale_(self.optimizer)
        if self.max_norm:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.max_norm)
        if self.scaler is not None:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        else:
            self.optimizer.step()
        if self.scheduler is not None:
            self.scheduler.step()
        self.optimizer.zero_grad()

    def fit(self, loader):
        self.optimizer.zero_grad()
        total = 0.0
        for i, (x, y) in enumerate(loader):
            loss = self.compute(x, y)
            self.backward(loss)
            total += loss.item()
            if (i + 1) % self.accumulation != 0 and i + 1 != len(loader):
                continue
            self.update()
        return total
