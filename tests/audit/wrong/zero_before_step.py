import torch
from torch import nn

model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
train_loader = [(torch.randn(2, 8), torch.randint(4, (2,))) for _ in range(8)]

for data, target in train_loader:
    loss = criterion(model(data), target)
    loss.backward()
    optimizer.zero_grad()  # expect: GL103
    optimizer.step()
