import torch
from torch import nn

generator, critic = nn.Linear(8, 8), nn.Linear(8, 1)
g_optimizer = torch.optim.Adam(generator.parameters())
d_optimizer = torch.optim.Adam(critic.parameters())
loss_fn = nn.BCEWithLogitsLoss()
for i, real in enumerate([torch.randn(4, 8)] * 8):
    d_optimizer.zero_grad()
    fake = generator(torch.randn(4, 8))
    d_loss = loss_fn(critic(real), torch.ones(4, 1)) + loss_fn(critic(fake.detach()), torch.zeros(4, 1))
    d_loss.backward()
    d_optimizer.step()
    if i % 5 == 0:
        g_optimizer.zero_grad()
        loss_fn(critic(fake), torch.ones(4, 1)).backward()
        nn.utils.clip_grad_norm_(generator.parameters(), 1.0)
        g_optimizer.step()
