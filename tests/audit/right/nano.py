from contextlib import nullcontext

import torch
from torch.nn.parallel import DistributedDataParallel as DDP

from mymodel import GPT, get_batch

gradient_accumulation_steps = 5 * 8
grad_clip, dtype, ddp, max_iters = 1.0, "float16", True, 1000
ctx = nullcontext() if dtype == "cpu" else torch.amp.autocast(device_type="cuda", dtype=torch.float16)
model = GPT()
scaler = torch.cuda.amp.GradScaler(enabled=(dtype == "float16"))  # gradlab: ignore[GL212]
optimizer = model.configure_optimizers(0.1, 3e-4, (0.9, 0.95), "cuda")
if ddp:
    model = DDP(model)
raw_model = model.module if ddp else model
X, Y = get_batch("train")
iter_num = 0
running_mfu = -1.0
while True:
    lr = 1e-3
    for param_group in optimizer.param_groups:
        param_group["lr"] = lr
    if iter_num % 100 == 0:
        torch.save({"model": raw_model.state_dict(), "optimizer": optimizer.state_dict()}, "ckpt.pt")
    for micro_step in range(gradient_accumulation_steps):
        if ddp:
            model.require_backward_grad_sync = micro_step == gradient_accumulation_steps - 1
        with ctx:
            logits, loss = model(X, Y)
            loss = loss / gradient_accumulation_steps
        X, Y = get_batch("train")
        scaler.scale(loss).backward()
    if grad_clip != 0.0:
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), grad_clip)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    if iter_num % 10 == 0:
        lossf = loss.item() * gradient_accumulation_steps
    iter_num += 1
    if iter_num > max_iters:
        break
