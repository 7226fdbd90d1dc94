"""What the docstrings of a dataclass say: of itself, and under each of its fields."""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
from itertools import pairwise


def paragraphs(cls: type) -> list[str]:
    """The docstring's paragraphs, a line each with empty ones between."""
    text = inspect.cleandoc(cls.__doc__ or "")
    return [" ".join(paragraph.split()) for paragraph in text.replace("\n\n", "\n\n\n\n").split("\n\n")]


def documented(cls: type) -> dict[str, str]:
    """The sentence under each field of a dataclass and of its bases."""
    return {name: text for base in reversed(cls.__mro__[:-1]) for name, text in _of_its_own(base).items()}


@functools.cache
def _of_its_own(cls: type) -> dict[str, str]:
    """The sentences in the text of a class."""
    try:
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    except (OSError, TypeError):  # no source: made by a function
        return {}
    found: dict[str, str] = {}
    for pair in pairwise(tree.body if isinstance(tree, ast.ClassDef) else []):
        match pair:
            case (ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=text))):
                found[name] = " ".join(str(text).split())
    return found
