import torch
from torch import nn

model = nn.LSTM(8, 4)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
train_loader = [(torch.randn(2, 8), torch.randint(4, (2,))) for _ in range(8)]

for data, target in train_loader:
    optimizer.zero_grad()
    loss = criterion(model(data), target)
    loss.backward()
    optimizer.step()  # expect: GL803
