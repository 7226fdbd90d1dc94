import torch
from accelerate import Accelerator
from torch import nn

accelerator = Accelerator(gradient_accumulation_steps=4)
model = nn.Linear(8, 4)
optimizer = torch.optim.AdamW(model.parameters())
loader = [(torch.randn(2, 8), torch.randint(4, (2,))) for _ in range(8)]
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for x, y in loader:
    with accelerator.accumulate(model):
        loss = nn.functional.cross_entropy(model(x), y) / accelerator.gradient_accumulation_steps  # expect: GL302
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)  # expect: GL304
        optimizer.step()
        optimizer.zero_grad()
