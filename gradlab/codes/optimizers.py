"""What an optimizer steps on, how often, and what else moves its weights."""

from __future__ import annotations

from gradlab.codes.code import Code

CODES = (
    Code(
        code="GL901",
        name="passes-at-moved-weights",
        severity="warning",
        message="this backward pass adds to the gradient of one before it, though the weights were moved in between",
        why="An optimizer that looks ahead (sharpness-aware, extragradient, LBFGS) wants the gradient at the weights "
        "where it looks. What is left of the pass before makes the step a mixture of both, about twice as long.",
        wrong="""
for x, y in loader:
    criterion(model(x), y).backward()
    with torch.no_grad():
        moves = [0.01 * p.grad for p in model.parameters()]
        torch._foreach_add_(list(model.parameters()), moves)
    criterion(model(x), y).backward()
    with torch.no_grad():
        torch._foreach_sub_(list(model.parameters()), moves)
    optimizer.step()
    optimizer.zero_grad()
""".strip(),
        fix="call zero_grad() before the second pass; of a mean of both, divide each loss by two",
        example="""
for x, y in loader:
    criterion(model(x), y).backward()
    with torch.no_grad():
        moves = [0.01 * p.grad for p in model.parameters()]
        torch._foreach_add_(list(model.parameters()), moves)
    optimizer.zero_grad()
    criterion(model(x), y).backward()
    with torch.no_grad():
        torch._foreach_sub_(list(model.parameters()), moves)
    optimizer.step()
    optimizer.zero_grad()
""".strip(),
        found_by=("watch",),
    ),
    Code(
        code="GL902",
        name="step-twice",
        severity="advice",
        message="the optimizer steps a second time on the same gradient, at the weights that its first step has left",
        why="The learning rate is about twice the one that was chosen, and an average of gradients counts each twice.",
        wrong="""
for x, y in loader:
    optimizer.zero_grad()
    criterion(model(x), y).backward()
    optimizer.step()
    optimizer.step()
""".strip(),
        fix="call step() once after each backward pass",
        example="""
for x, y in loader:
    optimizer.zero_grad()
    criterion(model(x), y).backward()
    optimizer.step()
""".strip(),
        found_by=("watch",),
    ),
)
