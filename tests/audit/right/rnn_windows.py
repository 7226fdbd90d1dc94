import torch
from torch import nn

model = nn.GRU(8, 8)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for sequence in [torch.randn(10, 2, 8)] * 4:
    opt.zero_grad()
    loss = 0
    for t in range(10):
        out, _ = model(sequence[t : t + 1])
        loss += nn.functional.mse_loss(out, sequence[t : t + 1])
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
