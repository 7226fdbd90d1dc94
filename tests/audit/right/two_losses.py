import torch
from torch import nn

a, b = nn.Linear(8, 4), nn.Linear(8, 4)
oa, ob = torch.optim.SGD(a.parameters(), lr=0.1), torch.optim.SGD(b.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")
for x, y in [(torch.randn(8, 8), torch.randint(4, (8,)))] * 4:
    oa.zero_grad()
    ob.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        la, lb = nn.functional.cross_entropy(a(x), y), nn.functional.cross_entropy(b(x), y)
    scaler.scale(la).backward(retain_graph=True)
    scaler.scale(lb).backward()
    scaler.unscale_(oa)
    scaler.unscale_(ob)
    nn.utils.clip_grad_norm_(a.parameters(), 1.0)
    nn.utils.clip_grad_norm_(b.parameters(), 1.0)
    scaler.step(oa)
    scaler.step(ob)
    scaler.update()
