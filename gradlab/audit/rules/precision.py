"""Where losses are computed in half precision: autocast around the forward pass alone, a scaler with fp16."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import lru_cache

from gradlab.audit.rules.registry import Hit, scenario_rule, text_rule
from gradlab.audit.rules.reporting import uncertain, within
from gradlab.audit.rules.scaler import scaler_of
from gradlab.audit.source.project import INSTALLED, Definition, Module
from gradlab.audit.source.syntax import dotted, walk
from gradlab.audit.trace.conditions import TRUE, atoms, may_both_hold
from gradlab.audit.trace.event_tree import If
from gradlab.audit.trace.event_tree import walk as walk_events
from gradlab.audit.trace.replay import Occurrence
from gradlab.audit.trace.scenarios import Scenario
from gradlab.audit.trace.training_loop import differentiable
from gradlab.audit.trace.values import Event, Region, Value

ZOOS = {"torchvision", "timm", "transformers", "diffusers", "segmentation_models_pytorch"}
"""Packages whose networks leave it to the caller to cast."""


@scenario_rule("GL208")
def forward_outside_autocast(scenario: Scenario) -> Iterator[Hit]:
    for backward in scenario.of("backward"):
        loss, scaler = backward.event.value, scaler_of(backward)
        event = last_forward(scenario, backward)
        if scaler is None or scaler.kind != "scaler" or loss is None or event is None or event.value is None:
            continue
        model = event.value
        off = switched_off(event.regions, scaler)
        cast = any(r.kind == "autocast" and r.when in (TRUE, scaler.enabled) for r in loss.inside)
        bars = [r for r in backward.event.regions if cast and r.kind == "unknown"]  # of progress
        around = [r for r in event.regions if r not in bars]
        if model.half or (not off and any(r.kind in ("autocast", "unknown") for r in around)):
            continue
        if not off and any(r.kind in ("autocast", "no_grad") for e in (event, *loss.chain) for r in e.regions):
            cast = False  # a teacher's, perhaps
        off = off and not any(e.regions and not switched_off(e.regions, scaler) for e in loss.chain)
        itself = casts_itself(model)
        whole = not model.root().made and loss.source == "model"  # one that is handed in and computes its loss
        elsewhere = event.casts and not itself and not whole and all(r.kind != "autocast" for r in loss.inside)
        # one that casts by itself needs no block around its loss alone
        if off or cast or itself is False or elsewhere:
            for step in scenario.of("forward"):
                if (step.event is event or (off and step.event in loss.chain)) and step.k == backward.k:
                    yield Hit(step, (backward,), *within(scenario.loop, step.event))


def last_forward(scenario: Scenario, backward: Occurrence) -> Event | None:
    """The last forward pass that a loss comes from; of several branches' of one network the one that happens."""
    loss = backward.event.value
    if loss is None or loss.forward is None:
        return None
    same = [e for e in (loss.forward, *loss.chain) if e.value is loss.forward.value]
    happened = {id(s.event) for s in scenario.of("forward") if s.k == backward.k}
    return next((e for e in same if id(e) in happened), loss.forward)


def switched_off(regions: tuple[Region, ...], scaler: Value) -> bool:
    """Whether autocast(enabled=False) is around a forward pass, and no autocast that is on where the scaler is."""
    found = [r.when for r in regions if r.kind in ("autocast", "unknown")]
    return bool(found) and not any(may_both_hold(when, scaler.enabled) for when in found)


def casts_itself(model: Value) -> bool | None:
    """Whether a model, or a part of it, has an autocast of its own; None where not all of its code was seen."""
    root = model.root()
    if not root.lineage:
        return False if root.maker.split(".")[0] in ZOOS or root.maker.startswith("torch.nn.") else None
    return any_uses_autocast(root.lineage, root.modules)


@lru_cache(maxsize=200)
def any_uses_autocast(lineage: tuple[ast.ClassDef, ...], modules: tuple[Module, ...]) -> bool | None:
    seen: set[ast.AST] = set()
    answers = [uses_autocast(node, module, seen) for node, module in zip(lineage, modules)]
    return True if True in answers else None if None in answers else False


def uses_autocast(node: ast.AST, module: Module, seen: set[ast.AST]) -> bool | None:
    """Whether a definition, or one that it names, uses autocast; None where it calls what is not seen."""
    seen.add(node)
    unseen = False
    for part in walk(node):
        name = dotted(part.func if isinstance(part, ast.Call) else part)
        if name.endswith("autocast"):
            return True
        first = name.split(".")[0]
        inner: tuple[Module, Definition] | None = None
        if first in module.names:
            inner = module, module.names[first]
        elif isinstance(part, ast.Call) and first in module.imports:
            source, level = module.imports[first]
            if level or source.split(".")[0] not in INSTALLED:
                inner = module.definition(name)
                unseen |= inner is None
        if inner is not None and inner[1] not in seen:
            answer = uses_autocast(inner[1], inner[0], seen)
            if answer:
                return True
            unseen |= answer is None
    return None if unseen else False


@scenario_rule("GL209")
def backward_inside_autocast(scenario: Scenario) -> Iterator[Hit]:
    for backward in scenario.of("backward"):
        region = backward.inside("autocast")
        if region is not None:
            yield Hit(backward, region=region)


@scenario_rule("GL210")
def fp16_without_scaler(scenario: Scenario) -> Iterator[Hit]:
    loop = scenario.loop
    if any(e.kind in ("unscale", "update") or e.scaler for e in loop.events) or uncertain(
        loop, "scaler", "self", scenario=scenario
    ):
        return
    branches = (item.node for item in walk_events(loop.body) if isinstance(item, If))
    if any(node is not None and calls_scale(node) for node in branches):
        return  # the caller of this loop decides whether there is a scaler
    for backward in scenario.of("backward"):
        loss = backward.event.value
        if loss is None or loss.scaled or loss.apex or backward.event.through:
            continue
        forward = next((s for s in scenario.of("forward") if in_fp16(scenario, s, backward, loss)), None)
        if forward is not None:
            yield Hit(backward, (forward,), region=forward.inside("autocast"))
        elif loss.forward is None and not loss.chain and not loss.choice:  # what computes it is not seen
            inside = (r for r in loss.inside if r.kind == "autocast" and casts_to_fp16(r))
            yield from (Hit(backward, region=region) for region in inside)


def in_fp16(scenario: Scenario, forward: Occurrence, backward: Occurrence, loss: Value) -> bool:
    """Whether a forward pass that a loss comes from is in fp16, by autocast or because the network is."""
    model, event = forward.event.value, forward.event
    if model is None or forward.k != backward.k or event not in (loss.forward, *loss.chain):
        return False
    region, last = forward.inside("autocast"), event is last_forward(scenario, backward)
    if region is not None:
        return casts_to_fp16(region) and last
    if any(not positive and SWITCH.search(key) for key, positive in backward.guards):
        return False  # `if fp16: ... else:`
    return bool(model.root().half) and last and forward.inside("no_grad") is None


@lru_cache(maxsize=2000)
def calls_scale(node: ast.AST) -> bool:
    """A branch of which one side scales a loss."""
    return any(isinstance(part, ast.Call) and getattr(part.func, "attr", "") == "scale" for part in walk(node))


def casts_to_fp16(region: Region) -> bool:
    """Whether an autocast block is surely in fp16: written so, or the default on CUDA."""
    context = region.context
    if context is None or context.through is not None:
        return False
    if context.dtype:
        return re.fullmatch(r"[\w.]*\b(float16|half)", context.dtype) is not None
    return context.device == "cuda"


SWITCH = re.compile(r"float_?16|fp_?16|half", re.I)
"""A switch of half precision."""
HALF = re.compile(r"Compare.*\b(float_?16|fp_?16|half)\b", re.I)
"""What a scaler's switch says that is on in float16 alone."""


@scenario_rule("GL211")
def bf16_with_scaler(scenario: Scenario) -> Iterator[Hit]:
    for backward in scenario.of("backward"):
        loss, scaler = backward.event.value, scaler_of(backward)
        if loss is None or scaler is None or any(HALF.search(atom.key) for atom in atoms(scaler.enabled)):
            continue
        if (region := in_bf16(scenario, backward, loss)) is not None:
            here = loss.forward is None or loss.forward.path == backward.event.path
            yield Hit(backward, node=region.node if here else None)


def in_bf16(scenario: Scenario, backward: Occurrence, loss: Value) -> Region | None:
    """The autocast block of a loss's forward pass in bfloat16, or of each where it is not known which the loss has."""
    regions = [loss.forward.regions] if loss.forward is not None else [loss.inside]
    if loss.forward is None and all(region.kind != "autocast" for region in loss.inside):
        passes = [step.event for step in scenario.before(backward) if step.kind == "forward" and step.k == backward.k]
        regions = [event.regions for event in passes if differentiable(event)]
    found = [next((region for region in each if casts_to_bf16(region)), None) for each in regions]
    return found[-1] if found and all(found) else None


def casts_to_bf16(region: Region) -> bool:
    """Whether an autocast block is in bfloat16, as it is written."""
    dtype = region.context.dtype if region.kind == "autocast" and region.context is not None else ""
    return re.fullmatch(r"[\w.]*\bbfloat16", dtype) is not None


@text_rule("GL212")
def deprecated_amp(module: Module) -> Iterator[ast.AST]:
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
    short |= {a.asname for n in nodes.of(ast.Import) for a in n.names if a.name == "torch.cuda.amp" and a.asname}
    for node in nodes.of(ast.Attribute):
        if node.attr in ("autocast", "GradScaler", "custom_fwd", "custom_bwd"):
            if node.attr not in new and dotted(node.value) in {"torch.cuda.amp", "cuda.amp", *short}:
                yield node
    yield from (n for n in imports if n.module == "torch.cuda" and any(a.name == "amp" for a in n.names) and not new)
