import torch
from lightning.fabric import Fabric
from torch import nn

fabric = Fabric(precision="16-mixed")
model = nn.Linear(8, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer = fabric.setup(model, optimizer)
loader = [(torch.randn(2, 8), torch.randint(4, (2,))) for _ in range(8)]
for i, (x, y) in enumerate(loader):
    accumulating = (i + 1) % 4 != 0
    with fabric.no_backward_sync(model, enabled=accumulating):
        fabric.backward(nn.functional.cross_entropy(model(x), y) / 4)
    if not accumulating:
        fabric.clip_gradients(model, optimizer, max_norm=1.0)
        optimizer.step()
        optimizer.zero_grad()
