"""Weights in fp16 with a scaler, losses reduced over ranks, and means over the targets of a batch."""

from __future__ import annotations

import pytest
from audited_snippets import assert_faults

CASES = {
    "half weights and a scaler": """
net = nn.Linear(8, 4).cuda().half()  # expect: GL215
opt = torch.optim.SGD(net.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")
for x, y in loader:
    opt.zero_grad()
    loss = F.cross_entropy(net(x.half()), y)
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
""",
    "half weights by type": """
net = nn.Linear(8, 4).cuda().type(torch.float16)  # expect: GL215
opt = torch.optim.SGD(net.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")
for x, y in loader:
    opt.zero_grad()
    loss = F.cross_entropy(net(x.half()), y)
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
""",
    "half weights of a network from elsewhere": """
from nets import build
net = build(pretrained=True).cuda(0).half()  # expect: GL215
opt = torch.optim.SGD(net.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")
for x, y in loader:
    opt.zero_grad()
    loss = F.cross_entropy(net(x.half()), y)
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
""",
    "half weights of a network from elsewhere that are float again": """
from nets import build
net = build(pretrained=True).half().type(torch.float32)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")
for x, y in loader:
    opt.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        loss = F.cross_entropy(net(x), y)
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
""",
    "half weights by to, unscale": """
net = nn.Linear(8, 4)
net.to("cuda", torch.float16)  # expect: GL215
opt = torch.optim.SGD(net.parameters(), lr=0.1)
scaler = torch.cuda.amp.GradScaler()
for x, y in loader:
    opt.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        loss = F.cross_entropy(net(x), y)
    scaler.scale(loss).backward()
    scaler.unscale_(opt)
    torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    scaler.step(opt)
    scaler.update()
""",
    "half weights by a type in a dictionary": """
config = {"dtype": torch.float16, "device": "cuda"}
net = nn.Linear(8, 4).to(config["device"], dtype=config["dtype"])  # expect: GL215
opt = torch.optim.SGD(net.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")
for x, y in loader:
    opt.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        loss = F.cross_entropy(net(x), y)
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
""",
    "half weights by a type that a helper is given": """
def build(dtype):
    return nn.Linear(8, 4).cuda().to(dtype)  # expect: GL215
net = build(torch.half)
other = build(torch.float32)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
opt2 = torch.optim.SGD(other.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")
for x, y in loader:
    opt.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        loss = F.cross_entropy(net(x), y)
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
for x, y in loader:
    opt2.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        loss = F.cross_entropy(other(x), y)
    scaler.scale(loss).backward()
    scaler.step(opt2)
    scaler.update()
""",
    "right: a type in a dictionary": """
config = {"dtype": torch.float32, "other": torch.float16}
net = nn.Linear(8, 4).to(dtype=config["dtype"])
opt = torch.optim.SGD(net.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")
for x, y in loader:
    opt.zero_grad()
    with torch.autocast("cuda", dtype=config["other"]):
        loss = F.cross_entropy(net(x), y)
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
""",
    "half weights from_pretrained": """
from transformers import AutoModelForCausalLM
net = AutoModelForCausalLM.from_pretrained("gpt2", torch_dtype=torch.float16)  # expect: GL215
opt = torch.optim.AdamW(net.parameters(), lr=1e-5)
scaler = torch.amp.GradScaler("cuda")
for batch in loader:
    opt.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        loss = net(**batch).loss
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
""",
    "half weights in a function, an optimizer by another, perhaps one that is loaded": """
from files import load
def build(width):
    net = nn.Linear(8, width)
    net = net.to("cuda").half()  # expect: GL215
    copy = nn.Linear(8, width) if width > 4 else None
    return net, copy
def define(net):
    return torch.optim.Adam(net.parameters(), lr=0.1)
def train(net, opt, scaler):
    for x, y in loader:
        net.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.float16):
            loss = F.cross_entropy(net(x), y)
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
def main(args):
    scaler = torch.amp.GradScaler("cuda")
    net, copy = build(args.width)
    opt = define(net)
    if args.resumed:
        net, opt = load(net, opt, args.resumed)
    for epoch in range(9):
        train(net, opt, scaler)
""",
    "right: half weights only for what is given an optimizer without a scaler": """
def build(half):
    net = nn.Linear(8, 4).cuda()
    if half:
        net = net.half()
    return net
def train(net, opt, scaler):
    for x, y in loader:
        opt.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = F.cross_entropy(net(x), y)
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
def main(args):
    net = build(args.half)
    if args.half:
        opt = torch.optim.SGD([p.clone().float() for p in net.parameters()], lr=0.1)
    else:
        opt = torch.optim.SGD(net.parameters(), lr=0.1)
    train(net, opt, torch.amp.GradScaler("cuda", enabled=not args.half))
""",
    "right: half weights by to and a second network in fp32 that is trained": """
def build():
    teacher, net = nn.Linear(8, 4).half(), nn.Linear(8, 4)
    return teacher.cuda(), net.cuda()
def define(net):
    return torch.optim.SGD(net.parameters(), lr=0.1)
teacher, net = build()
opt, scaler = define(net), torch.amp.GradScaler("cuda")
for x, y in loader:
    opt.zero_grad()
    with torch.no_grad():
        aim = teacher(x.half())
    with torch.autocast("cuda", dtype=torch.float16):
        loss = F.mse_loss(net(x), aim.float())
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
""",
    "right: back in fp32": """
net = nn.Linear(8, 4).half()
net = net.float()
opt = torch.optim.SGD(net.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")
for x, y in loader:
    opt.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        loss = F.cross_entropy(net(x), y)
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
""",
    "right: a flag decides": """
def main(args):
    net = nn.Linear(8, 4)
    if args.half:
        net = net.half()
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda", enabled=not args.half)
    for x, y in loader:
        opt.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = F.cross_entropy(net(x), y)
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
""",
    "right: a frozen teacher in fp16": """
teacher = nn.Linear(8, 4).half()
scaler = torch.amp.GradScaler("cuda")
for x, y in loader:
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        with torch.no_grad():
            soft = teacher(x)
        loss = F.mse_loss(model(x), soft)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
""",
    "right: a type that is chosen, and a scaler for one of them": """
def fit(name, x, y):
    kind = torch.bfloat16 if name == "bfloat16" else torch.float16
    scaler = torch.amp.GradScaler("cuda", enabled=(name == "float16"))
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=kind):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
""",
    "right: zeroed by the model, in the branch without an engine": """
from somewhere import distribute
def fit(args, model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if args.engine:
        model, optimizer = distribute(model, optimizer)
    for x, y in loader:
        loss = F.cross_entropy(model(x), y)
        if args.engine:
            model.backward(loss)
            model.step()
        else:
            loss.backward()
            optimizer.step()
            model.zero_grad()
""",
    "the mean over all ranks goes backward, with shards": """
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
def mean(tensor):
    dist.all_reduce(tensor)  # expect: GL507
    return tensor / dist.get_world_size()
model = FSDP(model)
for x, y in loader:
    optimizer.zero_grad()
    loss = mean(F.cross_entropy(model(x), y))
    loss.backward()
    optimizer.step()
""",
    "right: bf16 weights": """
net = nn.Linear(8, 4).to(torch.bfloat16)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for x, y in loader:
    opt.zero_grad()
    F.cross_entropy(net(x), y).backward()
    opt.step()
""",
    "Trainer with fp16 weights": """
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
lm = AutoModelForCausalLM.from_pretrained("gpt2", torch_dtype=torch.float16)  # expect: GL215
args = TrainingArguments("out", fp16=True)
trainer = Trainer(model=lm, args=args)
trainer.train()
""",
    "right: Trainer with fp32 weights": """
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
lm = AutoModelForCausalLM.from_pretrained("gpt2")
args = TrainingArguments("out", fp16=True)
trainer = Trainer(model=lm, args=args)
trainer.train()
""",
    "right: Trainer with adapters": """
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
from peft import LoraConfig, get_peft_model
lm = AutoModelForCausalLM.from_pretrained("gpt2", torch_dtype=torch.float16)
lm = get_peft_model(lm, LoraConfig())
args = TrainingArguments("out", fp16=True)
trainer = Trainer(model=lm, args=args)
""",
    "reduced before backward": """
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
net = DDP(model)
for x, y in loader:
    optimizer.zero_grad()
    loss = F.cross_entropy(net(x), y)
    dist.all_reduce(loss)  # expect: GL507
    loss = loss / dist.get_world_size()
    loss.backward()
    optimizer.step()
""",
    "reduced by a helper before backward": """
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
def reduce_mean(tensor, n):
    rt = tensor.clone()
    dist.all_reduce(rt, op=dist.ReduceOp.SUM)  # expect: GL507
    rt /= n
    return rt
net = DDP(model)
for x, y in loader:
    optimizer.zero_grad()
    loss = reduce_mean(F.cross_entropy(net(x), y), 2)
    loss.backward()
    optimizer.step()
""",
    "right: a copy reduced for the log": """
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
def reduce_mean(tensor, n):
    rt = tensor.clone()
    dist.all_reduce(rt, op=dist.ReduceOp.SUM)
    rt /= n
    return rt
net = DDP(model)
for x, y in loader:
    optimizer.zero_grad()
    loss = F.cross_entropy(net(x), y)
    shown = reduce_mean(loss, 2)
    loss.backward()
    optimizer.step()
""",
    "right: reduced after backward": """
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
net = DDP(model)
for x, y in loader:
    optimizer.zero_grad()
    loss = F.cross_entropy(net(x), y)
    loss.backward()
    optimizer.step()
    dist.all_reduce(loss)
    print(loss.item())
""",
    "mask per micro-batch": """
n = 4
for i, (x, y, mask) in enumerate(loader):
    each = F.cross_entropy(model(x), y, reduction="none")
    loss = (each * mask).sum() / mask.sum().clamp(min=1)
    (loss / n).backward()  # expect: GL805
    if (i + 1) % n == 0:
        optimizer.step()
        optimizer.zero_grad()
""",
    "right: mask, divided by the window's tokens": """
n = 4
def train(windows):
    for window in windows:
        total = sum(b["mask"].sum() for b in window)
        for batch in window:
            each = F.cross_entropy(model(batch["x"]), batch["y"], reduction="none")
            ((each * batch["mask"]).sum() / total).backward()
        optimizer.step()
        optimizer.zero_grad()
""",
    "mask per rank, GL607 clamp": """
from torch.nn.parallel import DistributedDataParallel as DDP
net = DDP(model)
for x, y in loader:
    optimizer.zero_grad()
    mask = (y != -100)
    each = F.cross_entropy(net(x), y, reduction="none")
    loss = (each * mask).sum() / (mask.sum() + 1e-8)  # expect: GL508
    loss.backward()
    optimizer.step()
# not GL607
""",
    "a term with a mask per rank": """
from torch.nn.parallel import DistributedDataParallel as DDP
def train(args):
    net = DDP(model)
    for x, y, mask in loader:
        optimizer.zero_grad()
        out = net(x)
        each = F.cross_entropy(out, y, reduction="none")
        loss = args.weight * ((each * mask).sum() / mask.sum().clamp(min=1)) + 0.1 * out.square().mean()  # expect: GL508
        loss.backward()
        optimizer.step()
""",
    "a mask per rank, in a function": """
from torch.nn.parallel import DistributedDataParallel as DDP
def tokens(out, y, pad=0):
    mask = (y != pad).float()
    each = F.cross_entropy(out, y.view(-1), reduction="none")
    return torch.sum(each * mask.view(-1)) / torch.sum(mask).clamp(min=1)  # expect: GL508
net = DDP(model)
for x, y in loader:
    optimizer.zero_grad()
    tokens(net(x), y).backward()
    optimizer.step()
""",
    "right: a term with its share of the tokens": """
from torch.nn.parallel import DistributedDataParallel as DDP
def train(args):
    net = DDP(model)
    for x, y, mask, share in loader:
        optimizer.zero_grad()
        out = net(x)
        each = F.cross_entropy(out, y, reduction="none")
        loss = share * ((each * mask).sum() / mask.sum().clamp(min=1)) + 0.1 * out.square().mean()
        loss.backward()
        optimizer.step()
# not GL508
""",
    "right: mask of all ranks": """
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
net = DDP(model)
for x, y, mask in loader:
    optimizer.zero_grad()
    count = mask.sum()
    dist.all_reduce(count)
    each = F.cross_entropy(net(x), y, reduction="none")
    loss = (each * mask).sum() * dist.get_world_size() / count.clamp(min=1)
    loss.backward()
    optimizer.step()
# not GL508
""",
    "may hold no target": """
for x, y, mask in loader:
    optimizer.zero_grad()
    each = F.cross_entropy(model(x), y, reduction="none")
    loss = (each * mask).sum() / mask.sum()  # expect: GL607
    loss.backward()
    optimizer.step()
""",
    "may select no target": """
for x, y, mask in loader:
    optimizer.zero_grad()
    known = y != -100
    each = F.cross_entropy(model(x), y, reduction="none")
    loss = each[known].mean() + torch.mean(each[mask > 0])  # expect: GL607
    loss.backward()
    optimizer.step()
""",
    "right: selections that hold some, or are asked about": """
for x, y, places in loader:
    optimizer.zero_grad()
    each = F.cross_entropy(model(x), y, reduction="none")
    loss = each[places].mean() + each[1:].mean() + each[y > 0].sum() / 64
    loss.backward()
    optimizer.step()
for x, y in loader:
    known = y != -100
    if not known.any():
        continue
    optimizer.zero_grad()
    F.cross_entropy(model(x), y, reduction="none")[known].mean().backward()
    optimizer.step()
# not GL607
""",
    "right: a selection whose count has a name, or of itself": """
for x, y in loader:
    known = y != -100
    count = known.sum()
    optimizer.zero_grad()
    each = F.cross_entropy(model(x), y, reduction="none")
    if count > 0:
        each[known].mean().backward()
        optimizer.step()
for x, y in loader:
    optimizer.zero_grad()
    each = F.cross_entropy(model(x), y, reduction="none")
    picked = each[y != -100]
    loss = picked.mean() if len(picked) else each.mean()
    loss.backward()
    optimizer.step()
for x, y in loader:
    optimizer.zero_grad()
    each = F.cross_entropy(model(x), y, reduction="none")
    worst = each >= each.mean()
    each[worst].mean().backward()
    optimizer.step()
# not GL607
""",
    "a selection per rank": """
from torch.nn.parallel import DistributedDataParallel as DDP
net = DDP(model)
for x, y in loader:
    optimizer.zero_grad()
    loss = F.cross_entropy(net(x), y, reduction="none")[y != -100].mean()  # expect: GL508, GL607
    loss.backward()
    optimizer.step()
""",
    "right: asked": """
for x, y, mask in loader:
    if mask.sum() == 0:
        continue
    optimizer.zero_grad()
    each = F.cross_entropy(model(x), y, reduction="none")
    loss = (each * mask).sum() / mask.sum()
    loss.backward()
    optimizer.step()
# not GL607
""",
    "right: max with one": """
for x, y, mask in loader:
    optimizer.zero_grad()
    each = F.cross_entropy(model(x), y, reduction="none")
    loss = (each * mask).sum() / max(mask.sum(), 1)
    loss.backward()
    optimizer.step()
# not GL607
""",
}
CASES |= {
    "half weights where there is a scaler": """
there = torch.cuda.is_available()
net = nn.Linear(8, 4)
if there:
    net.cuda().half()  # expect: GL215
opt = torch.optim.SGD(net.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda", enabled=there)
for x, y in loader:
    opt.zero_grad()
    scaler.scale(F.cross_entropy(net(x.half()), y)).backward()
    scaler.step(opt)
    scaler.update()
""",
    "half weights where a scaler is made": """
def train(args, net):
    if args.half:
        net.half()  # expect: GL215
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda") if args.half else None
    for x, y in loader:
        opt.zero_grad()
        loss = F.cross_entropy(net(x), y)
        if args.half:
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()
        else:
            loss.backward()
            opt.step()
""",
    "half weights where none is made": """
def train(args, net):
    if args.half:
        net.half()
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler = None if args.half else torch.amp.GradScaler("cuda")
    for x, y in loader:
        opt.zero_grad()
        loss = F.cross_entropy(net(x), y)
        if scaler is not None:
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()
        else:
            loss.backward()
            opt.step()
""",
    "half weights where there is no scaler": """
half = bool(args.half)
net = nn.Linear(8, 4)
if half:
    net.cuda().half()
opt = torch.optim.SGD(net.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda", enabled=not half)
for x, y in loader:
    opt.zero_grad()
    scaler.scale(F.cross_entropy(net(x), y)).backward()
    scaler.step(opt)
    scaler.update()
""",
    "a loss that is computed with the wrapper is averaged": """
import torch.distributed as dist
net = nn.parallel.DistributedDataParallel(model)
for x, y in loader:
    optimizer.zero_grad()
    loss = process.training_losses(net, x, y)["loss"].mean()
    dist.all_reduce(loss)  # expect: GL507
    loss = loss / dist.get_world_size()
    loss.backward()
    optimizer.step()
""",
    "a loss that is computed with the wrapper is averaged for the log": """
import torch.distributed as dist
net = nn.parallel.DistributedDataParallel(model)
for x, y in loader:
    optimizer.zero_grad()
    loss = process.training_losses(net, x, y)["loss"].mean()
    loss.backward()
    dist.all_reduce(loss)
    optimizer.step()
""",
}


OWN = """
from base import Base
class Experiment(Base):
    def _build_model(self):
        model = networks[self.args.model](self.args).float()
        if self.args.amp:
            model = model.half()  # expect: GL215
        return nn.DataParallel(model) if self.args.many else model
    def train(self, loader):
        optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        if self.args.amp:
            scaler = torch.amp.GradScaler("cuda")
        for x, y in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(self.model(x), y)
            if self.args.amp:
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
            else:
                loss.backward()
                optimizer.step()
"""
RIGHT = OWN.replace("  # expect: GL215", "")
CASES |= {
    "made for a base that is not seen": OWN,
    "right: by another flag, made for a base": RIGHT.replace(
        "        if self.args.amp:\n            model", "        if self.args.half:\n            model"
    ),
    "right: where no scaler is, made for a base": RIGHT.replace(
        "        if self.args.amp:\n            model", "        if not self.args.amp:\n            model"
    ),
    "right: in fp32 again, made for a base": RIGHT.replace(
        "        optimizer =", "        self.model.float()\n        optimizer ="
    ),
    "right: of another network, made for a base": RIGHT.replace("_build_model", "_build_judge"),
}


@pytest.mark.parametrize("name", CASES)
def test_marked_lines_are_found_and_no_other_fault(name, tmp_path):
    assert_faults(CASES[name], tmp_path)
