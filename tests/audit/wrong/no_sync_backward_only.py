from contextlib import nullcontext

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
train_loader = [(torch.randn(2, 8), torch.randint(4, (2,))) for _ in range(8)]
torch.distributed.init_process_group("gloo")
model = DDP(model)
accumulation_steps = 4

for i, (data, target) in enumerate(train_loader):
    boundary = (i + 1) % accumulation_steps == 0
    loss = criterion(model(data), target) / accumulation_steps
    with nullcontext() if boundary else model.no_sync():  # expect: GL503
        loss.backward()
    if boundary:  # expect: GL307
        optimizer.step()
        optimizer.zero_grad()
