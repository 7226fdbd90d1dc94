"""Names of torch.cuda.amp replaced by those of torch.amp, which receive the device."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from gradlab.audit.finding import Finding
from gradlab.audit.fixes.source_lines import SourceLines

OLD, NEW = "torch.cuda.amp", "torch.amp"
KNOWN = ("autocast", "GradScaler", "custom_fwd", "custom_bwd")
Change = tuple[int, int, int, str]


def renamed(source: SourceLines, finding: Finding) -> Iterator[list[str]]:
    line, column = finding.line, source.offset(finding.line, finding.column)
    for node in ast.walk(source.tree):
        if (getattr(node, "lineno", 0), getattr(node, "col_offset", -1)) != (line, column):
            continue
        if isinstance(node, ast.ImportFrom):
            changes = imported(source, node)
        elif isinstance(node, ast.Attribute) and node.attr in KNOWN and ast.unparse(node.value) == OLD:
            changes = used(source, node, node.attr, parents(source.tree))
            if changes is not None and node.value.end_lineno == node.value.lineno == node.lineno:
                changes.append((line, column, node.value.end_col_offset or column, NEW))
            else:
                changes = None
        else:
            continue
        if changes:
            yield source.replaced(changes)
        return


def parents(tree: ast.AST) -> dict[ast.AST, ast.AST]:
    return {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}


def imported(source: SourceLines, node: ast.ImportFrom) -> list[Change] | None:
    """Changes of the import and of every use of its names; None where a use cannot be changed."""
    text = source.lines[node.lineno - 1]
    at = text.find(OLD)
    if at < 0 or any(alias.name not in KNOWN for alias in node.names):
        return None
    first = len(text[:at].encode())
    changes: list[Change] = [(node.lineno, first, first + len(OLD), NEW)]
    above = parents(source.tree)
    for alias in node.names:
        name = alias.asname or alias.name
        if bindings(source.tree, name) != 1:
            return None
        for part in ast.walk(source.tree):
            if isinstance(part, ast.Name) and part.id == name:
                more = used(source, part, alias.name, above)
                if more is None:
                    return None
                changes += more
    return changes


def bindings(tree: ast.AST, name: str) -> int:
    """How often a name is bound in the file."""
    found = 0
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            found += sum((alias.asname or alias.name.split(".")[0]) == name for alias in node.names)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found += node.name == name
        elif isinstance(node, ast.arg):
            found += node.arg == name
        elif isinstance(node, ast.Name):
            found += node.id == name and not isinstance(node.ctx, ast.Load)
    return found


def used(source: SourceLines, node: ast.expr, name: str, above: dict[ast.AST, ast.AST]) -> list[Change] | None:
    """The device added where a name is called; None where the use cannot be changed."""
    parent = above.get(node)
    end, last = node.end_lineno or node.lineno, node.end_col_offset or 0
    if isinstance(parent, ast.Call) and parent.func is node:
        if any(isinstance(a, ast.Starred) for a in parent.args) or any(k.arg is None for k in parent.keywords):
            return None
        if name == "autocast" and parent.args:
            return None  # its first argument is another one
        rest = source.lines[end - 1][source.column(end, last) :]
        if not rest.startswith("("):
            return None
        given = bool(parent.args or parent.keywords)
        device = 'device_type="cuda"' if name.startswith("custom") else '"cuda"'
        if name.startswith("custom") and given:
            return None if parent.args else [(end, last + 1, last + 1, f"{device}, ")]
        broken = given and not rest[1:].strip()  # the arguments begin on the next line
        return [(end, last + 1, last + 1, device + (("," if broken else ", ") if given else ""))]
    if name.startswith("custom") and getattr(parent, "decorator_list", None) and node in parent.decorator_list:  # type: ignore[union-attr]
        return [(end, last, last, '(device_type="cuda")')] if name == "custom_fwd" or name == "custom_bwd" else None
    if name == "GradScaler" and isinstance(parent, (ast.arg, ast.AnnAssign)) and parent.annotation is node:
        return []
    return None
