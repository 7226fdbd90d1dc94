"""Windows of micro-batches."""

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
        "GL301",
        "accumulation-unscaled",
        "error",
        "the losses of a window are added up undivided: the gradient is n times too large",
        "Measured: under SGD a learning rate n times too high, lost at update 14; Adam cancels a "
        "constant factor but for eps, clipping and weight decay (README, pitfall "
        "unscaled_accumulation).",
        "divide each loss by the number of micro-batches, or weigh it by its share of the samples",
        RIGHT,
    ),
    Code(
        "GL302",
        "loss-divided-twice",
        "error",
        "the loss is divided by the length of the window twice: the gradient is n times too small",
        "A learning rate n times too low under SGD. Accelerate's backward() divides by "
        "gradient_accumulation_steps itself.",
        "divide once",
        RIGHT,
    ),
    Code(
        "GL303",
        "gradients-scaled-by-hand",
        "warning",
        "gradients are divided by hand for each micro-batch, and earlier ones again each time: divide the loss",
        "Measured: micro-batch i of n weighs n^-(n - i) of what it should; the gradient is 0.38 of "
        "the right one, its cosine 0.89 (README, pitfall gradients_scaled_by_hand).",
        "divide the loss",
        RIGHT,
    ),
    Code(
        "GL304",
        "clip-every-micro-batch",
        "error",
        "each micro-batch of a window is clipped: clip once, when all have been added up",
        "Measured: clipping a sum that is not complete weighs micro-batches unequally, 0.03 of a move "
        "away from the right update, and more where the bound is tight (README, pitfall "
        "clip_each_micro_batch).",
        "clip once, after the last backward of an update",
        RIGHT,
    ),
    Code(
        "GL305",
        "zero-grad-missing",
        "error",
        "gradients are never set to zero in this loop: each update adds its own to those of all before",
        "Measured: like a momentum of 1; the loss ends at 6.88 instead of 3.10 (README, pitfall missing_zero_grad).",
        "call optimizer.zero_grad() once an update, after the step",
        RIGHT,
    ),
    Code(
        "GL306",
        "zero-grad-in-window",
        "error",
        "gradients are set to zero for each micro-batch: only the last one of the window reaches the step",
        "Measured: a third of the gradient, with a cosine of 0.81 (README, pitfall zero_grad_in_window).",
        "call optimizer.zero_grad() once an update, after the step",
        RIGHT,
    ),
    Code(
        "GL307",
        "remainder-left",
        "advice",
        "the last, shorter window of an epoch takes no step: its gradients are dropped, or leak into the next epoch",
        "With 10 batches and n = 4 the last two are lost, or make the next update a sum over six "
        "(README, pitfall remainder_underscaled).",
        "step on what is left at the end of an epoch, divided by its own number",
        RIGHT,
    ),
    Code(
        "GL308",
        "remainder-underscaled",
        "advice",
        "the last window of an epoch is shorter, and its losses are divided by the full n all the same",
        "Measured: its gradient is a fraction of the right one, 0.25 where one micro-batch of four "
        "remains (README, pitfall remainder_underscaled).",
        "divide what is left by its own number",
        """
window = min(n, len(loader) - i // n * n)
(loss / window).backward()
""".strip(),
    ),
)
