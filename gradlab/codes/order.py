"""Clipping and zeroing at the wrong place between backward and step."""

from __future__ import annotations

from gradlab.codes.code import Code

RIGHT = """
loss.backward()
torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
optimizer.step()
optimizer.zero_grad()
""".strip()

CODES = (
    Code(
        "GL101",
        "clip-after-step",
        "error",
        "gradients are clipped after the optimizer's step: the update was made with the unclipped ones",
        "Measured: the gradient used is 2.3 times the clipped one, as without clipping; under SGD a run "
        "that clipping keeps alive is lost (README, pitfall clip_after_step).",
        "clip between backward and optimizer.step()",
        RIGHT,
    ),
    Code(
        "GL102",
        "clip-before-backward",
        "error",
        "gradients are clipped before backward(): there is none yet, and the one that comes is used whole",
        "Clipping without gradients does nothing; the update is that of a run without clipping "
        "(README, pitfall clip_before_backward).",
        "clip between backward and optimizer.step()",
        RIGHT,
    ),
    Code(
        "GL103",
        "zero-before-step",
        "error",
        "gradients are set to zero between backward() and the step: the optimizer gets none",
        "The step sees zeros (or None, and skips): the weights learn nothing from this batch, momentum "
        "alone moves them.",
        "call optimizer.zero_grad() after the step, or before backward",
        RIGHT,
    ),
)
