"""Names, functions and helpers do not matter: a rewritten script has the same findings."""

from __future__ import annotations

import ast
import builtins
from pathlib import Path

import pytest
from audited_snippets import audited, audited_script

NO_LOOP = ("losses", "methods", "lightning_manual", "timm", "deprecated", "epochs", "flags", "rl", "nano")
SCRIPTS = sorted(p for folder in ("wrong", "right") for p in (Path(__file__).parent / folder).glob("*.py"))
LOOPS = [
    p for p in SCRIPTS if p.stem not in NO_LOOP and any(isinstance(n, ast.For) for n in ast.parse(p.read_text()).body)
]


def same_codes(tree: ast.Module, path: Path, folder: Path) -> bool:
    """Whether a rewritten script has the same findings as the script."""
    (folder / "a.py").write_text(ast.unparse(ast.fix_missing_locations(tree)))
    before, after = audited_script(f"{path.parent.name}/{path.name}"), audited(folder / "a.py")
    return sorted(f.code for f in before) == sorted(f.code for f in after)


class Renamed(ast.NodeTransformer):
    """Every name that the script binds itself is another."""

    def __init__(self, tree: ast.Module):
        bound = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        self.names = {name: f"v{i}" for i, name in enumerate(sorted(bound)) if not hasattr(builtins, name)}

    def visit_Name(self, node: ast.Name) -> ast.Name:
        return ast.Name(self.names.get(node.id, node.id), node.ctx)


def loop_at(tree: ast.Module) -> int:
    return next(i for i, node in enumerate(tree.body) if isinstance(node, ast.For))


@pytest.mark.parametrize("path", LOOPS, ids=lambda p: f"{p.parent.name}-{p.stem}")
def test_renaming_changes_no_finding(path, tmp_path):
    tree = ast.parse(path.read_text())
    assert same_codes(Renamed(tree).visit(tree), path, tmp_path)


@pytest.mark.parametrize("path", LOOPS, ids=lambda p: f"{p.parent.name}-{p.stem}")
def test_a_loop_moved_into_a_function_has_the_same_findings(path, tmp_path):
    tree = ast.parse(path.read_text())
    at = loop_at(tree)
    moved = ast.parse("def main():\n    pass\nmain()").body
    moved[0].body = tree.body[at:]  # type: ignore[attr-defined]
    tree.body[at:] = moved
    assert same_codes(tree, path, tmp_path)


@pytest.mark.parametrize("path", LOOPS, ids=lambda p: f"{p.parent.name}-{p.stem}")
def test_calls_moved_into_helpers_have_the_same_findings(path, tmp_path):
    """Each call that is a statement of its own becomes a function of its names."""
    tree = ast.parse(path.read_text())
    bound = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    helpers: list[ast.stmt] = []

    class Moved(ast.NodeTransformer):
        def visit_Expr(self, node: ast.Expr) -> ast.Expr:
            names = sorted({n.id for n in ast.walk(node) if isinstance(n, ast.Name)} & bound)
            name = f"helper{len(helpers)}"
            helper = ast.parse(f"def {name}({', '.join(names)}):\n    pass").body[0]
            helper.body = [node]  # type: ignore[attr-defined]
            helpers.append(helper)
            return ast.parse(f"{name}({', '.join(names)})").body[0]  # type: ignore[return-value]

    at = loop_at(tree)
    after = [Moved().visit(node) for node in tree.body[at:]]
    tree.body[at:] = [*helpers, *after]
    assert same_codes(tree, path, tmp_path)
