"""What the docstrings of a dataclass say: of itself, and under each of its fields."""

from __future__ import annotations

import ast
import inspect
import textwrap
from itertools import pairwise


def paragraphs(cls: type) -> list[str]:
    """The docstring's paragraphs, a line each with empty ones between."""
    text = inspect.cleandoc(cls.__doc__ or "")
    return [" ".join(paragraph.split()) for paragraph in text.replace("\n\n", "\n\n\n\n").split("\n\n")]


def documented(cls: type) -> dict[str, str]:
    """The sentence under each field of a dataclass and of its bases."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__[:-1]):
        try:
            (tree,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        except (OSError, TypeError):  # no source: made by a function
            continue
        body = tree.body if isinstance(tree, ast.ClassDef) else []
        for pair in pairwise(body):
            match pair:
                case (ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=text))):
                    found[name] = " ".join(str(text).split())
    return found
