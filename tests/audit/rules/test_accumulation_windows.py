"""Windows of micro-batches: where they end, what their loss is divided by, what sets gradients to zero."""

from __future__ import annotations

import pytest
from audited_snippets import assert_marked

CASES = {
    "what Accelerate prepares has other names before": """
from accelerate import Accelerator
def train(args):
    accelerator = Accelerator()
    net, opt, batches = accelerator.prepare(args.net, args.optim, args.data)
    for i, (x, y) in enumerate(batches):
        accelerator.backward(F.cross_entropy(net(x), y))  # expect: GL301
        if i % args.n == args.n - 1 or i == len(batches) - 1:
            opt.step()
            opt.zero_grad()
""",
    "set to zero at the first micro-batch of a window": """
n = 4
batches = iter(loader)
for _ in range(2):
    for i in range(n):
        if i == 0:
            optimizer.zero_grad()
        x, y = next(batches)
        (F.cross_entropy(model(x), y) / n).backward()
    optimizer.step()
""",
    "gradients of one batch, each instead of the last": """
def attack(x, y, turn, n):
    for _ in range(n):
        turn(model)
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
for x, y in loader:
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    attack(x, y, torch.randn, 3)
    optimizer.step()
""",
    "a window that a function of elsewhere ends": """
def fit(net, opt, batches, history, accumulation=1):
    for x, y in batches:
        opt.zero_grad()  # expect: GL306
        loss = F.cross_entropy(net(x), y)
        if accumulation > 1:
            loss = loss / accumulation
        loss.backward()
        if history.step(accumulation):
            opt.step()
""",
    "a term that nothing divides, and one that is not seen": """
def fit(net, opt, batches, penalty, n):
    for i, (x, y) in enumerate(batches):
        loss = F.cross_entropy(net(x), y) + penalty.of(net(x)) / 4
        loss.backward()  # expect: GL301
        if (i + 1) % n == 0 or i + 1 == len(batches):
            opt.step()
            opt.zero_grad()
def divided(net, opt, batches, penalty, n):
    for i, (x, y) in enumerate(batches):
        loss = F.cross_entropy(net(x), y) + penalty.of(net(x)) / 4
        (loss / n).backward()  # expect: GL308
        if (i + 1) % n == 0 or i + 1 == len(batches):
            opt.step()
            opt.zero_grad()
""",
    "a bad batch discarded": """
n = 4
for i, (x, y) in enumerate(loader):
    (F.cross_entropy(model(x), y) / n).backward()
    if (i + 1) % n == 0:  # expect: GL307
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if not torch.isfinite(norm):
            optimizer.zero_grad()
            continue
        optimizer.step()
        optimizer.zero_grad()
""",
    "one of several settings is compared with each": """
class Mode:
    HALF, BRAIN = 1, 2
def step(task, scaler, x, y):
    loss = F.cross_entropy(task.net(x), y)
    task.optimizer.zero_grad()
    if task.mode == Mode.BRAIN:
        loss.backward()
    elif task.mode == Mode.HALF:
        scaler.scale(loss).backward()
    else:
        loss.backward()
    if task.mode == Mode.HALF:
        scaler.step(task.optimizer)
        scaler.update()
    else:
        task.optimizer.step()
""",
    "the gradients are zero when the next iteration steps": """
for x, y in loader:
    optimizer.step()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.zero_grad()  # expect: GL103
""",
    "the length of the window is in the learning rate": """
n = 4
lr = 0.1 / n
sgd = torch.optim.SGD(model.parameters(), lr=lr)
for i, (x, y) in enumerate(loader):
    F.cross_entropy(model(x), y).backward()
    if (i + 1) % n == 0 or i + 1 == len(loader):
        sgd.step()
        sgd.zero_grad()
""",
    "two steps of a function, one after its loop": """
def update(G, D, n):
    for k in range(n):
        D.opt.zero_grad()
        loss = D(k).mean()
        loss.backward()
        D.opt.step()
    G.opt.zero_grad()
    for k in range(n):
        loss = G(k).mean() / n
        loss.backward()
    G.opt.zero_grad()  # expect: GL103
    G.opt.step()
""",
    "update() in a window that is a loop of its own": """
scaler = torch.amp.GradScaler()
while True:
    for k in range(4):
        with torch.autocast("cuda", dtype=torch.float16):
            loss = F.cross_entropy(model(torch.randn(2, 8)), torch.zeros(2).long()) / 4
        scaler.scale(loss).backward()
        scaler.update()  # expect: GL213
    scaler.step(optimizer)
    optimizer.zero_grad()
""",
    "a scale that is set now and then": """
scaler = torch.amp.GradScaler()
def train(n):
    for i, (x, y) in enumerate(loader):
        with torch.autocast("cuda", dtype=torch.float16):
            loss = F.cross_entropy(model(x), y) / n
        scaler.scale(loss).backward()
        if (i + 1) % n == 0:  # expect: GL307
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        if i % 100 == 0 and scaler.get_scale() < 1:
            scaler.update(2.0)
""",
    "tasks of a meta-learner are added up": """
for tasks in loader:
    optimizer.zero_grad()
    for i in range(4):
        learner = meta.clone()
        learner.adapt(F.mse_loss(learner(tasks[i]), tasks[i]))
        F.mse_loss(learner(tasks[i]), tasks[i]).backward()
    optimizer.step()
""",
    "a rate that is divided where the optimizer is made": """
n = 4
sgd = torch.optim.SGD(model.parameters(), lr=0.1 / n)
for i, (x, y) in enumerate(loader):
    F.cross_entropy(model(x), y).backward()
    if (i + 1) % n == 0 or i + 1 == len(loader):
        sgd.step()
        sgd.zero_grad()
""",
    "a backward pass beside the micro-batches of a window": """
for x, y in loader:
    optimizer.zero_grad()
    for part, label in zip(x.chunk(2), y.chunk(2)):
        (F.cross_entropy(model(part), label) / 2).backward()
    (1e-4 * sum(p.norm() for p in model.parameters())).backward()
    optimizer.step()
""",
    "divided by the size of a batch": """
def run(args):
    batches = iter(loader)
    for _ in range(2):
        for _ in range(args.n):
            x, y = next(batches)
            loss = nn.CrossEntropyLoss()(model(x), y) / args.batch_size
            loss.backward()  # expect: GL301
        optimizer.step()
        optimizer.zero_grad()
""",
    "a window of single samples, divided by the size of a batch": """
def run(args):
    samples = iter(loader)
    for _ in range(2):
        for _ in range(args.batch_size):
            x, y = next(samples)
            (nn.CrossEntropyLoss()(model(x), y) / args.batch_size).backward()
        optimizer.step()
        optimizer.zero_grad()
""",
    "two sums, each halved, in a window of the loop's own": """
def run(parts):
    for x, y in loader:
        optimizer.zero_grad()
        for part in x.chunk(parts):
            out = model(part)
            loss = (F.cross_entropy(out, y) + F.cross_entropy(out.flip(0), y)) / 2
            loss += (F.kl_div(out, out.flip(0)) + F.kl_div(out.flip(0), out)) / 2
            (loss / parts).backward()
        optimizer.step()
""",
    "divided by its own length, whatever parameters": """
def run(n):
    batches = iter(loader)
    for _ in range(2):
        optimizer.zero_grad()
        for i in range(n):
            x, y = next(batches)
            F.cross_entropy(model(x), y).backward()
            for p in model.parameters():
                if p.requires_grad:
                    p.grad.div_(n)  # expect: GL303
        optimizer.step()
    for _ in range(2):
        optimizer.zero_grad()
        for i in range(n):
            x, y = next(batches)
            F.cross_entropy(model(x), y).backward()
            for p in model.parameters():
                if i == n - 1 and p.grad is not None:
                    p.grad.div_(n)
        optimizer.step()
""",
    "the loss of a function that receives targets, and nothing of the window": """
from losses import CrossEntropy
def run(args, n):
    for i, (x, target) in enumerate(loader):
        CrossEntropy(model(x), target, reduction="mean").backward()  # expect: GL301
        if (i + 1) % n == 0:
            optimizer.step()
            optimizer.zero_grad()
    for i, (x, target) in enumerate(loader):
        CrossEntropy(model(x), target, args).backward()
        if (i + 1) % n == 0 or i + 1 == len(loader):
            optimizer.step()
            optimizer.zero_grad()
""",
    "gradients that are discarded before the pass whose gradients the step uses": """
def episode(model, optimizer, tasks, second_order, train):
    losses = []
    for x, y in tasks:
        loss = F.cross_entropy(model(x), y)
        loss.backward(retain_graph=True)
        losses.append(loss)
    if second_order:
        optimizer.zero_grad()
        total = torch.stack(losses).mean()
        if train:
            total.backward()
            optimizer.step()
        return total
    if train:
        optimizer.zero_grad()
        F.cross_entropy(model(torch.zeros(1, 3)), y).backward()
        optimizer.step()
    return torch.stack(losses).mean()
""",
}


@pytest.mark.parametrize("name", CASES)
def test_marked_lines_are_found_and_nothing_else(name, tmp_path):
    assert_marked(CASES[name], tmp_path)
