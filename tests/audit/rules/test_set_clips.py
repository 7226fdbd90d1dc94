"""Bounds of clips that are a setting: the text gives the number where it is parsed, or as a default."""

from __future__ import annotations

import pytest
from audited_snippets import HEAD, audited

PARSED = """
import argparse
from dataclasses import dataclass
def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--grad-clip", type=float, default={bound})
    return parser.parse_args()
@dataclass
class Settings:
    clip: float = {bound}
"""
LOOP = """
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), {clip})
            optimizer.step()
"""
CASES = {
    "given to a function": ("def train(clip):\n    if True:" + LOOP, "clip", "train(parse().grad_clip)"),
    "of what parses": ("def train(args):\n    if True:" + LOOP, "max_norm=args.grad_clip", "train(parse())"),
    "kept by an object": (
        "class Trainer:\n    def __init__(self, args):\n        self.clip = args.grad_clip\n    def fit(self):" + LOOP,
        "self.clip",
        "Trainer(parse()).fit()",
    ),
    "a constant": ("CLIP = {bound}\ndef train():\n    if True:" + LOOP, "CLIP", "train()"),
    "a field": ("def train(settings):\n    if True:" + LOOP, "settings.clip", "train(Settings())"),
    "a field of a class that nothing makes": ("def train(own: Settings):\n    if True:" + LOOP, "own.clip", ""),
    "a field of a class that is filled by a call": (
        "import tyro\nown = tyro.cli(Settings)\nif True:\n    if True:" + LOOP,
        "own.clip",
        "",
    ),
    "a default": ("def train(clip={bound}):\n    if True:" + LOOP, "clip", "train()"),
    "a default of what nothing calls": ("def train(clip={bound}):\n    if True:" + LOOP, "clip", ""),
}


@pytest.mark.parametrize("bound", ["1e-4", "1.0"])
@pytest.mark.parametrize("name", CASES)
def test_the_bound_of_a_clip_is_a_setting(name, bound, tmp_path):
    text, clip, call = CASES[name]
    text = HEAD + PARSED.format(bound=bound) + text.format(bound=bound, clip=clip) + "\n" + call
    (tmp_path / "a.py").write_text(text)
    line = next(i for i, one in enumerate(text.split("\n"), 1) if "clip_grad_norm_(" in one)
    assert [f.line for f in audited(tmp_path / "a.py", "GL802")] == [line] * (bound == "1e-4")


@pytest.mark.parametrize("change", ["args.grad_clip = 1.0", "args.grad_clip = 1e-4 if args.tight else 1.0"])
def test_a_setting_that_the_program_sets_is_not_its_default(change, tmp_path):
    text = f"def train(args):\n    {change}\n    if True:" + LOOP.format(clip="args.grad_clip") + "\ntrain(parse())"
    (tmp_path / "a.py").write_text(HEAD + PARSED.format(bound="1e-4") + text)
    assert audited(tmp_path / "a.py", "GL802") == []


@pytest.mark.parametrize("bound", ["1.0", "0.0", "-1"])
def test_a_default_that_turns_clipping_off_is_not_tight(bound, tmp_path):
    text = HEAD + PARSED.format(bound=bound) + "from torchvision.models import resnet50\nmodel = resnet50()\n"
    text += "def train(args):\n    if args.grad_clip > 0:" + LOOP.format(clip="args.grad_clip") + "\ntrain(parse())"
    (tmp_path / "a.py").write_text(text)
    assert len(audited(tmp_path / "a.py", "GL804")) == (bound == "1.0")


@pytest.mark.parametrize(
    "network", ["PreActResNet18()", "models.resnet20()", "timm.create_model('resnet50')", "Mixer()"]
)
def test_the_name_of_a_class_that_is_not_seen_says_what_is_clipped(network, tmp_path):
    text = HEAD + f"import models, timm\nfrom nets import PreActResNet18, Mixer\nmodel = {network}.cuda()\n"
    text += "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\nif True:\n    while True:"
    (tmp_path / "a.py").write_text(text + LOOP.format(clip="0.5").replace("        ", "            "))
    assert len(audited(tmp_path / "a.py", "GL804")) == (network != "Mixer()")


CLIPS = {
    "Accelerator()": "by.clip_grad_norm_(model.parameters(), {bound})",
    "Fabric()": "by.clip_gradients(model, optimizer, max_norm={bound})",
}


@pytest.mark.parametrize("bound", ["1e-4", "1.0"])
@pytest.mark.parametrize("by", CLIPS)
def test_the_bound_of_a_clip_that_a_framework_does(by, bound, tmp_path):
    text = HEAD + f"from accelerate import Accelerator\nfrom lightning import Fabric\nby = {by}\n"
    text += (
        "model, optimizer = by."
        + ("setup" if "Fabric" in by else "prepare")
        + "(model, optimizer)\nfor x, y in loader:\n    optimizer.zero_grad()\n"
    )
    text += (
        "    by.backward(F.cross_entropy(model(x), y))\n    " + CLIPS[by].format(bound=bound) + "\n    optimizer.step()"
    )
    (tmp_path / "a.py").write_text(text)
    assert len(audited(tmp_path / "a.py", "GL802")) == (bound == "1e-4")
