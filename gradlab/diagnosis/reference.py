"""The reference of all findings in Markdown, made from the rules themselves, in the order of causes."""

from __future__ import annotations

import ast
import inspect
import textwrap
from dataclasses import fields
from itertools import pairwise

from gradlab.diagnosis.options import DiagnosisOption, rule_classes
from gradlab.diagnosis.rules.rule import Rule

NEEDS = {
    "long": "a run of at least two windows (`diagnosis.window`)",
    "layers": "the gradient norms of layers (`monitor=summary`)",
    "steps": "how far the weights move (`monitor.step_every`)",
    "inspection": "an inspection of the final model, which only a completed run gets",
}


def reference() -> str:
    """A section for each rule: what is measured, thresholds with their defaults, likely causes, what to do."""
    shared = ["## Thresholds that all rules share", *table(DiagnosisOption, "diagnosis")]
    return "\n".join([*shared, *(line for cls in rule_classes() for line in section(cls))]) + "\n"


def section(cls: type[Rule]) -> list[str]:
    """Lines on one rule."""
    title, *rest = paragraphs(cls)
    lines = ["", f"## `{cls.code}`", "", title, *rest]
    if cls.aside:
        lines += ["", "For information: never the verdict of a run."]
    if cls.fallback:
        lines += ["", "Reported only where no other rule found something critical."]
    if cls.needs:
        lines += ["", f"Needs {' and '.join(NEEDS[need] for need in cls.needs)}."]
    if fields(cls):
        lines += table(cls, f"diagnosis.{cls.code}")
    if cls.causes:
        lines += ["", "Likely causes:", "", *(f"- {cause}" for cause in cls.causes)]
    if cls.fixes:
        lines += ["", "What to do:", "", *(f"- {fix}" for fix in cls.fixes)]
    return lines


def paragraphs(cls: type) -> list[str]:
    """The docstring's paragraphs, a line each with empty ones between."""
    text = inspect.cleandoc(cls.__doc__ or "")
    return [" ".join(paragraph.split()) for paragraph in text.replace("\n\n", "\n\n\n\n").split("\n\n")]


def table(cls: type, prefix: str) -> list[str]:
    """The thresholds of a dataclass."""
    descriptions = documented(cls)
    rows = [f"| `{prefix}.{f.name}` | {f.default:g} | {descriptions.get(f.name, '')} |" for f in fields(cls)]
    return ["", "| threshold | default | meaning |", "|---|---|---|", *rows]


def documented(cls: type) -> dict[str, str]:
    """The sentence under each field of a dataclass and of its bases."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__[:-1]):
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        body = tree.body if isinstance(tree, ast.ClassDef) else []
        for pair in pairwise(body):
            match pair:
                case (ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=text))):
                    found[name] = " ".join(str(text).split())
    return found
