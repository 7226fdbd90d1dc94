"""Print the import circles between the files of gradlab, imports in functions and for types included; exit 1 if any.

python .ci/import_circles.py
"""

from __future__ import annotations

import sys

import grimp


def circles(imports: dict[str, set[str]]) -> list[list[str]]:
    """The strongly connected components of more than one module (Tarjan's algorithm)."""
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(module: str) -> None:
        number[module] = lowest[module] = len(number)
        stack.append(module)
        for other in imports[module]:
            if other not in number:
                visit(other)
            if other in stack:
                lowest[module] = min(lowest[module], lowest[other])
        if lowest[module] == number[module]:
            at = stack.index(module)
            found.append(sorted(stack[at:]))
            del stack[at:]

    for module in imports:
        if module not in number:
            visit(module)
    return [circle for circle in found if len(circle) > 1]


def main() -> int:
    graph = grimp.build_graph("gradlab")
    sys.setrecursionlimit(10 * len(graph.modules))
    found = circles({module: graph.find_modules_directly_imported_by(module) for module in sorted(graph.modules)})
    for circle in found:
        print(f"{len(circle)} files import each other: {', '.join(circle)}")
    print(f"{len(found)} import circles between {len(graph.modules)} files")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
