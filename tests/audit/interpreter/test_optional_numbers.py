"""A number or None: both are followed."""

from __future__ import annotations

import pytest
from audited_snippets import assert_faults

CASES = {
    "None if no clip else number": """
import sys
scaler = torch.amp.GradScaler("cuda")
max_norm = None if "--noclip" in sys.argv else 1.0
for x, y in loader:
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        loss = F.cross_entropy(model(x), y)
    scaler.scale(loss).backward()
    if max_norm:
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)  # expect: GL201
    scaler.step(optimizer)
    scaler.update()
""",
    "number then None in if": """
def train(net, opt, scaler, noclip):
    max_norm = 1.0
    if noclip:
        max_norm = None
    for x, y in loader:
        opt.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = F.cross_entropy(net(x), y)
        scaler.scale(loss).backward()
        if max_norm is not None:
            torch.nn.utils.clip_grad_norm_(net.parameters(), max_norm)  # expect: GL201
        scaler.step(opt)
        scaler.update()
""",
    "number then None truthy": """
def train(net, opt, scaler, noclip):
    max_norm = 1.0
    if noclip:
        max_norm = None
    for x, y in loader:
        opt.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = F.cross_entropy(net(x), y)
        scaler.scale(loss).backward()
        if max_norm:
            torch.nn.utils.clip_grad_norm_(net.parameters(), max_norm)  # expect: GL201
        scaler.step(opt)
        scaler.update()
""",
    "helper returns number or None": """
def bound(cfg):
    if cfg.clip > 0:
        return 1.0
    return None
def train(cfg, net, opt, scaler):
    max_norm = bound(cfg)
    for x, y in loader:
        opt.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = F.cross_entropy(net(x), y)
        scaler.scale(loss).backward()
        if max_norm is not None:
            torch.nn.utils.clip_grad_norm_(net.parameters(), max_norm)  # expect: GL201
        scaler.step(opt)
        scaler.update()
""",
    "dict config updated": """
cfg = {"clip": None, "accum": 4}
cfg.update(open("a").read())
scaler = torch.amp.GradScaler("cuda")
for x, y in loader:
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        loss = F.cross_entropy(model(x), y)
    scaler.scale(loss).backward()
    if cfg["clip"] is not None:
        torch.nn.utils.clip_grad_norm_(model.parameters(), cfg["clip"])  # expect: GL201
    scaler.step(optimizer)
    scaler.update()
""",
    "dataclass config": """
from dataclasses import dataclass
from typing import Optional
@dataclass
class Config:
    clip: Optional[float] = None
    amp: bool = True
def main():
    cfg = Config()
    scaler = torch.amp.GradScaler("cuda", enabled=cfg.amp)
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        if cfg.clip is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), cfg.clip)  # expect: GL201
        scaler.step(optimizer)
        scaler.update()
main()
""",
    "accumulation right": """
def train(net, opt, args):
    accum = None if args.simple else 4
    for i, (x, y) in enumerate(loader):
        loss = F.cross_entropy(net(x), y)
        if accum is not None:
            loss = loss / accum
        loss.backward()
        if accum is None or (i + 1) % accum == 0:
            opt.step()
            opt.zero_grad()
""",
    "right: clip after unscale both under the bound": """
def train(net, opt, scaler, noclip):
    max_norm = 1.0
    if noclip:
        max_norm = None
    for x, y in loader:
        opt.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = F.cross_entropy(net(x), y)
        scaler.scale(loss).backward()
        if max_norm is not None:
            scaler.unscale_(opt)
            torch.nn.utils.clip_grad_norm_(net.parameters(), max_norm)
        scaler.step(opt)
        scaler.update()
""",
}


@pytest.mark.parametrize("name", CASES)
def test_marked_lines_are_found_and_no_other_fault(name, tmp_path):
    assert_faults(CASES[name], tmp_path)
