import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_

model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
train_loader = [(torch.randn(2, 8), torch.randint(4, (2,))) for _ in range(8)]
scaler = torch.amp.GradScaler("cuda")

for data, target in train_loader:
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        output = model(data)
        loss = criterion(output, target)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    clip_grad_norm_(model.parameters(), max_norm=1.0)
    scaler.unscale_(optimizer)  # expect: GL202
    scaler.step(optimizer)
    scaler.update()
