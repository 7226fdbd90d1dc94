"""Learning rate schedules."""

from __future__ import annotations

from gradlab.codes.code import Code

CODES = (
    Code(
        code="GL401",
        name="schedule-every-micro-batch",
        severity="warning",
        message="the schedule is stepped for each micro-batch: one that counts updates runs n times too fast",
        why="A warm-up is n times too short, and a decay reaches its end after 1/n of the training.",
        measured="the learning rate of a warm-up is 4 times too high at first.",
        pitfall="schedule_per_micro_batch",
        wrong="""
for i, (x, y) in enumerate(loader):
    window = min(n, len(loader) - i // n * n)
    (criterion(model(x), y) / window).backward()
    if (i + 1) % n == 0 or i + 1 == len(loader):
        optimizer.step()
        optimizer.zero_grad()
    scheduler.step()
""".strip(),
        fix="call schedule.step() after optimizer.step(), once per update",
        example="""
for i, (x, y) in enumerate(loader):
    window = min(n, len(loader) - i // n * n)  # the last one of an epoch may be shorter
    (criterion(model(x), y) / window).backward()
    if (i + 1) % n == 0 or i + 1 == len(loader):
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
""".strip(),
    ),
    Code(
        code="GL402",
        name="schedule-before-step",
        severity="warning",
        message="the schedule is stepped before the optimizer: if it is PyTorch's, its first rate is never used",
        why="Every learning rate comes one update early; PyTorch warns about it since 1.1.",
        wrong="""
for x, y in loader:
    optimizer.zero_grad()
    criterion(model(x), y).backward()
    scheduler.step()
    optimizer.step()
""".strip(),
        fix="call schedule.step() after optimizer.step()",
        example="""
optimizer.step()
scheduler.step()
""".strip(),
    ),
    Code(
        code="GL403",
        name="schedule-length-in-micro-batches",
        severity="warning",
        message="the schedule's length counts micro-batches, but it is stepped once per window: it covers only 1/n",
        why="A cosine over n times too many steps hardly falls, and a warm-up takes n times as long.",
        wrong="""
scheduler = CosineAnnealingLR(optimizer, T_max=epochs * len(loader))
for epoch in range(epochs):
    for i, (x, y) in enumerate(loader):
        window = min(n, len(loader) - i // n * n)
        (criterion(model(x), y) / window).backward()
        if (i + 1) % n == 0 or i + 1 == len(loader):
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
""".strip(),
        fix="count the schedule's length in updates",
        example="""
updates = epochs * math.ceil(len(loader) / n)
scheduler = CosineAnnealingLR(optimizer, T_max=updates)
""".strip(),
    ),
    Code(
        code="GL404",
        name="schedule-before-epoch",
        severity="warning",
        message="the schedule is stepped at the start of the epoch, before any update: if it is PyTorch's, its first "
        "rate is never used",
        why="Every learning rate comes one epoch early; PyTorch warns about it since 1.1.",
        wrong="""
for epoch in range(epochs):
    scheduler.step()
    for x, y in loader:
        optimizer.zero_grad()
        criterion(model(x), y).backward()
        optimizer.step()
""".strip(),
        fix="step the schedule at the end of an epoch",
        example="""
for epoch in range(epochs):
    for x, y in loader:
        ...
        optimizer.step()
    scheduler.step()
""".strip(),
    ),
    Code(
        code="GL405",
        name="schedule-too-short",
        severity="warning",
        message="the learning rate's schedule, which counts updates, is at its end long before the training",
        why="A schedule that counts epochs comes to its end within a few of them when it is stepped for each batch; "
        "what follows trains nothing.",
        wrong="""
scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=epochs)
for epoch in range(epochs):
    for x, y in loader:
        optimizer.zero_grad()
        criterion(model(x), y).backward()
        optimizer.step()
        scheduler.step()
""".strip(),
        fix="step it after each epoch, or count its length in updates",
        example="""
scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=epochs)
for epoch in range(epochs):
    for x, y in loader:
        optimizer.zero_grad()
        criterion(model(x), y).backward()
        optimizer.step()
    scheduler.step()
""".strip(),
    ),
    Code(
        code="GL406",
        name="schedule-never-stepped",
        severity="warning",
        message="the schedule is never stepped: the learning rate stays what it was at the start",
        why="A schedule sets its first learning rate when it is made; in a warm-up a fraction of the true one. Of one "
        "that the text may step later, after more epochs, nothing is said.",
        wrong="""
scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 0.01, total_iters=100)
for x, y in loader:
    optimizer.zero_grad()
    criterion(model(x), y).backward()
    optimizer.step()
""".strip(),
        fix="call scheduler.step() after optimizer.step()",
        example="""
scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 0.01, total_iters=100)
for x, y in loader:
    optimizer.zero_grad()
    criterion(model(x), y).backward()
    optimizer.step()
    scheduler.step()
""".strip(),
        found_by=("watch",),
    ),
    Code(
        code="GL407",
        name="schedule-of-another-optimizer",
        severity="warning",
        message="the schedule sets the learning rate of another optimizer; that of the one it is meant for stays",
        why="A schedule holds the optimizer that it was made of. Another one that takes its place, as where a part of "
        "the model is unfrozen, or the other one of a GAN, keeps its first learning rate.",
        wrong="""
scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.001)
for epoch in range(epochs):
    for x, y in loader:
        optimizer.zero_grad()
        criterion(model(x), y).backward()
        optimizer.step()
    scheduler.step()
""".strip(),
        fix="make the schedule of the optimizer that steps, or add the parameters to the first one's groups",
        example="""
optimizer = torch.optim.AdamW(model.parameters(), lr=0.001)
scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
for epoch in range(epochs):
    for x, y in loader:
        optimizer.zero_grad()
        criterion(model(x), y).backward()
        optimizer.step()
    scheduler.step()
""".strip(),
        found_by=("watch",),
    ),
    Code(
        code="GL408",
        name="plateau-of-an-improving-metric",
        severity="warning",
        message="the schedule lowers the learning rate while its metric improves: its mode is the contrary one",
        why="ReduceLROnPlateau waits for a lower metric unless mode is 'max'. To one that is told so of a loss, or not "
        "told so of an accuracy, every improvement is none, and the learning rate goes to nothing. Watch says so where "
        "the values cannot be those of an error that gets worse by overfitting: shares of samples, decibels, scores "
        "that are negative at first or nearly 1 at last. Of other scores it does not know whether they should rise.",
        wrong="""
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, mode="max")
for epoch in range(epochs):
    for x, y in loader:
        optimizer.zero_grad()
        criterion(model(x), y).backward()
        optimizer.step()
    scheduler.step(validation_loss(model))
""".strip(),
        fix="mode='min' for a loss or an error rate, mode='max' for an accuracy or a reward",
        example="""
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, mode="min")
for epoch in range(epochs):
    for x, y in loader:
        optimizer.zero_grad()
        criterion(model(x), y).backward()
        optimizer.step()
    scheduler.step(validation_loss(model))
""".strip(),
        found_by=("watch",),
    ),
    Code(
        code="GL409",
        name="schedule-length-in-updates",
        severity="warning",
        message="the schedule's length counts updates, but it is stepped far less often: it covers only its beginning",
        why="The learning rate stays near the first one; in a warm-up that is a fraction of the true one. Lightning "
        'steps a schedule once an epoch, unless configure_optimizers() returns it with `"interval": "step"`.',
        wrong="""
scheduler = CosineAnnealingLR(optimizer, T_max=epochs * len(loader))
for epoch in range(epochs):
    for x, y in loader:
        optimizer.zero_grad()
        criterion(model(x), y).backward()
        optimizer.step()
    scheduler.step()
""".strip(),
        fix="step it after each update, or count its length in epochs",
        example="""
scheduler = CosineAnnealingLR(optimizer, T_max=epochs * len(loader))
for epoch in range(epochs):
    for x, y in loader:
        optimizer.zero_grad()
        criterion(model(x), y).backward()
        optimizer.step()
        scheduler.step()
""".strip(),
        found_by=("audit", "watch"),
    ),
    Code(
        code="GL410",
        name="warm-up-unfinished",
        severity="advice",
        message="all updates were made in the first part of a warm-up: the learning rate was never near the true one",
        why="A warm-up that is many times longer than the training is counted in other units, or for another training.",
        wrong="""
scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 0.001, total_iters=100_000)
for x, y in loader:
    optimizer.zero_grad()
    criterion(model(x), y).backward()
    optimizer.step()
    scheduler.step()
""".strip(),
        fix="make the warm-up a small part of the training",
        example="""
scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 0.001, total_iters=len(loader) // 20)
for x, y in loader:
    optimizer.zero_grad()
    criterion(model(x), y).backward()
    optimizer.step()
    scheduler.step()
""".strip(),
        found_by=("watch",),
    ),
    Code(
        code="GL411",
        name="schedule-made-anew",
        severity="warning",
        message="the schedule is made anew again and again, and each begins where the first did",
        why="A schedule counts its steps from when it is made. One that is made in the loop over epochs stays at its "
        "beginning: a warm-up starts again each time, and what comes later never does.",
        wrong="""
for epoch in range(epochs):
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=10)
    for x, y in loader:
        optimizer.zero_grad()
        criterion(model(x), y).backward()
        optimizer.step()
    scheduler.step()
""".strip(),
        fix="make it once, before the loop",
        example="""
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=10)
for epoch in range(epochs):
    for x, y in loader:
        optimizer.zero_grad()
        criterion(model(x), y).backward()
        optimizer.step()
    scheduler.step()
""".strip(),
        found_by=("watch",),
    ),
)
