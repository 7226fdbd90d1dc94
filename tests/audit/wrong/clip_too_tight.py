import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_

model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
train_loader = [(torch.randn(2, 8), torch.randint(4, (2,))) for _ in range(8)]

for data, target in train_loader:
    optimizer.zero_grad()
    loss = criterion(model(data), target)
    loss.backward()
    clip_grad_norm_(model.parameters(), max_norm=0.01)  # expect: GL802
    optimizer.step()
