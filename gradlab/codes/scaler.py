"""The loss scale, and precision."""

from __future__ import annotations

from gradlab.codes.code import Code

RIGHT = """
scaler.scale(loss).backward()
scaler.unscale_(optimizer)
torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
scaler.step(optimizer)
scaler.update()
optimizer.zero_grad()
""".strip()

CODES = (
    Code(
        "GL201",
        "clip-before-unscale",
        "error",
        "scaled gradients are clipped: the threshold on the true gradient is max_norm divided by the loss scale",
        "Measured: the true gradient is cut to 1/65536 of max_norm, so that SGD hardly moves; Adam "
        "cancels the factor but for eps (README, pitfall clip_before_unscale).",
        "call scaler.unscale_(optimizer) before clipping",
        RIGHT,
    ),
    Code(
        "GL202",
        "unscale-twice",
        "error",
        "unscale_() a second time in one update: PyTorch's scaler raises, and any other divides by the scale again",
        "Measured with a scaler written by hand: the gradient is 65536 times too small (README, "
        "pitfall unscale_twice).",
        "call scaler.unscale_(optimizer) once an update, after the last backward",
        RIGHT,
    ),
    Code(
        "GL203",
        "unscale-every-micro-batch",
        "error",
        "unscale_() for each micro-batch of a window: unscale once, when all of them have been added up",
        "Gradients of the next micro-batch are scaled, those that they are added to are not; "
        "PyTorch's scaler raises at the second call.",
        "call scaler.unscale_(optimizer) once an update, after the last backward",
        RIGHT,
    ),
    Code(
        "GL204",
        "step-past-scaler",
        "error",
        "optimizer.step() on gradients of a scaled loss: use scaler.step(optimizer)",
        "Gradients that overflowed are applied, and without unscale_() all are too large by the "
        "scale. Measured: the weights are NaN after one overflow (README, pitfall step_past_scaler).",
        "call scaler.step(optimizer) in place of optimizer.step()",
        RIGHT,
    ),
    Code(
        "GL205",
        "update-missing",
        "error",
        "scaler.step() without scaler.update(): the scale never changes, and PyTorch's scaler raises "
        "at the second step",
        "Without update() an overflow never lowers the scale, and step() may be called once only.",
        "call scaler.update() once, after the last scaler.step of an update",
        RIGHT,
    ),
    Code(
        "GL206",
        "live-lock",
        "error",
        "a check for finite gradients goes past scaler.update(): the scale stays, and with it the overflow",
        "Measured: every update is skipped for ever, the scale never backs off (README, pitfall "
        "live_lock). Where unscale_() came before, PyTorch's scaler raises at the next one. scaler.step()"
        " makes this check by itself.",
        "leave out the guard: scaler.step skips such an update and scaler.update lowers the scale",
        """
scaler.unscale_(optimizer)
norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
scaler.step(optimizer)  # skips by itself where a gradient is not finite
scaler.update()
""".strip(),
    ),
    Code(
        "GL207",
        "loss-not-scaled",
        "error",
        "backward() of a loss that was not scaled, and scaler.step(): the step divides by a scale "
        "that was never multiplied",
        "PyTorch's scaler raises where it has scaled nothing yet; where it has scaled another loss, this "
        "one's gradient is too small by the scale, 65536 at first.",
        "call scaler.scale(loss).backward()",
        RIGHT,
    ),
    Code(
        "GL208",
        "forward-outside-autocast",
        "warning",
        "the loss is scaled but the forward pass is outside autocast: it runs in fp32, and scaling is for nothing",
        "A loss scale is for fp16. Outside autocast nothing is in fp16, unless the model itself is.",
        "run the forward pass and the loss inside torch.autocast",
        """
with torch.autocast('cuda', dtype=torch.float16):
    loss = criterion(model(x), y)
scaler.scale(loss).backward()
""".strip(),
    ),
    Code(
        "GL209",
        "backward-inside-autocast",
        "advice",
        "backward() inside autocast: leave the block before it, as PyTorch's documentation asks",
        "Backward passes run in the types that autocast chose for their forward passes; inside the "
        "block their own operations may be cast once more.",
        "leave the context before backward",
        """
with torch.autocast('cuda'):
    loss = criterion(model(x), y)
scaler.scale(loss).backward()
""".strip(),
    ),
    Code(
        "GL210",
        "fp16-without-scaler",
        "warning",
        "fp16 without a loss scale: small gradients are flushed to zero",
        "Measured: without scaling every gradient of experiments/fp16_underflow is zero. Use a "
        "GradScaler, or bfloat16.",
        "use torch.amp.GradScaler, or bf16",
        RIGHT,
    ),
    Code(
        "GL211",
        "bf16-with-scaler",
        "advice",
        "bfloat16 needs no loss scale: its exponent is that of fp32",
        "Bfloat16 reaches down to 1e-38, where fp16 ends at 6e-8; the scaler only adds its checks.",
        "leave the scaler out",
        """
with torch.autocast('cuda', dtype=torch.bfloat16):
    loss = criterion(model(x), y)
loss.backward()
optimizer.step()
""".strip(),
    ),
    Code(
        "GL212",
        "deprecated-amp",
        "advice",
        "torch.cuda.amp is deprecated: torch.autocast(device) and torch.amp.GradScaler(device)",
        "The old names warn, and know CUDA alone.",
        "use torch.autocast(device) and torch.amp.GradScaler(device)",
        """
scaler = torch.amp.GradScaler('cuda')
with torch.autocast('cuda'):
    ...
""".strip(),
    ),
    Code(
        "GL213",
        "update-every-micro-batch",
        "error",
        "scaler.update() for each micro-batch of a window: the scale must not change before the step",
        "Gradients of one window would carry different scales; PyTorch's scaler raises, for no step "
        "recorded anything to judge by.",
        "call scaler.update() once an update, after scaler.step",
        RIGHT,
    ),
    Code(
        "GL214",
        "loss-scaled-twice",
        "error",
        "the loss is multiplied with the loss scale twice, and unscaled once",
        "The gradient is too large by the scale, 65536 at first, or overflows at once: every update "
        "is skipped until the scale has fallen to where its square fits.",
        "call scaler.scale(loss) once",
        RIGHT,
    ),
)
