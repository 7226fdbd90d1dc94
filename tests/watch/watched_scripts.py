"""Runs the scripts of the audit's tests under a watch."""

import ast
import re
from pathlib import Path

from torch import nn

import gradlab

AUDITED = Path(__file__).parents[1] / "audit"


def play(path, folder, **given):
    """Run a script with its loop in a watch; returns the watch, and the error that PyTorch raised."""
    text = path.read_text().replace('"cuda"', '"cpu"')
    text = text.replace('torch.distributed.init_process_group("gloo")', "pass")  # it is initialized already
    body = ast.parse(text).body
    first = next(i for i, node in enumerate(body) if isinstance(node, (ast.For, ast.While)))
    names = {"__name__": "__main__"}
    exec(compile(ast.Module(body[:first], []), str(path), "exec"), names)
    if path.stem == "live_lock":
        names["scaler"].load_state_dict(names["scaler"].state_dict() | {"scale": 2.0**40})
    found = [m for m in names.values() if isinstance(m, nn.Module) and any(True for _ in m.parameters())]
    inner = [m.module for m in found if hasattr(m, "require_backward_grad_sync")]
    models = [m for m in found if not any(m is i for i in inner)]
    raised = None
    with gradlab.watch(models, folder=folder, quiet=True, **given) as watch:
        try:
            exec(compile(ast.Module(body[first:], []), str(path), "exec"), names)
        except (RuntimeError, AssertionError) as error:
            raised = error
    return watch, raised


def expected(path):
    """Line and code of each mistake that the audit is to find."""
    lines = enumerate(path.read_text().split("\n"), 1)
    return {(i, code) for i, line in lines if (m := re.search(r"# expect: (.*)", line)) for code in m[1].split(", ")}


def reported(watch):
    return {(fault.site[1], fault.code) for fault in watch.faults}


def distributed(path):
    return "init_process_group" in path.read_text()


def playable(path):
    """Whether it has a loop at its top level, and needs no other package than PyTorch."""
    text = path.read_text()
    loops = any(isinstance(node, (ast.For, ast.While)) for node in ast.parse(text).body)
    others = re.search(r"^(from|import) (apex|mymodel|timm|accelerate|lightning|transformers|torchvision)", text, re.M)
    return loops and not others and path.stem != "no_clip"  # its loss does not fit its model
