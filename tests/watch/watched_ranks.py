"""Run by test_watch_ranks.py on each rank: loops with DDP, with and without a watch; rank 0 prints the results."""

import json
import sys
from contextlib import nullcontext
from pathlib import Path

import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from watched_loops import batches, half_loss, loss_of, net
from watched_scripts import AUDITED, distributed, play, playable, reported

import gradlab
from gradlab.watch.output.update_metrics import local
from gradlab.watch.patches import PATCHES

RANK = 0


def accumulated(model, optimizer, local=lambda i: i % 2 == 0, called=None):
    """Windows of two; local: which micro-batches run inside no_sync."""
    called = called or model
    for i, batch in enumerate(batches(8, 10 + RANK)):
        with model.no_sync() if local(i) else nullcontext():
            loss = loss_of(called, batch) / 2
            loss.backward()  # here
        if i % 2:
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()


def correct(model, optimizer):
    accumulated(model, optimizer)


def always_synced(model, optimizer):
    accumulated(model, optimizer, lambda i: False)


def never_synced(model, optimizer):
    accumulated(model, optimizer, lambda i: True)


def off_by_one(model, optimizer):
    accumulated(model, optimizer, lambda i: i % 2 == 1)


def bypasses_ddp(model, optimizer):
    accumulated(model, optimizer, lambda i: False, model.module)


def no_sync_around_backward(model, optimizer):
    for i, batch in enumerate(batches(8, 10 + RANK)):
        loss = loss_of(model, batch) / 2
        with nullcontext() if i % 2 else model.no_sync():
            loss.backward()
        if i % 2:
            optimizer.step()
            optimizer.zero_grad()


def short_remainder(model, optimizer):
    """The last window has one micro-batch, inside no_sync."""
    for i, batch in enumerate(batches(7, 10 + RANK)):
        with nullcontext() if i % 2 else model.no_sync():
            (loss_of(model, batch) / (1 if i == 6 else 2)).backward()
        if i % 2 or i == 6:
            optimizer.step()
            optimizer.zero_grad()


def also_reduced_manually(model, optimizer):
    for batch in batches(4, 10 + RANK):
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        for p in model.parameters():
            torch.distributed.all_reduce(p.grad)
        optimizer.step()


def reduced_manually(model, optimizer):
    for batch in batches(4, 10 + RANK):
        optimizer.zero_grad()
        with model.no_sync():
            loss_of(model, batch).backward()
        for p in model.parameters():
            torch.distributed.all_reduce(p.grad)
            p.grad /= 2
        optimizer.step()


def everything(model, optimizer):
    """Accumulation, fp16, DDP and clipping together."""
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8)
    for i, batch in enumerate(batches(8, 10 + RANK)):
        with model.no_sync() if i % 2 == 0 else nullcontext():
            scaler.scale(half_loss(model, batch) / 2).backward()
        if i % 2:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()


def sharded(model, optimizer, zeroed=True):
    for batch in batches(4, 10 + RANK):
        if zeroed:
            optimizer.zero_grad()
        loss_of(model, batch).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()


def sharded_not_zeroed(model, optimizer):
    sharded(model, optimizer, zeroed=False)


def gathered(model, optimizer, zeroed=True, late=False):
    """Gradients are accumulated over two passes."""
    for i, batch in enumerate(batches(8, 10 + RANK)):
        (loss_of(model, batch) / 2).backward()
        if i % 2 == 0:
            continue
        if not late:
            model.clip_grad_norm_(0.1)
        optimizer.step()
        if late:
            model.clip_grad_norm_(0.1)
        if zeroed:
            optimizer.zero_grad()


def gathered_not_zeroed(model, optimizer):
    gathered(model, optimizer, zeroed=False)


def gathered_late(model, optimizer):
    gathered(model, optimizer, late=True)


def gathered_set_to_none(model, optimizer):
    for batch in batches(4, 10 + RANK):
        loss_of(model, batch).backward()
        optimizer.step()
        for p in model.parameters():
            p.grad = None


def shard(gathers):
    """Shard a model. gathers: with FullyShardedDataParallel, else with fully_shard."""
    model = net()
    if gathers:
        model[0] = FullyShardedDataParallel(model[0], use_orig_params=True, device_id=torch.device("cpu"))
        return FullyShardedDataParallel(model, use_orig_params=True, device_id=torch.device("cpu"))
    for part in (model[0], model[2], model):
        fully_shard(part)
    return model


LOOPS = (
    correct,
    always_synced,
    never_synced,
    off_by_one,
    bypasses_ddp,
    no_sync_around_backward,
    short_remainder,
    also_reduced_manually,
    reduced_manually,
    everything,
    sharded,
    sharded_not_zeroed,
    gathered,
    gathered_not_zeroed,
    gathered_late,
    gathered_set_to_none,
)


def main(folder):
    global RANK
    torch.distributed.init_process_group("gloo")
    RANK = torch.distributed.get_rank()
    found = {}
    for loop in LOOPS:
        ends = []
        for watched in (False, True):
            kind = loop.__name__.split("_")[0]
            parted = kind in ("sharded", "gathered")
            model = shard(kind == "gathered") if parted else nn.parallel.DistributedDataParallel(net())
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
            watch = gradlab.watch(model, optimizer, folder=folder / loop.__name__, quiet=True)
            with watch if watched else nullcontext():
                loop(model, optimizer)
            ends.append(torch.cat([local(p).detach().flatten() for p in model.parameters()]))
        codes = [fault.name for fault in watch.faults]
        found[loop.__name__] = [codes, torch.equal(*ends), watch.broken, not PATCHES, watch.loop.outputs[0].num_updates]
    for path in sorted((AUDITED / "wrong").glob("*.py")) + sorted((AUDITED / "right").glob("*.py")):
        if playable(path) and distributed(path):
            watch, _ = play(path, folder / path.stem)
            found[f"{path.parent.name}/{path.stem}"] = sorted(reported(watch))
    if RANK == 0:
        print(json.dumps(found))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
