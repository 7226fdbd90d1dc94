"""Where autocast is, and where a scaler."""

from __future__ import annotations

import pytest
from audited_snippets import HEAD, assert_marked, findings

FLAG = """
def fit(net, opt, config):
    scaler = torch.amp.GradScaler("cuda", enabled=SCALED)
    for x, y in loader:
        opt.zero_grad()
        FORWARD
        with torch.autocast("cuda", enabled=CAST):
            FORWARD
            loss = F.mse_loss(out, y)
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
"""
OUTSIDE = FLAG.replace("FORWARD\n        with", "out = net(x)  # expect: GL208\n        with").replace(
    "FORWARD", "pass"
)
INSIDE = FLAG.replace("FORWARD\n        with", "pass\n        with").replace("FORWARD", "out = net(x)")
ONE, OTHER_FLAG = 'config["amp"]', 'config["other"]'
CASES = {
    "a flag in a dictionary": OUTSIDE.replace("SCALED", ONE).replace("CAST", ONE),
    "a flag in a dictionary, for the forward pass too": INSIDE.replace("SCALED", ONE).replace("CAST", ONE),
    "two flags in a dictionary": OUTSIDE.replace("SCALED", ONE)
    .replace("CAST", OTHER_FLAG)
    .replace("  # expect: GL208", ""),
    "a flag that is turned round": FLAG.replace("FORWARD\n        with", "pass\n        with")
    .replace("FORWARD", "out = net(x)  # expect: GL208")
    .replace("SCALED", ONE)
    .replace("CAST", f"not {ONE}"),
    "a block that is not known around all, and autocast in it": """
from rich.progress import Bar
def epoch(opt, scaler):
    with Bar() as bar:
        for x, y in loader:
            opt.zero_grad()
            out = model(x)  # expect: GL208
            with torch.autocast("cuda"):
                loss = F.cross_entropy(out, y)
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()
def whole(opt, scaler):
    with Bar() as bar:
        for x, y in loader:
            opt.zero_grad()
            loss = F.cross_entropy(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()
""",
    "a scaler that is called": """
def epoch(net, opt, scaler, n):
    opt.zero_grad()
    for i, (x, _) in enumerate(loader):
        loss, _, _ = net(x)
        scaler(loss, opt, parameters=net.parameters(), update_grad=(i + 1) % n == 0)  # expect: GL301, GL307
        if (i + 1) % n == 0:
            opt.zero_grad()
""",
    "a wrapper around an unseen model may contain an autocast": """
from elsewhere import Net
net = nn.DataParallel(Net(3)).cuda()
opt = torch.optim.AdamW(net.parameters())
scaler = torch.amp.GradScaler("cuda")
for x, y in loader:
    opt.zero_grad()
    loss = F.mse_loss(net(x), y)
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
""",
    "a part of a model may contain an autocast": """
class Part(nn.Module):
    def forward(self, x):
        with torch.autocast("cuda"):
            return x @ x
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.part = Part()
    def forward(self, x):
        return self.part(x)
net = Net()
opt = torch.optim.AdamW(net.parameters())
scaler = torch.amp.GradScaler("cuda")
for x, y in loader:
    opt.zero_grad()
    loss = F.mse_loss(net(x), y)
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
""",
    "parts that are seen contain none": """
class Part(nn.Module):
    def forward(self, x):
        return x @ x
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.part = Part()
    def forward(self, x):
        return self.part(x)
net = nn.DataParallel(Net())
opt = torch.optim.AdamW(net.parameters())
scaler = torch.amp.GradScaler("cuda")
for x, y in loader:
    opt.zero_grad()
    loss = F.mse_loss(net(x), y)  # expect: GL208
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
""",
    "a function that returns whether all is finite": """
def fine(net):
    for p in net.parameters():
        if not torch.isfinite(p.grad).all():
            return False
    return True
scaler = torch.amp.GradScaler()
for x, y in loader:
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        loss = F.cross_entropy(model(x), y)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    if not fine(model):
        continue  # expect: GL206
    scaler.step(optimizer)
    scaler.update()
""",
    "keywords kept in a dictionary": """
class Engine:
    def __init__(self, net):
        self.net, self.opt, self.scaler = net, torch.optim.SGD(net.parameters(), lr=0.1), torch.amp.GradScaler()
        self.cast = dict(device_type="cuda", dtype=torch.float16)
        self.cast["dtype"] = torch.bfloat16
    def fit(self, batches):
        for x, y in batches:
            self.opt.zero_grad()
            with torch.autocast(**self.cast):  # expect: GL211
                loss = F.cross_entropy(self.net(x), y)
            self.scaler.scale(loss).backward()
            self.scaler.step(self.opt)
            self.scaler.update()
""",
    "a scaler that is switched by keywords": """
scaler = torch.amp.GradScaler("cuda")
for x, y in loader:
    optimizer.zero_grad()
    with torch.autocast("cuda"):
        loss = F.cross_entropy(model(x), y)
    scaler.scale(outputs=loss).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # expect: GL201
    scaler.step(optimizer=optimizer)
    scaler.update()
""",
    "a scaler that is switched by keywords, correctly": """
scaler = torch.amp.GradScaler("cuda")
for x, y in loader:
    optimizer.zero_grad()
    with torch.autocast("cuda"):
        loss = F.cross_entropy(model(x), y)
    scaler.scale(outputs=loss).backward()
    scaler.unscale_(optimizer=optimizer)
    nn.utils.clip_grad_norm_(parameters=model.parameters(), max_norm=1.0)
    scaler.step(optimizer=optimizer)
    scaler.update()
""",
    "the forward pass of another model is inside": """
scaler = torch.amp.GradScaler("cuda")
other = nn.Linear(8, 4)
for x, y in loader:
    with torch.autocast("cuda"):
        hint = other(x).argmax(-1)
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), hint)  # expect: GL208
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
""",
    "the type of autocast by position": """
from torch.cuda.amp import autocast as cuda_autocast  # gradlab: ignore[GL212]
for x, y in loader:
    optimizer.zero_grad()
    with torch.autocast("cuda", torch.bfloat16):
        loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
""",
    "the switch of autocast by position": """
from torch.cuda.amp import autocast as cuda_autocast  # gradlab: ignore[GL212]
for x, y in loader:
    optimizer.zero_grad()
    with cuda_autocast(False):
        loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
""",
    "the device of autocast by name": """
from torch.cuda.amp import autocast as cuda_autocast  # gradlab: ignore[GL212]
for x, y in loader:
    optimizer.zero_grad()
    with torch.autocast(device_type="cuda"):
        loss = F.cross_entropy(model(x), y)
    loss.backward()  # expect: GL210
    optimizer.step()
""",
    "an engine under a switch, and else no scaler": """
import deepspeed
engine = deepspeed.initialize(model=model)[0]
for x, y in loader:
    with torch.autocast(device_type="cuda"):
        loss = F.cross_entropy(model(x), y)
    if args.deepspeed:
        engine.backward(loss)
        engine.step()
    else:
        loss.backward()  # expect: GL210
        optimizer.step()
        optimizer.zero_grad()
""",
}


@pytest.mark.parametrize("name", CASES)
def test_marked_lines_are_found_and_nothing_else(name, tmp_path):
    assert_marked(CASES[name], tmp_path)


LOOP = """
IMPORT
from nets import Net
net, scaler = Net(), torch.amp.GradScaler("cuda")
optimizer = torch.optim.SGD(net.parameters(), 0.1)
with tqdm(total=9) as bar:
    for x, y in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
"""

OTHER = """
class Other(nn.Module):
    @autocast("cuda")
    def forward(self, x): ...
"""
CASES |= {
    "a loss of unknown making in fp16": """
for x, y in loader:
    optimizer.zero_grad()
    with torch.autocast("cuda"):
        losses = task.losses(x, y)
        loss = sum(losses.values())
    loss.backward()  # expect: GL210
    optimizer.step()
""",
    "a loss of unknown making in bf16, and in fp16 for the log": """
for x, y in loader:
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = task.losses(x, y)["loss"]
    loss.backward()
    with torch.autocast("cuda"):
        shown = task.losses(x, y)["loss"]
    optimizer.step()
""",
}


@pytest.mark.parametrize(
    ("head", "tail", "codes"),
    [
        ("from torch.amp import autocast", "", {"GL208"}),
        ("", "with torch.no_grad(), torch.autocast('cuda'):\n    net(x)", {"GL208"}),
        ("", "", set()),  # the network may cast by itself
        ("from torch.amp import autocast", OTHER, set()),
    ],
)
def test_autocast_used_but_not_around_the_forward_pass(tmp_path, head, tail, codes):
    text = HEAD + LOOP.replace("IMPORT", head) + tail
    assert {code for _, code in findings(text, tmp_path, "GL208")} == codes
