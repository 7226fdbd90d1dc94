"""The reference of all findings in Markdown, made from the rules themselves, in the order of causes."""

from __future__ import annotations

from dataclasses import fields

from gradlab.base.docstrings import documented, paragraphs
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


def table(cls: type, prefix: str) -> list[str]:
    """The thresholds of a dataclass."""
    descriptions = documented(cls)
    rows = [f"| `{prefix}.{f.name}` | {f.default:g} | {descriptions.get(f.name, '')} |" for f in fields(cls)]
    return ["", "| threshold | default | meaning |", "|---|---|---|", *rows]
