"""Clipping and zeroing in the wrong place between backward and step."""

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
        code="GL101",
        name="clip-after-step",
        severity="error",
        message="gradients are clipped after the optimizer's step: the update was made with the unclipped ones",
        why="The step has used the gradients already, so that clipping has no effect.",
        measured="the gradient of the update is 2.3 times the clipped one, as without clipping; under SGD a run that "
        "clipping keeps stable diverges.",
        pitfall="clip_after_step",
        wrong="""
loss.backward()
optimizer.step()
torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
optimizer.zero_grad()
""".strip(),
        fix="clip between backward and optimizer.step()",
        example=RIGHT,
    ),
    Code(
        code="GL102",
        name="clip-before-backward",
        severity="error",
        message="gradients are clipped before backward(), which then adds the unclipped gradient",
        why="There are no gradients to clip yet: the update is that of a run without clipping.",
        pitfall="clip_before_backward",
        wrong="""
for x, y in loader:
    optimizer.zero_grad()
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
    criterion(model(x), y).backward()
    optimizer.step()
""".strip(),
        fix="clip between backward and optimizer.step()",
        example=RIGHT,
    ),
    Code(
        code="GL103",
        name="zero-before-step",
        severity="error",
        message="gradients are zeroed between backward() and the step: the optimizer gets none",
        why="The step gets zeros (or None, and skips the parameter): the weights learn nothing from this batch, "
        "and only momentum moves them.",
        wrong="""
loss.backward()
optimizer.zero_grad()
optimizer.step()
""".strip(),
        fix="call optimizer.zero_grad() after the step, or before backward",
        example=RIGHT,
    ),
)
