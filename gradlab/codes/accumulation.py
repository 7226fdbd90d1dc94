"""Gradient accumulation: windows of micro-batches."""

from __future__ import annotations

from gradlab.codes.code import Code

RIGHT = """
for i, (x, y) in enumerate(loader):
    window = min(n, len(loader) - i // n * n)  # the last one of an epoch may be shorter
    (criterion(model(x), y) / window).backward()
    if (i + 1) % n == 0 or i + 1 == len(loader):
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
        optimizer.step()
        optimizer.zero_grad()
""".strip()

CODES = (
    Code(
        code="GL301",
        name="accumulation-unscaled",
        severity="error",
        message="the losses of a window are not divided by its length: the gradient is n times too large",
        why="Under SGD the learning rate is n times too high. Adam cancels a constant factor except for eps, clipping "
        "and weight decay.",
        measured="with n = 4 a run with SGD diverges at update 14.",
        pitfall="unscaled_accumulation",
        wrong="""
for i, (x, y) in enumerate(loader):
    criterion(model(x), y).backward()
    if (i + 1) % n == 0 or i + 1 == len(loader):
        optimizer.step()
        optimizer.zero_grad()
""".strip(),
        fix="divide each loss by the number of micro-batches, or weight it by its share of the samples",
        example=RIGHT,
    ),
    Code(
        code="GL302",
        name="loss-divided-twice",
        severity="error",
        message="the loss is divided twice, by the window's length or the batch's size: its gradient is too small",
        why="Under SGD the learning rate is n times too low. Accelerate's and DeepSpeed's backward() divide by "
        "gradient_accumulation_steps themselves; Lightning and transformers divide what training_step() and "
        "compute_loss() return.",
        wrong="""
for i, (x, y) in enumerate(loader):
    out = criterion(model(x), y) / 4
    (out / 4).backward()
    if (i + 1) % 4 == 0:
        optimizer.step()
        optimizer.zero_grad()
""".strip(),
        fix="divide once; a mean over samples is divided by their number already",
        example=RIGHT,
    ),
    Code(
        code="GL303",
        name="gradients-scaled-by-hand",
        severity="warning",
        message="gradients are divided manually after each micro-batch, earlier ones again each time: divide the loss",
        why="Micro-batch i of n is divided n - i + 1 times, so that early micro-batches hardly count.",
        measured="the gradient is 0.38 of the right one, and its cosine with it 0.89.",
        pitfall="gradients_scaled_by_hand",
        wrong="""
for i, (x, y) in enumerate(loader):
    criterion(model(x), y).backward()
    for p in model.parameters():
        p.grad /= 4
    if (i + 1) % 4 == 0:
        optimizer.step()
        optimizer.zero_grad()
""".strip(),
        fix="divide the loss",
        example=RIGHT,
    ),
    Code(
        code="GL304",
        name="clip-every-micro-batch",
        severity="error",
        message="gradients are clipped after each micro-batch of a window: clip once, after the last backward",
        why="Clipping an incomplete sum weights the micro-batches unequally.",
        measured="the update is 0.03 of its length away from the right one, and further with a tight max_norm.",
        pitfall="clip_each_micro_batch",
        wrong="""
for i, (x, y) in enumerate(loader):
    window = min(n, len(loader) - i // n * n)
    (criterion(model(x), y) / window).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
    if (i + 1) % n == 0 or i + 1 == len(loader):
        optimizer.step()
        optimizer.zero_grad()
""".strip(),
        fix="clip once, after the last backward of an update",
        example=RIGHT,
    ),
    Code(
        code="GL305",
        name="zero-grad-missing",
        severity="error",
        message="gradients are not zeroed between two updates: each adds its own to those of the updates before",
        why="It acts like a momentum of 1.",
        measured="the loss ends at 6.88 instead of 3.10.",
        pitfall="missing_zero_grad",
        wrong="""
for x, y in loader:
    criterion(model(x), y).backward()
    optimizer.step()
""".strip(),
        fix="call optimizer.zero_grad() once per update, after the step",
        example=RIGHT,
    ),
    Code(
        code="GL306",
        name="zero-grad-in-window",
        severity="error",
        message="gradients are zeroed for each micro-batch: only the last one of the window reaches the step",
        why="The computation of the other micro-batches is wasted.",
        measured="the gradient is a third of the right one, and its cosine with it 0.81.",
        pitfall="zero_grad_in_window",
        wrong="""
for i, (x, y) in enumerate(loader):
    optimizer.zero_grad()
    window = min(n, len(loader) - i // n * n)
    (criterion(model(x), y) / window).backward()
    if (i + 1) % n == 0 or i + 1 == len(loader):
        optimizer.step()
""".strip(),
        fix="call optimizer.zero_grad() once per update, after the step",
        example=RIGHT,
    ),
    Code(
        code="GL307",
        name="remainder-left",
        severity="advice",
        message="the last, shorter window of an epoch takes no step: its gradients are dropped, or leak into the "
        "next epoch",
        why="With 10 batches and n = 4 the last two are lost, or make the next update a sum over six.",
        pitfall="remainder_underscaled",
        wrong="""
for i, (x, y) in enumerate(loader):
    (criterion(model(x), y) / n).backward()
    if (i + 1) % n == 0:
        optimizer.step()
        optimizer.zero_grad()
""".strip(),
        fix="step on what is left at the end of an epoch, divided by its own number",
        example=RIGHT,
    ),
    Code(
        code="GL308",
        name="remainder-underscaled",
        severity="advice",
        message="a window is shorter than the others, but its losses are divided by the full n",
        why="The mean of that window is too small. It is the last one of an epoch, or the first one of the loop, where "
        "a step is taken at `i % n == 0`.",
        measured="its gradient is 0.25 of the right one if one micro-batch of four remains.",
        pitfall="remainder_underscaled",
        wrong="""
for i, (x, y) in enumerate(loader):
    (criterion(model(x), y) / n).backward()
    if (i + 1) % n == 0 or i + 1 == len(loader):
        optimizer.step()
        optimizer.zero_grad()
""".strip(),
        fix="divide the remainder by its own number",
        example="""
window = min(n, len(loader) - i // n * n)
(loss / window).backward()
""".strip(),
    ),
)
