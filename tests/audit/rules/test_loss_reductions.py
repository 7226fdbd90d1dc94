"""Sums and means of losses: over samples, over other dimensions, over lists, and in criteria of the project."""

from __future__ import annotations

import pytest
from audited_snippets import assert_faults

CASES = {
    "mean 0 then sum": """
n = 4
for i, (x, y) in enumerate(loader):
    loss = F.mse_loss(model(x), y, reduction="none").mean(0).sum()
    loss.backward()  # expect: GL301
    if (i + 1) % n == 0 or i + 1 == len(loader):
        optimizer.step()
        optimizer.zero_grad()
""",
    "a mean over what a mask shows, in a criterion": """
class Masked(nn.Module):
    def forward(self, output, target, mask):
        return ((output - target).abs() * mask).sum() / mask.sum().clamp(min=1)
def train(n):
    criterion = Masked()
    for i, (x, y, mask) in enumerate(loader):
        loss = criterion(model(x), y, mask)
        loss.backward()  # expect: GL301
        if (i + 1) % n == 0 or i + 1 == len(loader):
            optimizer.step()
            optimizer.zero_grad()
""",
    "a sum over what a mask shows, divided by a length in a criterion": """
class Masked(nn.Module):
    def forward(self, output, target, mask):
        return ((output - target).abs() * mask).sum() / (8 * n_all)
def train(n):
    criterion = Masked()
    for i, (x, y, mask) in enumerate(loader):
        loss = criterion(model(x), y, mask)
        loss.backward()
        if (i + 1) % n == 0 or i + 1 == len(loader):
            optimizer.step()
            optimizer.zero_grad()
""",
    "sum dim -1 mean none": """
n = 4
for i, (x, y) in enumerate(loader):
    loss = F.mse_loss(model(x), y, reduction="none").sum(dim=-1).mean()
    loss.backward()  # expect: GL301
    if (i + 1) % n == 0 or i + 1 == len(loader):
        optimizer.step()
        optimizer.zero_grad()
""",
    "sum over all by dims is intended": """
n = 4
for i, (x, y) in enumerate(loader):
    loss = F.mse_loss(model(x), y, reduction="none").sum(1).sum(0)
    loss.backward()
    if (i + 1) % n == 0 or i + 1 == len(loader):
        optimizer.step()
        optimizer.zero_grad()
""",
    "criterion class of the project": """
class Focal(nn.Module):
    def __init__(self, gamma=2.0):
        super().__init__()
        self.gamma = gamma
    def forward(self, logits, target):
        ce = F.cross_entropy(logits, target, reduction="none")
        return ((1 - torch.exp(-ce)) ** self.gamma * ce).mean()
criterion = Focal()
n = 4
for i, (x, y) in enumerate(loader):
    loss = criterion(model(x), y)
    loss.backward()  # expect: GL301
    if (i + 1) % n == 0 or i + 1 == len(loader):
        optimizer.step()
        optimizer.zero_grad()
""",
    "criterion class LabelSmoothing of the project": """
class LabelSmoothing(nn.Module):
    def __init__(self, smoothing=0.1):
        super().__init__()
        self.smoothing = smoothing
    def forward(self, logits, target):
        logp = F.log_softmax(logits, dim=-1)
        nll = -logp.gather(1, target[:, None]).squeeze(1)
        return ((1 - self.smoothing) * nll + self.smoothing * -logp.mean(-1)).mean()
criterion = LabelSmoothing()
n = 4
for i, (x, y) in enumerate(loader):
    loss = criterion(model(x), y)
    loss.backward()  # expect: GL301
    if (i + 1) % n == 0 or i + 1 == len(loader):
        optimizer.step()
        optimizer.zero_grad()
""",
    "criterion class that sums, intended": """
class SumLoss(nn.Module):
    def forward(self, logits, target):
        return F.cross_entropy(logits, target, reduction="sum")
criterion = SumLoss()
n = 4
for i, (x, y) in enumerate(loader):
    loss = criterion(model(x), y)
    loss.backward()
    if (i + 1) % n == 0 or i + 1 == len(loader):
        optimizer.step()
        optimizer.zero_grad()
""",
    "loss function of the project": """
def total_loss(out, y):
    a = F.cross_entropy(out, y)
    b = out.pow(2).mean()
    return a + 0.1 * b
n = 4
for i, (x, y) in enumerate(loader):
    loss = total_loss(model(x), y)
    loss.backward()  # expect: GL301
    if (i + 1) % n == 0 or i + 1 == len(loader):
        optimizer.step()
        optimizer.zero_grad()
""",
    "sum over a list": """
n = 4
for i, (x, y) in enumerate(loader):
    losses = [F.cross_entropy(model(x), y), F.cross_entropy(model(x + 1), y)]
    loss = sum(losses)
    loss.backward()  # expect: GL301
    if (i + 1) % n == 0 or i + 1 == len(loader):
        optimizer.step()
        optimizer.zero_grad()
""",
    "sum over dict values": """
n = 4
for i, (x, y) in enumerate(loader):
    losses = {"a": F.cross_entropy(model(x), y), "b": F.cross_entropy(model(x + 1), y)}
    loss = sum(losses.values())
    loss.backward()  # expect: GL301
    if (i + 1) % n == 0 or i + 1 == len(loader):
        optimizer.step()
        optimizer.zero_grad()
""",
    "sum over appended list": """
n = 4
for i, (x, y) in enumerate(loader):
    losses = []
    for k in range(2):
        losses.append(F.cross_entropy(model(x + k), y))
    loss = sum(losses) / len(losses)
    loss.backward()  # expect: GL301
    if (i + 1) % n == 0 or i + 1 == len(loader):
        optimizer.step()
        optimizer.zero_grad()
""",
    "stack mean of list": """
n = 4
for i, (x, y) in enumerate(loader):
    losses = [F.cross_entropy(model(x + k), y) for k in range(2)]
    loss = torch.stack(losses).sum()
    loss.backward()  # expect: GL301
    if (i + 1) % n == 0 or i + 1 == len(loader):
        optimizer.step()
        optimizer.zero_grad()
""",
    "sum over a list divided, right": """
n = 4
for i, (x, y) in enumerate(loader):
    losses = [F.cross_entropy(model(x), y), F.cross_entropy(model(x + 1), y)]
    loss = sum(losses) / n
    loss.backward()
    if (i + 1) % n == 0 or i + 1 == len(loader):
        optimizer.step()
        optimizer.zero_grad()
""",
    "each of the list divided, right": """
n = 4
for i, (x, y) in enumerate(loader):
    losses = [F.cross_entropy(model(x), y) / n, F.cross_entropy(model(x + 1), y) / n]
    loss = sum(losses)
    loss.backward()
    if (i + 1) % n == 0 or i + 1 == len(loader):
        optimizer.step()
        optimizer.zero_grad()
""",
    "one of several results, by default a sum": """
class Net(nn.Module):
    def forward(self, x, y, reduction="sum"):
        out = self.linear(x)
        return out, F.cross_entropy(out, y, reduction=reduction)
def train(n):
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for i, (x, y) in enumerate(loader):
        _, loss = net(x, y)
        loss.backward()
        if (i + 1) % n == 0 or i + 1 == len(loader):
            optimizer.step()
            optimizer.zero_grad()
""",
    "one of several results, a mean": """
class Net(nn.Module):
    def forward(self, x, y):
        out = self.linear(x)
        return out, F.cross_entropy(out, y)
def train(n):
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for i, (x, y) in enumerate(loader):
        _, loss = net(x, y)
        loss.backward()  # expect: GL301
        if (i + 1) % n == 0 or i + 1 == len(loader):
            optimizer.step()
            optimizer.zero_grad()
""",
}


@pytest.mark.parametrize("name", CASES)
def test_marked_lines_are_found_and_no_other_fault(name, tmp_path):
    assert_faults(CASES[name], tmp_path)
