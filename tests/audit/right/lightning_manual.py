import lightning
import torch
from torch import nn


class Net(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.net = nn.Linear(8, 4)

    def training_step(self, batch, batch_idx):
        x, y = batch
        opt = self.optimizers()
        loss = nn.functional.cross_entropy(self.net(x), y) / 4
        self.manual_backward(loss)
        if (batch_idx + 1) % 4 == 0:
            self.clip_gradients(opt, gradient_clip_val=1.0)
            opt.step()
            opt.zero_grad()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)
