"""Training on several ranks."""

from __future__ import annotations

from gradlab.codes.code import Code

RIGHT = """
last = (i + 1) % n == 0 or i + 1 == len(loader)
with nullcontext() if last else model.no_sync():
    (criterion(model(x), y) / min(n, len(loader) - i // n * n)).backward()
if last:
    optimizer.step()
    optimizer.zero_grad()
""".strip()

CODES = (
    Code(
        code="GL501",
        name="no-sync-missing",
        severity="advice",
        message="DDP reduces gradients for each micro-batch: with no_sync() for all but the last, it does so once",
        why="The update is the same, with n reductions instead of one.",
        measured="4 reductions per update where 1 is enough.",
        pitfall="ddp_sync_every_micro_batch",
        wrong="""
model = DistributedDataParallel(model)
for i, (x, y) in enumerate(loader):
    (criterion(model(x), y) / min(n, len(loader) - i // n * n)).backward()
    if (i + 1) % n == 0 or i + 1 == len(loader):
        optimizer.step()
        optimizer.zero_grad()
""".strip(),
        fix="run forward and backward of all but the last micro-batch inside model.no_sync()",
        example=RIGHT,
    ),
    Code(
        code="GL502",
        name="no-sync-on-the-last",
        severity="error",
        message="the last backward pass before the step is inside no_sync(): ranks step on local gradients, and "
        "diverge",
        why="Gradients are reduced in the backward pass of the last micro-batch, or not at all. "
        "`model.require_backward_grad_sync = False` before the forward pass is no_sync() by hand.",
        measured="on two ranks the update is 0.35 of its length away from the right one.",
        pitfall="no_sync_off_by_one",
        wrong="""
model = DistributedDataParallel(model)
for i, (x, y) in enumerate(loader):
    last = (i + 1) % n == 0 or i + 1 == len(loader)
    with model.no_sync() if last else nullcontext():
        (criterion(model(x), y) / min(n, len(loader) - i // n * n)).backward()
    if last:
        optimizer.step()
        optimizer.zero_grad()
""".strip(),
        fix="run all but the last micro-batch inside model.no_sync()",
        example=RIGHT,
    ),
    Code(
        code="GL503",
        name="no-sync-around-backward-only",
        severity="warning",
        message="no_sync() is around backward() alone: DDP decides in the forward pass whether to reduce, and still "
        "reduces",
        why="The result is right, and the reductions that no_sync() is for are not saved.",
        measured="4 reductions per update instead of one.",
        pitfall="no_sync_around_backward_only",
        wrong="""
model = DistributedDataParallel(model)
for i, (x, y) in enumerate(loader):
    last = (i + 1) % n == 0 or i + 1 == len(loader)
    out = criterion(model(x), y) / min(n, len(loader) - i // n * n)
    with nullcontext() if last else model.no_sync():
        out.backward()
    if last:
        optimizer.step()
        optimizer.zero_grad()
""".strip(),
        fix="run both the forward and the backward pass inside model.no_sync()",
        example=RIGHT,
    ),
    Code(
        code="GL504",
        name="raw-module-called",
        severity="error",
        message="the module inside DistributedDataParallel is called: gradients are not reduced, and the ranks diverge",
        why="DDP sets up its reductions in its own forward pass; a forward pass of the inner module bypasses them.",
        wrong="""
model = DistributedDataParallel(model)
for x, y in loader:
    optimizer.zero_grad()
    criterion(model.module(x), y).backward()
    optimizer.step()
""".strip(),
        fix="call the wrapper",
        example="""
model = DistributedDataParallel(model)
loss = criterion(model(x), y)
""".strip(),
    ),
    Code(
        code="GL505",
        name="reduced-by-hand-too",
        severity="warning",
        message="gradients are reduced manually, but DistributedDataParallel has done it already",
        why="The second sum costs a reduction, and without a division by the number of ranks the gradient is too "
        "large.",
        wrong="""
model = DistributedDataParallel(model)
for x, y in loader:
    optimizer.zero_grad()
    criterion(model(x), y).backward()
    for p in model.parameters():
        torch.distributed.all_reduce(p.grad)
    optimizer.step()
""".strip(),
        fix="leave the reduction to DistributedDataParallel",
        example="""
loss.backward()  # DDP has averaged the gradients when it returns
optimizer.step()
""".strip(),
    ),
    Code(
        code="GL506",
        name="remainder-unsynchronised",
        severity="error",
        message="the last, shorter window of an epoch ends inside no_sync(): ranks step on local gradients",
        why="The condition of no_sync() counts micro-batches, and does not know where the epoch ends.",
        measured="on two ranks the update of that window is 0.94 of its length away from the right one.",
        pitfall="remainder_unsynchronised",
        wrong="""
model = DistributedDataParallel(model)
for i, (x, y) in enumerate(loader):
    with nullcontext() if (i + 1) % n == 0 else model.no_sync():
        (criterion(model(x), y) / min(n, len(loader) - i // n * n)).backward()
    if (i + 1) % n == 0 or i + 1 == len(loader):
        optimizer.step()
        optimizer.zero_grad()
""".strip(),
        fix="leave no_sync() for the last micro-batch of an epoch too",
        example="last = (i + 1) % n == 0 or i + 1 == len(loader)",
    ),
    Code(
        code="GL507",
        name="loss-reduced-before-backward",
        severity="warning",
        message="the loss is reduced over ranks before backward(): DDP averages gradients, and a loss only for the log",
        why="A reduction has no gradient: the backward pass is that of the local loss. Where the sum is divided by the "
        "number of ranks, the gradient is divided by it too, and DDP averages it once more.",
        measured="on two ranks the gradient is half of the right one.",
        wrong="""
model = DistributedDataParallel(model)
for x, y in loader:
    optimizer.zero_grad()
    loss = criterion(model(x), y)
    torch.distributed.all_reduce(loss)
    loss = loss / torch.distributed.get_world_size()
    loss.backward()
    optimizer.step()
""".strip(),
        fix="call backward() on the local loss, and reduce a detached copy for the log",
        example="""
loss.backward()
shown = loss.detach()
torch.distributed.all_reduce(shown)
""".strip(),
        found_by=("audit",),
    ),
    Code(
        code="GL508",
        name="mean-per-rank",
        severity="advice",
        message="each rank divides by its own tokens, and DDP averages ranks: tokens of short ranks weigh more",
        why="The means of the ranks count equally, however many tokens each has.",
        wrong="""
model = DistributedDataParallel(model)
for x, y, mask in loader:
    optimizer.zero_grad()
    each = F.cross_entropy(model(x), y, reduction='none')
    loss = (each * mask).sum() / mask.sum().clamp(min=1)
    loss.backward()
    optimizer.step()
""".strip(),
        fix="divide by the number of tokens of all ranks, and multiply by the number of ranks, which DDP divides by",
        example="""
model = DistributedDataParallel(model)
for x, y, mask in loader:
    optimizer.zero_grad()
    count = mask.sum()
    torch.distributed.all_reduce(count)
    each = F.cross_entropy(model(x), y, reduction='none')
    loss = (each * mask).sum() * torch.distributed.get_world_size() / count.clamp(min=1)
    loss.backward()
    optimizer.step()
""".strip(),
        found_by=("audit",),
    ),
    Code(
        code="GL509",
        name="engine-bypassed",
        severity="warning",
        message="backward() of the loss itself, past the accelerator or engine that steps: not scaled, not divided",
        why="The backward() of an accelerator or an engine scales the loss in fp16, divides it by the length "
        "of the window, and partitions gradients. Without mixed precision, windows and partitions nothing is lost; "
        "DeepSpeed attaches this to the loss itself since 0.18.3.",
        wrong="""
from accelerate import Accelerator
accelerator = Accelerator(gradient_accumulation_steps=4)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for x, y in loader:
    with accelerator.accumulate(model):
        criterion(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
""".strip(),
        fix="call accelerator.backward(loss), fabric.backward(loss) or engine.backward(loss)",
        example="""
from accelerate import Accelerator
accelerator = Accelerator(gradient_accumulation_steps=4)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for x, y in loader:
    with accelerator.accumulate(model):
        accelerator.backward(criterion(model(x), y))
        optimizer.step()
        optimizer.zero_grad()
""".strip(),
        found_by=("audit",),
    ),
)
