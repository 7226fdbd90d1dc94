"""Weights in fp16 whose gradients a GradScaler is to unscale: it refuses them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from gradlab.audit.rules.registry import Hit, scenario_rule, text_rule
from gradlab.audit.rules.reporting import may_hold
from gradlab.audit.rules.trainer_arguments import trainers
from gradlab.audit.source.project import Module
from gradlab.audit.source.syntax import called_name, dotted
from gradlab.audit.trace.conditions import FALSE, TRUE, joined, literals
from gradlab.audit.trace.scenarios import Scenario

MASTER_WEIGHTS = re.compile(
    r"peft|lora|\.data\s*=\s*[^\n]*(float\(|float32)|cast_training_params|BitsAndBytes|load_in_[48]bit|param\.float\(",
    re.I,
)
"""What gives the trained weights a type of their own: adapters, quantization, a copy in fp32."""


@scenario_rule("GL215")
def fp16_weights_unscaled(scenario: Scenario) -> Iterator[Hit]:
    for step in scenario.of("unscale", "step"):
        optimizer, alternatives = step.event.value, step.event.scaler
        perhaps = alternatives.choice or ((TRUE, alternatives),) if alternatives is not None else ()
        scalers = [(when, one) for when, one in perhaps if one.kind == "scaler"]
        if len(scalers) != 1 or optimizer is None:
            continue
        exists, scaler = scalers[0]
        if scaler.call is None or "Shard" in scaler.maker:
            continue
        for chosen, one in optimizer.choice or ((TRUE, optimizer),):
            stepped = joined("and", [scaler.enabled, chosen])
            for when, model in (pair for held in one.trained for pair in ((TRUE, held), *held.choice)):
                half = joined("and", [when, model.root().half_when])
                there = {*literals(exists), *literals(stepped), *literals(one.made_when), *scenario.values.items()}
                always = half != FALSE and {*literals(half)} <= there
                if always and model.root().half_path == step.event.path and may_hold(scenario, stepped):
                    yield Hit(step, (), model.root().half, when=stepped)


@text_rule("GL215")
def fp16_weights_of_trainer(module: Module) -> Iterator[ast.AST]:
    """A model loaded in fp16 and given to a transformers Trainer with fp16=True."""
    if MASTER_WEIGHTS.search(module.source.text) or "from_pretrained" not in module.source.text:
        return
    calls = list(trainers(module))
    arguments = [c for c in calls if dotted(c.func).endswith("TrainingArguments")]
    if not arguments or not all(any(k.arg == "fp16" and is_true(k.value) for k in c.keywords) for c in arguments):
        return
    trained = {dotted(k.value) for c in calls for k in c.keywords if k.arg == "model"}
    trained |= {dotted(c.args[0]) for c in calls if c not in arguments and c.args}
    for node in module.source.nodes.of(ast.Assign):
        if called_name(node.value) == "from_pretrained" and dotted(node.targets[0]) in trained:
            assert isinstance(node.value, ast.Call)
            for k in node.value.keywords:
                if k.arg in ("torch_dtype", "dtype") and ast.unparse(k.value) in (
                    "torch.float16",
                    "torch.half",
                    "'float16'",
                ):
                    yield k.value


def is_true(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is True
