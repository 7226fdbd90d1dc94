"""Where losses are computed in half precision: autocast around the forward pass alone, a scaler with fp16."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import lru_cache

from gradlab.audit.rules import Hit, rule, uncertain
from gradlab.audit.rules.scaler import scaled
from gradlab.audit.source.project import INSTALLED, Module
from gradlab.audit.source.syntax import dotted, walk
from gradlab.audit.trace.conditions import TRUE
from gradlab.audit.trace.events import If
from gradlab.audit.trace.events import walk as tree_walk
from gradlab.audit.trace.scenarios import Run
from gradlab.audit.trace.values import Value


@rule("GL208")
def forward_outside(run: Run) -> Iterator[Hit]:
    for backward in run.of("backward"):
        if not (owner := scaled(backward)) or owner.kind != "scaler" or backward.event.value is None:
            continue
        event = backward.event.value.data.get("forward")
        model = event.value if event is not None else None
        if (
            event is None
            or model is None
            or model.data.get("half")
            or any(r.kind in ("autocast", "unknown") for r in event.regions)
        ):
            continue
        value = backward.event.value
        cast = [r for r in value.data.get("inside", ()) if r.kind == "autocast" and r.when == TRUE]
        if any(r.kind in ("autocast", "no_grad") for e in (event, *value.data.get("chain", ())) for r in e.regions):
            cast = []  # a teacher's, perhaps
        root = model.root().data
        elsewhere = event.data.get("casts") and root.get("made") and root.get("class") is None
        if known_plain(model) or cast or elsewhere:  # one that casts by itself needs no block around its loss alone
            for step in run.of("forward"):
                if step.event is event and step.k == backward.k:
                    yield Hit(step, (backward,))


def known_plain(model: Value) -> bool:
    """A model whose code was seen, and that of its parts, and has no autocast of its own."""
    root = model.root()
    if root.data.get("class") is None:
        return str(root.data.get("type", "")).startswith(("torch.nn.", "torchvision."))
    seen: set[ast.AST] = set()
    pairs = zip(root.data.get("lineage", []), root.data.get("modules", []))
    return all(plain(node, module, seen) for node, module in pairs)


def plain(node: ast.AST, module: Module, seen: set[ast.AST]) -> bool:
    seen.add(node)
    for part in walk(node):
        name = dotted(part.func if isinstance(part, ast.Call) else part)
        if name.endswith("autocast"):
            return False
        first = name.split(".")[0]
        inner = module.names.get(first)
        if inner is not None and inner not in seen and not plain(inner, module, seen):
            return False
        if isinstance(part, ast.Call) and inner is None and first in module.imports:
            source, level = module.imports[first]
            if level or source.split(".")[0] not in INSTALLED:
                return False  # a part that is in another file
    return True


@rule("GL209")
def backward_inside(run: Run) -> Iterator[Hit]:
    for backward in run.of("backward"):
        if (region := backward.inside("autocast")) is not None and region.data.get("through") is None:
            yield Hit(backward, region=region)


@rule("GL210")
def fp16_without_scaler(run: Run) -> Iterator[Hit]:
    if any(e.kind in ("unscale", "update") or e.data.get("scaler") for e in run.unit.events) or uncertain(
        run.unit, "scaler", "self"
    ):
        return
    if any(isinstance(item, If) and item.node is not None and scales(item.node) for item in tree_walk(run.unit.body)):
        return  # who calls this loop says whether there is a scaler
    for backward in run.of("backward"):
        value = backward.event.value
        if (
            value is None
            or value.data.get("scaled")
            or value.data.get("scaled_by")
            or backward.event.data.get("through")
        ):
            continue
        event = value.data.get("forward")
        for step in run.of("forward"):
            model = step.event.value
            if model is None or step.k != backward.k or step.event not in (event, *value.data.get("chain", ())):
                continue
            region = step.inside("autocast")
            cast = region is not None and half(region.data) and step.event is event
            whole = region is None and model.root().data.get("half") and trained(run, model, step.event is event)
            if cast or (whole and step.inside("no_grad") is None):
                yield Hit(backward, (step,), region=region)
                break


def trained(run: Run, model: Value, last: bool) -> bool:
    """Whether an optimizer of the loop updates a network; of the last one before the loss it may be assumed."""
    known = [root for optimizer in run.unit.optimizers() for root in optimizer.data.get("roots", [])]
    return last or any(root is model.root() for root in known)


@lru_cache(maxsize=2000)
def scales(node: ast.AST) -> bool:
    """A branch of which a side scales a loss."""
    return any(isinstance(part, ast.Call) and getattr(part.func, "attr", "") == "scale" for part in walk(node))


def half(data: dict) -> bool:
    """Whether an autocast block is surely in fp16: said, or the default on CUDA."""
    dtype = data.get("dtype", "")
    if data.get("through") is not None:
        return False
    if dtype:
        return dtype.split(".")[-1] in ("float16", "half")
    return data.get("device") == "cuda"


@rule("GL211")
def bf16_with_scaler(run: Run) -> Iterator[Hit]:
    for backward in run.of("backward"):
        if scaled(backward) and backward.event.value is not None:
            event = backward.event.value.data.get("forward")
            for region in event.regions if event is not None else backward.event.value.data.get("inside", ()):
                if region.kind == "autocast" and region.data.get("dtype", "").split(".")[-1] == "bfloat16":
                    yield Hit(backward)


@rule("GL212", on="text")
def deprecated(module: Module) -> Iterator[ast.AST]:
    if not re.search(r"cuda\.amp|cuda import .*amp", module.source.text):
        return
    nodes = module.source.nodes
    imports = [n for n in nodes.of(ast.ImportFrom) if n.module and not n.level]
    new = {a.name for n in imports if str(n.module).startswith("torch.amp") for a in n.names}
    new |= {n.attr for n in nodes.of(ast.Attribute) if dotted(n.value) == "torch.amp"}
    for old in imports:  # a file that knows the new name too keeps the old one for older versions
        if str(old.module).startswith("torch.cuda.amp") and not {a.name for a in old.names} & new:
            yield old
    short = {a.asname or a.name for n in imports if n.module == "torch.cuda" for a in n.names if a.name == "amp"}
    for node in nodes.of(ast.Attribute):
        if node.attr in ("autocast", "GradScaler", "custom_fwd", "custom_bwd"):
            if node.attr not in new and dotted(node.value) in {"torch.cuda.amp", "cuda.amp", *short}:
                yield node
    yield from (n for n in imports if n.module == "torch.cuda" and any(a.name == "amp" for a in n.names) and not new)
