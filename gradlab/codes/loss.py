"""Losses that leave the numbers by themselves, and losses kept with their graphs."""

from __future__ import annotations

from gradlab.codes.code import Code

CODES = (
    Code(
        "GL601",
        "log-of-zero",
        "warning",
        "log of a prediction that may be 0: the loss is infinite, its gradient is not a number",
        "Measured in experiments/nan_loss: log(0) is -inf. An eps inside only moves the pole for "
        "values that may be negative.",
        "take the loss from logits, or keep its argument away from 0",
        "loss = F.cross_entropy(logits, target)  # or F.binary_cross_entropy_with_logits, or "
        "torch.log(p.clamp_min(1e-8))",
    ),
    Code(
        "GL602",
        "division-by-prediction",
        "warning",
        "division by a prediction that may be near 0: the loss and its gradient explode",
        "Measured in experiments/nan_loss. pred + eps has its pole at -eps; use pred.abs() + eps, or clamp.",
        "keep the divisor away from 0",
        "loss = ((pred - target) / (pred.abs() + 1e-8)).pow(2).mean()",
    ),
    Code(
        "GL603",
        "sqrt-at-zero",
        "warning",
        "sqrt of a square or of a difference: at 0 its gradient is not a number",
        "Measured in experiments/nan_loss: the derivative of sqrt at 0 is infinite, and infinity times 0 is NaN.",
        "add a small number under the root",
        "distance = (diff.pow(2) + 1e-12).sqrt()  # or diff.abs()",
    ),
    Code(
        "GL604",
        "exp-of-unbounded",
        "warning",
        "exp of an unbounded output: infinite from 88.7 in fp32, from 11.1 in fp16",
        "Measured in experiments/nan_loss. logsumexp, softmax and cross_entropy subtract the largest first.",
        "use a function that subtracts the largest first",
        "loss = torch.logsumexp(logits, dim=-1).mean()  # or F.cross_entropy(logits, target)",
    ),
    Code(
        "GL605",
        "loss-kept-with-graph",
        "warning",
        "a loss is kept with its graph: memory grows with every batch",
        "Measured on eight small layers: 25 kB of graph stay a batch; and all that a backward pass would "
        "need, where none freed it. loss.item() waits for the device, loss.detach() does not.",
        "keep loss.detach() or loss.item()",
        "total += loss.detach()",
    ),
    Code(
        "GL606",
        "rmse-at-zero",
        "advice",
        "sqrt of a mean of squares: where every error is 0 (padding, a perfect fit) its gradient is not a number",
        "Measured in experiments/nan_loss for one square; a mean gets to 0 only where all of them do.",
        "add a small number under the root, or take the mean itself: its minimum is the same",
        "loss = torch.sqrt(F.mse_loss(pred, target) + 1e-12)",
    ),
)
