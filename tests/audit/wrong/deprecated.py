import torch
from torch import nn

model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
train_loader = [(torch.randn(2, 8), torch.randint(4, (2,))) for _ in range(8)]
from torch.cuda.amp import GradScaler, autocast  # expect: GL212
import torch.cuda.amp as amp

scaler = GradScaler()
other = amp.GradScaler()  # expect: GL212
for data, target in train_loader:
    optimizer.zero_grad()
    with autocast():
        loss = criterion(model(data), target)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
