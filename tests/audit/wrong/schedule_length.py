import torch
from torch import nn

model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
train_loader = [(torch.randn(2, 8), torch.randint(4, (2,))) for _ in range(8)]
accumulation_steps = 4
epochs = 3
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=epochs * len(train_loader))  # expect: GL403
for epoch in range(epochs):
    for i, (data, target) in enumerate(train_loader):
        (criterion(model(data), target) / accumulation_steps).backward()
        if (i + 1) % accumulation_steps == 0:  # expect: GL307
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
