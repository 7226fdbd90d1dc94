"""What a page calls the numbers in the evidence: words of its own, unless the number's name says what it is."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import gradlab.diagnosis
from gradlab.report import pages

PLAIN = {
    *("failure", "kind", "layer", "module", "operation", "outputs", "targets", "parameter", "parameters", "samples"),
    *("terms", "scale", "smallest_scale", "usual_loss", "usual_norm", "largest_grad_norm", "loss_of_constant_answer"),
}
SETS = ("evidence", "seen", "numbers")


def names(tree: ast.AST) -> Iterator[str]:
    """Of numbers that a rule puts into the evidence of what it finds."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "found":
            yield from (k.arg for k in node.keywords if k.arg)
        elif isinstance(node, ast.Subscript) and called(node.value) in SETS and isinstance(node.slice, ast.Constant):
            yield node.slice.value
        elif isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign) and node.value is not None:
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            made = [n for n in ast.walk(node.value) if isinstance(n, ast.Dict)] if called(target) in SETS else []
            yield from (k.value for each in made for k in each.keys if isinstance(k, ast.Constant))


def called(node: ast.AST) -> str:
    return getattr(node, "attr", getattr(node, "id", ""))


def test_every_number_of_the_evidence_has_words_on_the_page() -> None:
    script = (Path(pages.__file__).parent / "assets" / "parts.js").read_text()
    table = script[script.index("const EVIDENCE") :].partition("};")[0]
    worded = {name.split(" ")[-1] for name in re.findall(r'^    "?([\w ]+?)"?: "', table, re.MULTILINE)}
    rules = Path(gradlab.diagnosis.__file__).parent
    files = [*(rules / "rules").glob("*.py"), rules / "diagnose.py", rules / "causes.py"]
    found = {name for file in files for name in names(ast.parse(file.read_text()))}
    assert len(found) > 60 and found - worded == PLAIN
