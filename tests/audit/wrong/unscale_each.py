import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_

model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
train_loader = [(torch.randn(2, 8), torch.randint(4, (2,))) for _ in range(8)]
scaler = torch.amp.GradScaler("cuda")
accumulation_steps = 4

for i, (data, target) in enumerate(train_loader):
    with torch.autocast("cuda", dtype=torch.float16):
        loss = criterion(model(data), target) / accumulation_steps
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)  # expect: GL203
    if (i + 1) % accumulation_steps == 0:  # expect: GL307
        clip_grad_norm_(model.parameters(), max_norm=1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
