"""What clipping leaves of layers is said of a loop that clips the whole gradient by one number, and of no other."""

import json

import pytest
import torch
from torch.nn.utils import clip_grad_norm_, clip_grad_value_

import gradlab

CLIPS = {
    "whole": lambda model: clip_grad_norm_(model.parameters(), 1e-2),
    "each": lambda model: [clip_grad_norm_(layer.parameters(), 1e-2) for layer in model],
    "value": lambda model: clip_grad_value_(model.parameters(), 1e-3),
}


@pytest.mark.parametrize("clip", CLIPS)
def test_layers_are_starved_by_clipping_of_the_whole_alone(clip, tmp_path):
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(8, 8, bias=False) for _ in range(4)))
    with torch.no_grad():
        model[1].weight *= 1e-4  # its gradient is as much larger
    optimizer = torch.optim.SGD(model.parameters(), 1e-2)
    with gradlab.watch(model, optimizer, quiet=True, folder=tmp_path / "run") as watch:
        for _ in range(60):
            x = torch.randn(16, 8)
            optimizer.zero_grad()
            (1e3 * (model(x) - torch.randn(16, 8)).square().mean()).backward()
            CLIPS[clip](model)
            optimizer.step()
    found = json.loads((watch.folder / "diagnosis.json").read_text())["findings"]
    severe = [f for f in found if f["code"] == "dominant_layer" and f["severity"] != "info"]
    assert bool(severe) == (clip == "whole")
