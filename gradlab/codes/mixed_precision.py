"""The loss scale, autocast and low precision."""

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
        code="GL201",
        name="clip-before-unscale",
        severity="error",
        message="scaled gradients are clipped: the threshold on the true gradient is max_norm divided by the loss "
        "scale",
        why="A scaled gradient is larger than the true one by the loss scale, 65536 at first, and max_norm is not.",
        measured="the true gradient is clipped to 1/65536 of max_norm, so that SGD hardly moves the weights; Adam "
        "cancels the factor except for eps.",
        pitfall="clip_before_unscale",
        wrong="""
scaler.scale(loss).backward()
torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
scaler.step(optimizer)
scaler.update()
optimizer.zero_grad()
""".strip(),
        fix="call scaler.unscale_(optimizer) before clipping",
        example=RIGHT,
    ),
    Code(
        code="GL202",
        name="unscale-twice",
        severity="error",
        message="unscale_() is called twice in one update: PyTorch's scaler raises, any other divides by the scale "
        "again",
        why="The gradients are divided by the loss scale once too often.",
        measured="with a scaler that does not raise, the gradient is 65536 times too small.",
        pitfall="unscale_twice",
        wrong="""
scaler.scale(loss).backward()
scaler.unscale_(optimizer)
scaler.unscale_(optimizer)
scaler.step(optimizer)
scaler.update()
optimizer.zero_grad()
""".strip(),
        fix="call scaler.unscale_(optimizer) once per update, after the last backward",
        example=RIGHT,
    ),
    Code(
        code="GL203",
        name="unscale-every-micro-batch",
        severity="error",
        message="unscale_() is called for each micro-batch of a window: call it once, after the last backward",
        why="Gradients of the next micro-batch are scaled, and those that they are added to are not. PyTorch's scaler "
        "raises at the second call.",
        wrong="""
for i, (x, y) in enumerate(loader):
    with torch.autocast('cuda', dtype=torch.float16):
        window = min(4, len(loader) - i // 4 * 4)
        out = criterion(model(x), y) / window
    scaler.scale(out).backward()
    scaler.unscale_(optimizer)
    if (i + 1) % 4 == 0 or i + 1 == len(loader):
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
""".strip(),
        fix="call scaler.unscale_(optimizer) once per update, after the last backward",
        example=RIGHT,
    ),
    Code(
        code="GL204",
        name="step-past-scaler",
        severity="error",
        message="optimizer.step() on gradients of a scaled loss: use scaler.step(optimizer)",
        why="Gradients that overflowed are applied, and without unscale_() all gradients are too large by the scale.",
        measured="the weights are NaN after one overflow.",
        pitfall="step_past_scaler",
        wrong="""
scaler.scale(loss).backward()
optimizer.step()
scaler.update()
optimizer.zero_grad()
""".strip(),
        fix="call scaler.step(optimizer) in place of optimizer.step()",
        example=RIGHT,
    ),
    Code(
        code="GL205",
        name="update-missing",
        severity="error",
        message="scaler.step() without scaler.update(): the scale never changes, and PyTorch's scaler raises at the "
        "second step",
        why="Without update() an overflow never lowers the scale, and step() may be called only once.",
        wrong="""
scaler.scale(loss).backward()
scaler.step(optimizer)
optimizer.zero_grad()
""".strip(),
        fix="call scaler.update() once, after the last scaler.step of an update",
        example=RIGHT,
    ),
    Code(
        code="GL206",
        name="live-lock",
        severity="error",
        message="a check for finite gradients skips scaler.update(): the scale stays, and so does the overflow",
        why="A GradScaler makes this check in step(), and its update() lowers the scale after an overflow. If "
        "unscale_() was called before, PyTorch's scaler raises at the next one.",
        measured="every later update is skipped, and the scale never backs off.",
        pitfall="live_lock",
        wrong="""
for x, y in loader:
    optimizer.zero_grad()
    with torch.autocast('cuda', dtype=torch.float16):
        out = criterion(model(x), y)
    scaler.scale(out).backward()
    scaler.unscale_(optimizer)
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    if not torch.isfinite(norm):
        continue
    scaler.step(optimizer)
    scaler.update()
""".strip(),
        fix="remove the check: scaler.step skips such an update, and scaler.update lowers the scale",
        example="""
scaler.unscale_(optimizer)
norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
scaler.step(optimizer)  # skips the update if a gradient is not finite
scaler.update()
""".strip(),
    ),
    Code(
        code="GL207",
        name="loss-not-scaled",
        severity="error",
        message="the loss is not scaled before backward(), but its gradients are divided by the scale before the step",
        why="PyTorch's scaler raises if it has scaled no loss yet. If it has scaled another loss, the gradient of this "
        "one is too small by the scale, 65536 at first.",
        wrong="""
loss.backward()
scaler.step(optimizer)
scaler.update()
optimizer.zero_grad()
""".strip(),
        fix="call scaler.scale(loss).backward()",
        example=RIGHT,
    ),
    Code(
        code="GL208",
        name="forward-outside-autocast",
        severity="warning",
        message="the loss is scaled, but the forward pass is outside autocast: it runs in fp32, where scaling is "
        "useless",
        why="A loss scale is for fp16. Outside autocast nothing runs in fp16, unless the model itself is.",
        wrong="""
for x, y in loader:
    out = criterion(model(x), y)
    scaler.scale(out).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
""".strip(),
        fix="run the forward pass and the loss inside torch.autocast",
        example="""
with torch.autocast('cuda', dtype=torch.float16):
    loss = criterion(model(x), y)
scaler.scale(loss).backward()
""".strip(),
    ),
    Code(
        code="GL209",
        name="backward-inside-autocast",
        severity="advice",
        message="backward() runs inside autocast: PyTorch's documentation advises to leave the block first",
        why="A backward pass runs in the types that autocast chose for its forward pass. Inside the block its own "
        "operations may be cast again.",
        wrong="""
with torch.autocast('cuda'):
    loss = criterion(model(x), y)
    scaler.scale(loss).backward()
""".strip(),
        fix="leave the context before backward",
        example="""
with torch.autocast('cuda'):
    loss = criterion(model(x), y)
scaler.scale(loss).backward()
""".strip(),
    ),
    Code(
        code="GL210",
        name="fp16-without-scaler",
        severity="warning",
        message="fp16 without a loss scale: small gradients are flushed to zero",
        why="The smallest number of fp16 is 6e-8; gradients below it become zero.",
        measured="without scaling every gradient of experiments/fp16_underflow is zero.",
        wrong="""
with torch.autocast('cuda', dtype=torch.float16):
    loss = criterion(model(x), y)
loss.backward()
optimizer.step()
""".strip(),
        fix="use torch.amp.GradScaler, or bf16",
        example=RIGHT,
    ),
    Code(
        code="GL211",
        name="bf16-with-scaler",
        severity="advice",
        message="bfloat16 needs no loss scale: it has the exponent range of fp32",
        why="Bfloat16 reaches down to 1e-38, where fp16 ends at 6e-8; the scaler only adds its checks.",
        wrong="""
with torch.autocast('cuda', dtype=torch.bfloat16):
    loss = criterion(model(x), y)
scaler.scale(loss).backward()
scaler.step(optimizer)
scaler.update()
""".strip(),
        fix="remove the scaler",
        example="""
with torch.autocast('cuda', dtype=torch.bfloat16):
    loss = criterion(model(x), y)
loss.backward()
optimizer.step()
""".strip(),
    ),
    Code(
        code="GL212",
        name="deprecated-amp",
        severity="advice",
        message="torch.cuda.amp is deprecated: use torch.autocast(device) and torch.amp.GradScaler(device)",
        why="The old names raise warnings, and support CUDA only.",
        wrong="scaler = torch.cuda.amp.GradScaler()",
        fix="use torch.autocast(device) and torch.amp.GradScaler(device)",
        example="""
scaler = torch.amp.GradScaler('cuda')
with torch.autocast('cuda'):
    ...
""".strip(),
        found_by=("audit",),
    ),
    Code(
        code="GL213",
        name="update-every-micro-batch",
        severity="error",
        message="scaler.update() is called for each micro-batch of a window: the scale must not change before the step",
        why="Gradients of one window would carry different scales. PyTorch's scaler raises, since no step has recorded "
        "whether gradients are finite.",
        wrong="""
for i, (x, y) in enumerate(loader):
    with torch.autocast('cuda', dtype=torch.float16):
        window = min(4, len(loader) - i // 4 * 4)
        out = criterion(model(x), y) / window
    scaler.scale(out).backward()
    if (i + 1) % 4 == 0 or i + 1 == len(loader):
        scaler.step(optimizer)
        optimizer.zero_grad()
    scaler.update()
""".strip(),
        fix="call scaler.update() once per update, after scaler.step",
        example=RIGHT,
    ),
    Code(
        code="GL214",
        name="loss-scaled-twice",
        severity="error",
        message="the loss is multiplied by the loss scale twice, and the gradients are unscaled once",
        why="The gradient is too large by the scale, 65536 at first, or overflows at once: updates are skipped until "
        "the scale has fallen so far that its square fits. A penalty of the gradients of a scaled loss is too strong "
        "by as much.",
        wrong="""
loss = scaler.scale(loss)
scaler.scale(loss).backward()
scaler.step(optimizer)
scaler.update()
optimizer.zero_grad()
""".strip(),
        fix="call scaler.scale(loss) once, and divide gradients of a scaled loss by scaler.get_scale() before they go "
        "into another",
        example=RIGHT,
        found_by=("watch",),
    ),
    Code(
        code="GL215",
        name="fp16-weights-with-scaler",
        severity="error",
        message="the weights are fp16, and so are their gradients: a GradScaler refuses to unscale them",
        why="PyTorch raises 'Attempting to unscale FP16 gradients.' at the first unscale_() or step(). A loss scale is "
        "for weights in fp32 whose forward pass autocast runs in fp16; an update of fp16 weights would also lose "
        "most of its digits.",
        wrong="""
model = nn.Linear(8, 4).half()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler('cuda')
for x, y in loader:
    out = criterion(model(x), y)
    scaler.scale(out).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
""".strip(),
        fix="keep the weights in fp32 and run the forward pass in torch.autocast, or use bf16 weights without a scaler",
        example="""
model = nn.Linear(8, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler('cuda')
for x, y in loader:
    with torch.autocast('cuda', dtype=torch.float16):
        out = criterion(model(x), y)
    scaler.scale(out).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
""".strip(),
        found_by=("audit",),
    ),
    Code(
        code="GL216",
        name="contexts-joined-by-and",
        severity="error",
        message="contexts joined by `and` or `or`: the with statement enters one of them, the others have no effect",
        why="Of `a() and b()` the second is entered, of `a() or b()` the first. Without autocast the forward pass runs "
        "in fp32, without no_grad it keeps its graph, without no_sync every micro-batch is reduced.",
        wrong="""
with torch.autocast('cuda', torch.bfloat16) and torch.enable_grad():
    loss = criterion(model(x), y)
""".strip(),
        fix="separate them by a comma",
        example="""
with torch.autocast('cuda', torch.bfloat16), torch.enable_grad():
    loss = criterion(model(x), y)
""".strip(),
        found_by=("audit",),
    ),
)
