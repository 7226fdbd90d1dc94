"""Recurrent networks of classes that are not seen, which are named after what they are."""

from __future__ import annotations

import pytest
from audited_snippets import findings

TEXT = """
import torch
import model
from settings import args, loader, criterion
model = model.{made}(args.kind, args.size)
if args.resume:
    with open(args.resume, "rb") as f:
        model = torch.load(f)
optimizer = torch.optim.SGD(model.parameters(), lr=30)
def train():
    hidden = model.init_hidden(args.size)
    for x, y in loader:
        hidden = hidden.detach()
        optimizer.zero_grad()
        out, hidden = model(x, hidden)
        criterion(out, y).backward()
        {clip}
        optimizer.step()
train()
"""
CLIP = "torch.nn.utils.clip_grad_norm_(model.parameters(), 1)"


@pytest.mark.parametrize(
    ("made", "clip", "found"),
    [
        ("RNNModel", "", {(18, "GL803")}),
        ("CharLSTM", "", {(18, "GL803")}),
        ("RNNModel", CLIP, set()),
        ("ConvModel", "", set()),
        ("MaskRCNN", "", set()),
    ],
)
def test_a_recurrent_network_is_clipped(made, clip, found, tmp_path):
    assert findings(TEXT.replace("{made}", made).replace("{clip}", clip), tmp_path, "GL803") == found
