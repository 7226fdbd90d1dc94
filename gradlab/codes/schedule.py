"""Schedules."""

from __future__ import annotations

from gradlab.codes.code import Code

CODES = (
    Code(
        "GL401",
        "schedule-every-micro-batch",
        "warning",
        "the schedule is stepped for each micro-batch of a window: it runs n times too fast for one "
        "that counts updates",
        "Measured: the rate of a warm-up is 4 times too high at first (README, pitfall schedule_per_micro_batch).",
        "call schedule.step() after optimizer.step(), once an update",
        """
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
        "GL402",
        "schedule-before-step",
        "warning",
        "the schedule is stepped before the optimizer: the first rate of the schedule is never used",
        "PyTorch warns of it since 1.1; every rate comes one update early.",
        "call schedule.step() after optimizer.step()",
        """
optimizer.step()
scheduler.step()
""".strip(),
    ),
    Code(
        "GL403",
        "schedule-length-in-micro-batches",
        "warning",
        "the schedule's length is counted in micro-batches, but it is stepped once a window: it ends "
        "after 1/n of its course",
        "A cosine over n times too many steps hardly falls, and a warm-up takes n times as long.",
        "count the schedule's length in updates",
        """
updates = epochs * math.ceil(len(loader) / n)
scheduler = CosineAnnealingLR(optimizer, T_max=updates)
""".strip(),
    ),
    Code(
        "GL404",
        "schedule-before-epoch",
        "warning",
        "the schedule is stepped at the head of the epoch, before any update: the first rate of the "
        "schedule is never used",
        "PyTorch warns of it since 1.1; every rate comes one epoch early.",
        "step the schedule at the end of an epoch",
        """
for epoch in range(epochs):
    for x, y in loader:
        ...
        optimizer.step()
    scheduler.step()
""".strip(),
    ),
)
