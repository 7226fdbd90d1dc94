"""Statements moved to where they belong, or the missing one added there."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from gradlab.audit.finding import Finding
from gradlab.audit.fixes.source_lines import SIMPLE, Place, SourceLines, apart, called, read


def at(source: SourceLines, finding: Finding) -> list[Place]:
    """The statement of a finding and those around it; none where it shares its lines with another statement."""
    places = source.places(finding.line, source.offset(finding.line, finding.column))
    if not places:
        return []
    block, i = places[-1]
    return places if isinstance(block[i], SIMPLE) and source.alone(block[i]) else []


def scaler_step(source: SourceLines, node: ast.stmt) -> tuple[str, str] | None:
    """The texts of S and O where a statement is S.step(O)."""
    call = called(node, "step")
    if call is None or not isinstance(call.func, ast.Attribute) or len(call.args) != 1 or call.keywords:
        return None
    return source.segment(call.func.value), source.segment(call.args[0])


def clip_first(source: SourceLines, finding: Finding) -> Iterator[list[str]]:
    """The clip before the step; with a scaler, after an unscale_()."""
    for block, i in at(source, finding)[-1:]:
        for j in range(i - 1, -1, -1):
            if called(block[j], "step") is None or not source.alone(block[j]) or not apart(block[i], block[j:i]):
                continue
            yield source.moved(block[i], block[j].lineno)
            if (found := scaler_step(source, block[j])) is not None:
                yield source.moved(block[i], block[j].lineno, (f"{found[0]}.unscale_({found[1]})",))


def schedule_after(source: SourceLines, finding: Finding) -> Iterator[list[str]]:
    """The schedule's step after the optimizer's, where nothing in between reads the rate."""
    for block, i in at(source, finding)[-1:]:
        call = called(block[i], "step")
        owner = source.segment(call.func.value) if call and isinstance(call.func, ast.Attribute) else ""
        for j in range(i + 1, len(block)):
            node = block[j]
            if not apart(block[i], [node]) or not source.alone(node):
                return
            if any(
                name == owner or name.startswith(f"{owner}.") or "lr" in name or "param_groups" in name
                for name in read(node)
            ):
                return
            if called(node, "step") is not None:
                yield source.moved(block[i], (node.end_lineno or node.lineno) + 1)


def unscale_first(source: SourceLines, finding: Finding) -> Iterator[list[str]]:
    """The unscale_() that comes too late moved before the clip; else a new one, of the optimizer that steps next."""
    places = at(source, finding)
    for block, i in places[-1:]:
        clip = block[i]
        for j in range(i + 1, len(block)):
            if called(block[j], "unscale_") and source.alone(block[j]) and apart(block[j], block[i:j]):
                yield source.moved(block[j], clip.lineno)
        for outer, k in reversed(places):
            for node in outer[k + 1 :]:
                if (found := scaler_step(source, node)) is not None:
                    yield source.inserted(clip.lineno, clip, f"{found[0]}.unscale_({found[1]})")


def update_after(source: SourceLines, finding: Finding) -> Iterator[list[str]]:
    """update() after the last step() of the scaler in the block."""
    for block, i in at(source, finding)[-1:]:
        found = scaler_step(source, block[i])
        if found is None:
            return
        same = [n for n in block[i:] if (other := scaler_step(source, n)) and other[0] == found[0] and source.alone(n)]
        yield source.inserted((same[-1].end_lineno or same[-1].lineno) + 1, same[-1], f"{found[0]}.update()")


def detached(source: SourceLines, finding: Finding) -> Iterator[list[str]]:
    """What is kept, detached: it stays a tensor on its device, and nothing waits as .item() would."""
    for block, i in source.places(finding.line, source.offset(finding.line, finding.column))[-1:]:
        node = block[i]
        value = node.value if isinstance(node, ast.AugAssign) else None
        call = called(node, "append")
        if call is not None and len(call.args) == 1 and not call.keywords:
            value = call.args[0]
        if value is None or value.end_lineno is None or value.end_col_offset is None:
            return
        plain = isinstance(value, (ast.Name, ast.Attribute, ast.Call, ast.Subscript))
        around = source.lines[value.lineno - 1][: source.column(value.lineno, value.col_offset)].rstrip()
        if not plain and (value.lineno != value.end_lineno or (around.endswith("(") and call is None)):
            return  # it has brackets of its own, or several lines
        changes = [
            (value.end_lineno, value.end_col_offset, value.end_col_offset, ".detach()" if plain else ").detach()")
        ]
        yield source.replaced(changes if plain else [*changes, (value.lineno, value.col_offset, value.col_offset, "(")])
