import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_

steps = 4
model = nn.Linear(8, 4)
criterion = nn.CrossEntropyLoss(ignore_index=-100)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
train_loader = [(torch.randn(2, 8), torch.randint(4, (2,))) for _ in range(8)]

optimizer.zero_grad()
for i, (data, target) in enumerate(train_loader):
    loss = criterion(model(data), target) / steps
    loss.backward()  # expect: GL805
    if (i + 1) % steps == 0:  # expect: GL307
        clip_grad_norm_(model.parameters(), max_norm=1.0)
        optimizer.step()
        optimizer.zero_grad()
