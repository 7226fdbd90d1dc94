"""Several ranks."""

from __future__ import annotations

from gradlab.codes.code import Code

RIGHT = """
last = (i + 1) % n == 0 or i + 1 == len(loader)
with nullcontext() if last else model.no_sync():
    (criterion(model(x), y) / min(n, len(loader) - i // n * n)).backward()
if last:
    optimizer.step()
    optimizer.zero_grad()
""".strip()

CODES = (
    Code(
        "GL501",
        "no-sync-missing",
        "advice",
        "DDP reduces the gradients for each micro-batch of a window: no_sync() for all but the last "
        "leaves one reduction",
        "Measured: the same update with n reductions instead of one (README, pitfall ddp_sync_every_micro_batch).",
        "run forward and backward of all but the last inside model.no_sync()",
        RIGHT,
    ),
    Code(
        "GL502",
        "no-sync-on-the-last",
        "error",
        "the last backward pass before the step is inside no_sync(): ranks step with their own "
        "gradients, and their weights part",
        "Measured on two ranks: 0.35 of a move away from the right update (README, pitfall no_sync_off_by_one).",
        "run all but the last inside model.no_sync()",
        RIGHT,
    ),
    Code(
        "GL503",
        "no-sync-around-backward-only",
        "warning",
        "no_sync() around backward() alone: DDP decides in the forward pass whether to reduce, so it "
        "reduces all the same",
        "Measured: n reductions instead of one, a mistake that no result shows (README, pitfall "
        "no_sync_around_backward_only).",
        "run both inside model.no_sync()",
        RIGHT,
    ),
    Code(
        "GL504",
        "raw-module-called",
        "error",
        "the model inside DistributedDataParallel is called: no gradient is reduced, and the ranks part",
        "DDP's hooks are set up in its own forward; a forward pass of the inner module goes past them.",
        "call the wrapper",
        """
model = DistributedDataParallel(model)
loss = criterion(model(x), y)
""".strip(),
    ),
    Code(
        "GL505",
        "reduced-by-hand-too",
        "warning",
        "gradients are reduced by hand beside DistributedDataParallel, which has done it already",
        "The same sum once more costs a reduction, and without the division by the number of ranks "
        "the gradient is too large.",
        "leave the reduction to DistributedDataParallel",
        """
loss.backward()  # DDP has averaged the gradients when it returns
optimizer.step()
""".strip(),
    ),
    Code(
        "GL506",
        "remainder-unsynchronised",
        "error",
        "the last, shorter window of an epoch ends inside no_sync(): ranks step with their own gradients",
        "Measured on two ranks: 0.94 of a move away in that window (README, pitfall remainder_unsynchronised).",
        "leave no_sync for the last micro-batch of an epoch too",
        "last = (i + 1) % n == 0 or i + 1 == len(loader)",
    ),
)
