"""Clipping in what a trainer calls, too late or too early: its callbacks, and the hooks of a module."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from gradlab.audit.knowledge.known_names import CLIPS, HUGGING_FACE
from gradlab.audit.rules.registry import text_rule
from gradlab.audit.source.project import Module
from gradlab.audit.source.syntax import dotted, text, walk

HOOKS = {
    "transformers": {
        "compute_loss": "GL102",
        "on_optimizer_step": "GL101",
        "on_step_end": "GL101",
        "on_substep_end": "GL304",
    },
    "lightning": {
        "training_step": "GL102",
        "on_train_batch_end": "GL101",
        "on_before_zero_grad": "GL101",
        "on_before_backward": "GL102",
    },
    "fastai": {"after_step": "GL101", "after_loss": "GL102", "before_backward": "GL102"},
}
"""Package -> method of its callbacks -> the mistake that clipping there is."""


@text_rule("GL101")
def too_late(module: Module) -> Iterator[ast.AST]:
    yield from clips(module, "GL101")


@text_rule("GL102")
def too_early(module: Module) -> Iterator[ast.AST]:
    """Lightning calls backward() when training_step() has returned, unless the module optimizes by itself."""
    yield from clips(module, "GL102")


@text_rule("GL304")
def partial(module: Module) -> Iterator[ast.AST]:
    yield from clips(module, "GL304")


def clips(module: Module, code: str) -> Iterator[ast.AST]:
    """Calls that clip in a method in which that is the mistake `code`; a method that steps itself is left out."""
    source = module.source.text
    if not re.search("allback|Lightning|Trainer", source):
        return
    for owner in module.source.nodes.of(ast.ClassDef):
        package = package_of(owner, source)
        manual = {getattr(n, "attr", "") for n in walk(owner)} & {"automatic_optimization", "manual_backward"}
        for method in owner.body if package and not manual else ():
            if isinstance(method, ast.FunctionDef) and HOOKS[package].get(method.name) == code:
                calls = [n for n in walk(method) if isinstance(n, ast.Call)]
                names = [dotted(n.func).split(".")[-1] for n in calls]
                if not {"step", "backward"} & set(names):
                    yield from (n for n, name in zip(calls, names, strict=True) if name in CLIPS and bounded(n))


def package_of(owner: ast.ClassDef, source: str) -> str:
    """The package whose callback a class is, by its bases and what the file imports; "" for other classes."""
    for base in owner.bases:
        name = dotted(base).split(".")[-1]
        if name == "TrainerCallback" or (name.endswith("Trainer") and HUGGING_FACE.search(source)):
            return "transformers"
        if "Lightning" in name:
            return "lightning"
        if name == "Callback":
            found = re.search(r"^\s*(?:from|import)\b[^#\n]*\b(?:pytorch_)?(fastai|lightning)\b", source, re.M)
            return found[1] if found is not None else ""
    return ""


def bounded(call: ast.Call) -> bool:
    """Whether a clip changes anything: with a bound of infinity it only measures."""
    given = [k.value for k in call.keywords if k.arg in ("max_norm", "clip_value")] or call.args[1:2]
    return not any(re.search(r"\binf", text(value)) for value in given)
