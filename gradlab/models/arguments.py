"""How inputs that are no single tensor become the arguments of a model's forward()."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any


class Arguments:
    """A hook before forward(): a mapping becomes the keywords that it has, a tuple positional arguments.

    Where it has none of the keywords, the mapping's only value is passed, or else the mapping itself; a tuple is passed
    as one argument where forward() takes only one.
    """

    def __init__(self, model: Any) -> None:
        found = inspect.signature(model.forward).parameters.values()
        self.names = {p.name for p in found if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
        self.any_keyword = any(p.kind == p.VAR_KEYWORD for p in found)
        positional = (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) if (p := next(iter(found), None)) else ()
        self.several = len([p for p in found if p.kind in positional]) > 1
        self.several |= any(p.kind == p.VAR_POSITIONAL for p in found)

    def __call__(
        self, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments that forward() gets."""
        if len(args) != 1 or kwargs:
            return args, kwargs
        (given,) = args
        if isinstance(given, Mapping):
            named = {name: value for name, value in given.items() if name in self.names}
            if named or self.any_keyword:
                return (), named or dict(given)
            return (next(iter(given.values())),) if len(given) == 1 else args, kwargs
        if isinstance(given, tuple | list) and self.several:
            return tuple(given), kwargs
        return args, kwargs
