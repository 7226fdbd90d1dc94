"""Each snippet of the document on gradient management, completed to a loop: the wrong ones are found at their lines.

In the correct ones only what is really wrong is found: remainders that are left, or divided by the full n.
"""

from __future__ import annotations

import pytest
from audited_snippets import HEAD, STEP, expected, findings

FORWARD = "for x, y in loader:\n    loss = F.cross_entropy(model(x), y)\n"
WINDOW = "n = 4\noptimizer.zero_grad()\nfor i, (x, y) in enumerate(loader):\n"
AMP = """
scaler = torch.amp.GradScaler("cuda")
for x, y in loader:
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        loss = F.cross_entropy(model(x), y)
    scaler.scale(loss).backward()
"""
DDP = """
from contextlib import nullcontext
from torch.nn.parallel import DistributedDataParallel as DDP
model = DDP(model, device_ids=[0])
"""
WRONG = {
    "clip after the step": FORWARD + STEP + "    nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # expect: GL101\n",
    "clip before backward": """
for x, y in loader:
    optimizer.zero_grad()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # expect: GL102
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
""",
    "accumulation without division": WINDOW
    + """    F.cross_entropy(model(x), y).backward()  # expect: GL301
    if (i + 1) % n == 0:  # expect: GL307
        optimizer.step()
        optimizer.zero_grad()
""",
    "gradients divided by hand": WINDOW
    + """    F.cross_entropy(model(x), y).backward()
    for p in model.parameters():
        if p.grad is not None:
            p.grad /= n  # expect: GL303
    if (i + 1) % n == 0:  # expect: GL307
        optimizer.step()
        optimizer.zero_grad()
""",
    "no zero_grad after the update": WINDOW
    + """    (F.cross_entropy(model(x), y) / n).backward()
    if (i + 1) % n == 0:  # expect: GL307
        optimizer.step()  # expect: GL305
""",
    "zero_grad for each micro-batch": WINDOW
    + """    optimizer.zero_grad()  # expect: GL306
    (F.cross_entropy(model(x), y) / n).backward()
    if (i + 1) % n == 0:  # expect: GL307
        optimizer.step()
""",
    "clip each micro-batch": WINDOW
    + """    (F.cross_entropy(model(x), y) / n).backward()
    nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)  # expect: GL304
    if (i + 1) % n == 0:  # expect: GL307
        optimizer.step()
        optimizer.zero_grad()
""",
    "numerically unstable losses": """
for x, y in loader:
    predictions = model(x)
    loss = -torch.log(predictions).mean()  # expect: GL601
    loss = loss + (1.0 / predictions).mean()  # expect: GL602
    loss = loss + torch.exp(predictions).sum()  # expect: GL604
    loss = loss + torch.sqrt((predictions - y) ** 2).mean()  # expect: GL603
    loss = loss + torch.sqrt(torch.clamp((predictions - y) ** 2, min=0)).mean()  # expect: GL603
"""
    + STEP,
    "clip without unscale": AMP
    + """    nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)  # expect: GL201
    scaler.step(optimizer)
    scaler.update()
""",
    "unscale twice": AMP
    + """    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
    scaler.unscale_(optimizer)  # expect: GL202
    scaler.step(optimizer)
    scaler.update()
""",
    "step past the scaler": AMP
    + """    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
    optimizer.step()  # expect: GL204
    scaler.update()
""",
    "a reduction for each micro-batch": DDP
    + WINDOW
    + """    (F.cross_entropy(model(x), y) / n).backward()  # expect: GL501
    if (i + 1) % n == 0:  # expect: GL307
        optimizer.step()
        optimizer.zero_grad()
""",
    "a lower rate in place of clipping": """
net = nn.TransformerEncoderLayer(8, 2)
adam = torch.optim.Adam(net.parameters(), lr=1e-5)
for x, y in loader:
    adam.zero_grad()
    F.mse_loss(net(x), x).backward()
    adam.step()  # expect: GL803
""",
    "clip by value": FORWARD
    + """    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_value_(model.parameters(), clip_value=0.5)  # expect: GL801
    optimizer.step()
""",
    "a ResNet clipped": """
from torchvision.models import resnet50
net = resnet50()
sgd = torch.optim.SGD(net.parameters(), lr=0.1)
for x, y in loader:
    sgd.zero_grad()
    F.cross_entropy(net(x), y).backward()
    nn.utils.clip_grad_norm_(net.parameters(), max_norm=1.0)  # expect: GL804
    sgd.step()
""",
    "clip much too tightly": FORWARD
    + """    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), max_norm=0.01)  # expect: GL802
    optimizer.step()
""",
}
LOOK = """
def look(net):
    total = 0.0
    for name, p in net.named_parameters():
        if p.grad is not None:
            total += p.grad.data.norm(2).item() ** 2
    return total**0.5
"""
RIGHT = {
    "clip between backward and step": FORWARD
    + """    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
    optimizer.step()
""",
    "the whole accumulation, with its remainder": WINDOW
    + """    (F.cross_entropy(model(x), y) / n).backward()
    if (i + 1) % n == 0:
        optimizer.step()
        optimizer.zero_grad()
if len(loader) % n != 0:
    optimizer.step()  # expect: GL308
    optimizer.zero_grad()
""",
    "accumulation and clipping": WINDOW
    + """    (F.cross_entropy(model(x), y) / n).backward()
    if (i + 1) % n == 0:  # expect: GL307
        nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
        optimizer.step()
        optimizer.zero_grad()
""",
    "accumulation and a schedule": "schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=100)\n"
    + WINDOW
    + """    (F.cross_entropy(model(x), y) / n).backward()
    if (i + 1) % n == 0:  # expect: GL307
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
""",
    "clipping that is counted": LOOK
    + FORWARD
    + """    optimizer.zero_grad()
    loss.backward()
    before = look(model)
    nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
    if before > 1.0:
        print(before, "->", look(model))
    optimizer.step()
""",
    "gradients looked at": LOOK
    + """
for step, (x, y) in enumerate(loader):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    if step % 100 == 0:
        print(step, loss.item(), look(model))
    nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
    optimizer.step()
""",
    "stop at a gradient that is not finite": """
def broken(net):
    return any(p.grad is not None and torch.isnan(p.grad).any() for p in net.parameters())
for x, y in loader:
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    if broken(model):
        raise RuntimeError("NaN gradients")
    optimizer.step()
""",
    "norms and ratios to a logger": """
def log(net, logger, step):
    for name, p in net.named_parameters():
        if p.grad is not None:
            norm = p.grad.data.norm(2).item()
            logger.log({f"{name}/norm": norm, f"{name}/ratio": norm / p.data.norm(2).item()}, step=step)
import wandb
for step, (x, y) in enumerate(loader):
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    log(model, wandb, step)
    nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
    optimizer.step()
""",
    "the loss checked before backward": """
for x, y in loader:
    optimizer.zero_grad()
    out = model(x)
    loss = F.cross_entropy(out, y)
    if torch.isnan(loss):
        print(out.min(), out.max())
    else:
        loss.backward()
        for name, p in model.named_parameters():
            if p.grad is not None and torch.isnan(p.grad).any():
                print(name)
        optimizer.step()
""",
    "two sigmoids, norms, residuals, checkpoints": """
from torch.utils.checkpoint import checkpoint
short = nn.Sequential(nn.Linear(8, 8), nn.Sigmoid(), nn.Linear(8, 8), nn.Sigmoid(), nn.Linear(8, 4))
class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.layers = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))
    def forward(self, x):
        return x + self.layers(self.norm(x))
class Deep(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block(8) for _ in range(50)])
    def forward(self, x):
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return x
deep = Deep()
adam = torch.optim.AdamW(deep.parameters(), lr=1e-4)
n = 4
for i, (x, y) in enumerate(loader):
    (F.cross_entropy(deep(x), y) / n).backward()
    if (i + 1) % n == 0:  # expect: GL307
        nn.utils.clip_grad_norm_(deep.parameters(), max_norm=1.0)
        adam.step()
        adam.zero_grad()
""",
    "losses with an eps, or of logits": """
eps = 1e-8
for x, y in loader:
    out = model(x)
    loss = -torch.log(out + eps).mean() + (1.0 / (out + eps)).mean() + ((out - y) / (out.abs() + eps)).pow(2).mean()
    loss = loss + F.cross_entropy(out, y)
"""
    + STEP,
    "unscale, clip, step, update": AMP
    + """    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
    scaler.step(optimizer)
    scaler.update()
""",
    "the same over a window": 'scaler = torch.amp.GradScaler("cuda")\n'
    + WINDOW
    + """    with torch.autocast("cuda", dtype=torch.float16):
        loss = F.cross_entropy(model(x), y)
        scaled = loss / n
    scaler.scale(scaled).backward()
    if (i + 1) % n == 0:  # expect: GL307
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
""",
    "clip layer by layer": """
def clip_layers(net, bound):
    for name, layer in net.named_modules():
        if isinstance(layer, (nn.Linear, nn.Conv2d)):
            params = [p for p in layer.parameters() if p.grad is not None]
            if params and nn.utils.clip_grad_norm_(params, bound) > bound:
                print(name)
"""
    + FORWARD
    + """    optimizer.zero_grad()
    loss.backward()
    clip_layers(model, 1.0)
    optimizer.step()
""",
    "noise before the clip": """
def add_noise(net, std):
    for p in net.parameters():
        if p.grad is not None:
            p.grad.add_(torch.randn_like(p.grad) * std)
"""
    + FORWARD
    + """    optimizer.zero_grad()
    loss.backward()
    add_noise(model, 1e-3)
    nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
    optimizer.step()
""",
    "DDP clips after backward": DDP
    + FORWARD
    + """    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
    optimizer.step()
""",
    "one reduction a window": DDP
    + WINDOW
    + """    accumulating = (i + 1) % n != 0
    with model.no_sync() if accumulating else nullcontext():
        (F.cross_entropy(model(x), y) / n).backward()
    if (i + 1) % n == 0:  # expect: GL307
        nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
        optimizer.step()
        optimizer.zero_grad()
""",
    "DDP, a window, clipping and AMP": DDP
    + 'scaler = torch.amp.GradScaler("cuda")\n'
    + WINDOW
    + """    accumulating = (i + 1) % n != 0
    with model.no_sync() if accumulating else nullcontext():
        with torch.autocast("cuda", dtype=torch.float16):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss / n).backward()
    if (i + 1) % n == 0:  # expect: GL307
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
""",
    "a transformer that is clipped, a ResNet that is not": """
from torchvision.models import resnet50
def train(net, bound=None):
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    for x, y in loader:
        opt.zero_grad()
        F.cross_entropy(net(x), y).backward()
        if bound is not None:
            nn.utils.clip_grad_norm_(net.parameters(), max_norm=bound)
        opt.step()
train(nn.TransformerEncoderLayer(8, 2), 1.0)
train(resnet50())
""",
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_snippet_is_found_at_its_line(name, tmp_path):
    text = HEAD + WRONG[name]
    assert expected(text)
    assert findings(text, tmp_path) == expected(text)


@pytest.mark.parametrize("name", RIGHT)
def test_in_a_correct_snippet_only_marked_lines_are_found(name, tmp_path):
    text = HEAD + RIGHT[name]
    assert findings(text, tmp_path) == expected(text)
