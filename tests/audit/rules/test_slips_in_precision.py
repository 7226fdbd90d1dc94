"""Half precision in scripts as people write them: each slip beside its right twin."""

from __future__ import annotations

import pytest
from audited_snippets import HEAD, assert_faults, expected, findings

CASES = {
    "a type of device that a computer decides, and no scaler": """
def train(device, amp):
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast(device.type if device.type != "mps" else "cpu", enabled=amp):
            loss = F.cross_entropy(model(x), y)
        loss.backward()  # expect: GL210
        optimizer.step()
""",
    "a type of device that a computer decides, in bf16": """
def train(device, amp):
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast(device.type if device.type != "mps" else "cpu", enabled=amp, dtype=torch.bfloat16):
            loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
""",
    "weights in fp16 and an optimizer under the same flag": """
def train():
    net = nn.Linear(8, 4)
    net.half()  # expect: GL215
    optimizer = torch.optim.Adam(net.parameters())
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        optimizer.zero_grad()
        scaler.scale(F.cross_entropy(net(x), y)).backward()
        scaler.step(optimizer)
        scaler.update()
def main(flags):
    if flags.train:
        train()
""",
    "weights in fp16, but for those that are trained": """
def train(net):
    net = net.half()
    for p in net.parameters():
        if p.requires_grad:
            p.data = p.data.float()
    optimizer = torch.optim.Adam([p for p in net.parameters() if p.requires_grad])
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = F.cross_entropy(net(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
""",
    "weights in fp16 under a flag of their own": """
def train(flags):
    net = nn.Linear(8, 4)
    if flags.half:
        net.half()
    optimizer = torch.optim.Adam(net.parameters())
    scaler = torch.amp.GradScaler("cuda", enabled=not flags.half)
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", enabled=not flags.half):
            loss = F.cross_entropy(net(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
def main(flags):
    if flags.train:
        train(flags)
""",
    "contexts joined in a name": """
both = torch.autocast("cuda", torch.bfloat16) and torch.enable_grad()  # expect: GL216
use = torch.cuda.is_available() and torch.cuda.is_bf16_supported()
for x, y in loader:
    optimizer.zero_grad()
    with both:
        loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
""",
    "both precisions of trl's arguments, by one flag": """
from trl import SFTConfig
def arguments(half):
    return SFTConfig(output_dir="out", fp16=half, bf16=half)  # expect: GL812
def right(half):
    return SFTConfig(output_dir="out", fp16=half, bf16=not half)
""",
    "both precisions, by a constant": """
from transformers import TrainingArguments
HALF, NEVER = True, False
FP16 = True
OFF = False
arguments = TrainingArguments("out", fp16=FP16, bf16=True)  # expect: GL812
right = TrainingArguments("out", fp16=OFF, bf16=OFF)
""",
}


@pytest.mark.parametrize("name", CASES)
def test_marked_lines_are_found_and_no_other_fault(name, tmp_path):
    assert_faults(CASES[name], tmp_path)


LIST_IN_BF16 = """
from elsewhere import multiscale
wider = nn.Linear(8, 8)
def train(args, kind):
    scaler = torch.amp.GradScaler("cuda", enabled=args.bf16)
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype={other}):
            wide = wider(x)
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=args.bf16):{mark}
            out = model(wide)
        loss = multiscale([out.float(), *args.others], y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
"""


@pytest.mark.parametrize(("other", "mark"), [("torch.bfloat16", "  # expect: GL211"), ("kind", ""), ("torch.half", "")])
def test_a_scaler_for_a_loss_of_unknown_making_is_needed_unless_each_pass_is_in_bf16(other, mark, tmp_path):
    text = HEAD + LIST_IN_BF16.format(other=other, mark=mark)
    assert findings(text, tmp_path, "GL211") == expected(text)
