"""Loops with unusual statements: the correct one is silent, and the mistake in it is found at its line."""

from __future__ import annotations

import pytest
from loop_shapes import CLIP, STEP, Shapes, assert_broken, assert_silent

SHAPES: Shapes = {
    # name: text, what is replaced, by what, the rule, a part of its line
    "except_body": ("""
for x, y in loader:
    try:
        optimizer.zero_grad()
        criterion(model(x), y).backward()
        clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    except RuntimeError:
        optimizer.zero_grad()
        criterion(model(x[:1]), y[:1]).backward()
        clip_grad_norm_(model.parameters(), 1.0)  # small
        optimizer.step()  # small
""", "        clip_grad_norm_(model.parameters(), 1.0)  # small\n        optimizer.step()  # small\n",
     "        optimizer.step()  # small\n        clip_grad_norm_(model.parameters(), 1.0)  # small\n", "GL101", "1.0)  # small"),
    "except_continue": ("""
for x, y in loader:
    try:
        loss = criterion(model(x), y)
    except RuntimeError as error:
        print(error)
        optimizer.zero_grad()
        continue
    optimizer.zero_grad()
    loss.backward()
    clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
""", CLIP + "\n    " + STEP, STEP + "\n    " + CLIP, "GL101", CLIP),
    "exit_stack": ("""
import contextlib
scaler = torch.amp.GradScaler("cuda")
for x, y in loader:
    optimizer.zero_grad()
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.autocast("cuda", dtype=torch.float16))
        loss = criterion(model(x), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
""", "        stack.enter_context(torch.autocast(\"cuda\", dtype=torch.float16))\n", "", "GL208", "model(x)"),
    "exit_stack_no_sync": ("""
from contextlib import ExitStack
ddp = nn.parallel.DistributedDataParallel(model)
for i, (x, y) in enumerate(loader):
    last = (i + 1) % 4 == 0 or i + 1 == len(loader)
    with ExitStack() as stack:
        if not last:
            stack.enter_context(ddp.no_sync())
        (criterion(ddp(x), y) / 4).backward()
    if last:
        optimizer.step()
        optimizer.zero_grad()
""", "if not last:\n            stack", "if last:\n            stack", "GL502", "ddp"),
    "match": ("""
for x, y in loader:
    optimizer.zero_grad()
    criterion(model(x), y).backward()
    match mode:
        case "norm":
            clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        case "value":
            nn.utils.clip_grad_value_(model.parameters(), 1.0)
            optimizer.step()
        case _:
            optimizer.step()
""", "clip_grad_norm_(model.parameters(), 1.0)\n            optimizer.step()",
     "optimizer.step()\n            clip_grad_norm_(model.parameters(), 1.0)", "GL101", "clip_grad_norm_"),
    "walrus": ("""
while (batch := next(stream, None)) is not None:
    x, y = batch
    optimizer.zero_grad()
    (loss := criterion(model(x), y)).backward()
    if (norm := clip_grad_norm_(model.parameters(), 1.0)) > 10:
        print(norm)
    optimizer.step()
""", "    if (norm := clip_grad_norm_(model.parameters(), 1.0)) > 10:\n        print(norm)\n    optimizer.step()\n",
     "    optimizer.step()\n    if (norm := clip_grad_norm_(model.parameters(), 1.0)) > 10:\n        print(norm)\n", "GL101", "norm := clip"),
    "context_of_the_project": ("""
from contextlib import contextmanager
@contextmanager
def update(opt, net):
    opt.zero_grad()
    yield
    clip_grad_norm_(net.parameters(), 1.0)
    opt.step()
for x, y in loader:
    with update(optimizer, model):
        criterion(model(x), y).backward()
""", "clip_grad_norm_(net.parameters(), 1.0)\n    opt.step()",
     "opt.step()\n    clip_grad_norm_(net.parameters(), 1.0)", "GL101", "clip_grad_norm_(net"),
    "autocast_in_a_context_of_the_project": ("""
import contextlib
scaler = torch.amp.GradScaler("cuda")
@contextlib.contextmanager
def cast(flag):
    if flag:
        with torch.autocast("cuda", dtype=torch.float16):
            yield
    else:
        with torch.autocast("cuda", dtype=torch.float16, enabled=True):
            yield
for x, y in loader:
    optimizer.zero_grad()
    with cast(args.amp):
        loss = criterion(model(x), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
""", "    with cast(args.amp):\n        loss = criterion(model(x), y)\n",
     "    with cast(args.amp):\n        pass\n    loss = criterion(model(x), y)\n", "GL208", "model(x)"),
}  # fmt: skip


@pytest.mark.parametrize("name", SHAPES)
def test_nothing_is_found_in_the_correct_loop(name, tmp_path):
    assert_silent(SHAPES[name], tmp_path)


@pytest.mark.parametrize("name", SHAPES)
def test_the_mistake_is_found_at_its_line(name, tmp_path):
    assert_broken(SHAPES[name], tmp_path)
