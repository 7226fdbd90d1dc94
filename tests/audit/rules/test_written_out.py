"""Mistakes that are spread over several statements of a function, and correct code that looks like them."""

from __future__ import annotations

from pathlib import Path

import pytest
from audited_snippets import assert_faults

LOSSES = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 4)
    def forward(self, x):
        return self.inner(x) + self.inner(x.abs())
class Agent:
    def __init__(self):
        self.net = Net()
        self.optimizer = torch.optim.Adam(self.net.parameters())
    def update(self, x, y):
        {lines}
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
"""
IN_LOSSES = {
    "the log of a share that has a name": """
spread = self.heads.actor(x)
probs = F.softmax(spread.logits, dim=-1)
chosen = probs.gather(1, y)
log_chosen = torch.log(chosen)  # expect: GL601
loss = -log_chosen.mean() - spread.entropy().mean()""",
    "a log of a share that is only printed": """
probs = torch.softmax(self.heads.actor(x).logits, dim=-1)
entropy = -(probs * torch.log(probs)).sum().item()
loss = self.heads.policy(x).loss(y)""",
    "a softmax by hand": """
out = self.net(x)
shares = torch.exp(out) / torch.exp(out).sum(1, keepdim=True)  # expect: GL604
loss = -torch.log(shares).gather(1, y).mean()""",
    "a softmax by hand of what is at most 0": """
out = self.net(x)
least = out - out.max(1, keepdim=True).values
shares = torch.exp(least) / torch.exp(least).sum(1, keepdim=True)
loss = -(shares + 1e-8).log().gather(1, y).mean()""",
    "a distance by hand": """
drawn = self.pair['first'](x)
distance = torch.sqrt((drawn - y).pow(2).sum(dim=1))  # expect: GL603
loss = distance.mean()""",
    "a distance that is kept from 0": """
drawn = self.pair['first'](x)
loss = torch.sqrt((drawn - y).pow(2).sum(dim=1) + 1e-12).mean()""",
    "a distance that is only measured": """
drawn = self.pair['first'](x)
distance = torch.sqrt((drawn - y).pow(2).sum(dim=1)).detach().mean()
loss = self.pair['second'](drawn)""",
}
LOOPS = {
    "Accelerate divides the loss itself, inside accumulate() or not": """
import accelerate
def main(args):
    accelerator = accelerate.Accelerator(gradient_accumulation_steps=args.steps)
    net, opt, data = accelerator.prepare(model, optimizer, loader)
    for i, (x, y) in enumerate(data):
        loss = F.mse_loss(net(x), y) / args.steps  # expect: GL302
        accelerator.backward(loss)
        if (i + 1) % args.steps == 0:
            accelerator.clip_grad_norm_(net.parameters(), 1.0)
            opt.step()
            opt.zero_grad()
""",
    "a schedule of micro-batches, whose number of epochs may come from one of updates": """
import transformers
def main(args):
    if args.max_steps > 0:
        total = args.max_steps
        args.num_epochs = args.max_steps // (len(loader) // args.accum) + 1
    else:
        total = len(loader) * args.num_epochs
    schedule = transformers.get_linear_schedule_with_warmup(optimizer, 10, total)  # expect: GL403
    for epoch in range(int(args.num_epochs)):
        for i, (x, y) in enumerate(loader):
            loss = F.mse_loss(model(x), y) / args.accum
            loss.backward()
            if (i + 1) % args.accum == 0:
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
""",
    "a schedule that counts before the step": """
from elsewhere import WarmupCosineSchedule
def main(args):
    schedule = WarmupCosineSchedule(optimizer, warmup_steps=args.warmup, t_total=args.total)
    for x, y in loader:
        loss = F.mse_loss(model(x), y)
        loss.backward()
        schedule.step()  # expect: GL402
        optimizer.step()
        optimizer.zero_grad()
""",
}
LOOPS |= {
    "autocast that is switched off, under a scaler": """
from elsewhere import Net
def main(args):
    net = Net(args)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", enabled=False):
            out = net(x)  # expect: GL208
            loss = F.mse_loss(out, y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
""",
    "a network in fp16, and a scaler in a function": """
def train(net, opt):
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        opt.zero_grad()
        loss = F.mse_loss(net(x.half()), y)
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
if __name__ == "__main__":
    net = nn.Linear(8, 4).cuda()
    net = net.half()  # expect: GL215
    train(net, torch.optim.SGD(net.parameters(), 0.1))
""",
    "gradients summed by hand where DDP does so": """
from torch.nn.parallel import DistributedDataParallel as DDP
def main(args):
    net = nn.Linear(8, 4)
    opt = torch.optim.SGD(net.parameters(), 0.1)
    if args.parallel:
        net = DDP(net)
    for x, y in loader:
        opt.zero_grad()
        F.mse_loss(net(x), y).backward()
        if args.parallel:
            for p in net.parameters():
                if p.grad is not None:
                    torch.distributed.all_reduce(p.grad)  # expect: GL505
        opt.step()
""",
}
LOOPS["gradients summed by hand where DDP does not"] = (
    LOOPS["gradients summed by hand where DDP does so"]
    .replace("        if args.parallel:\n            for", "        if not args.parallel:\n            for")
    .replace("  # expect: GL505", "")
)
LOOPS["gradients summed by hand under another flag"] = (
    LOOPS["gradients summed by hand where DDP does so"]
    .replace("        if args.parallel:\n            for", "        if args.by_hand:\n            for")
    .replace("  # expect: GL505", "")
)
LOOPS["a schedule of updates"] = (
    LOOPS["a schedule of micro-batches, whose number of epochs may come from one of updates"]
    .replace("len(loader) * args", "len(loader) // args.accum * args")
    .replace("  # expect: GL403", "")
)


@pytest.mark.parametrize("name", IN_LOSSES)
def test_only_what_a_loss_is_computed_from_is_found(name: str, tmp_path: Path) -> None:
    lines = IN_LOSSES[name].strip().replace("\n", "\n        ")
    assert_faults(LOSSES.replace("{lines}", lines), tmp_path)


@pytest.mark.parametrize("name", LOOPS)
def test_a_mistake_over_several_statements_is_found(name: str, tmp_path: Path) -> None:
    assert_faults(LOOPS[name], tmp_path)
