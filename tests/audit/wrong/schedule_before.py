import torch
from torch import nn

model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
train_loader = [(torch.randn(2, 8), torch.randint(4, (2,))) for _ in range(8)]
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=1000)
for data, target in train_loader:
    optimizer.zero_grad()
    criterion(model(data), target).backward()
    scheduler.step()  # expect: GL402
    optimizer.step()
