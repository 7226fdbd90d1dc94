import torch
from torch import nn

model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
train_loader = [(torch.randn(2, 8), torch.randint(4, (2,))) for _ in range(8)]
accumulation_steps = 4
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=1000)
for i, (data, target) in enumerate(train_loader):
    loss = criterion(model(data), target)
    (loss / accumulation_steps).backward()
    if (i + 1) % accumulation_steps == 0:  # expect: GL307
        optimizer.step()
        optimizer.zero_grad()
    scheduler.step()  # expect: GL401
