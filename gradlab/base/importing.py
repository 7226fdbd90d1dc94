"""Find the object that a user names as `package.module:Name`."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any

from gradlab.base.option import Invalid

PROGRAM = "program"
"""The module in a target such as "program:model", which has no other name: a program gave it (`gradlab.run`)."""
GIVEN: ContextVar[Mapping[str, Any]] = ContextVar("given", default=MappingProxyType({}))
"""What the program that runs gave, by name."""


def load_object(field: str, target: str) -> Any:
    """Import `package.module:Name`; the working directory is searched too, as under `python -m`.

    Raises `Invalid` with one line that distinguishes: no colon, no such module, a module that fails on its own
    imports or while it runs, and no such attribute.
    """
    module_name, colon, attribute = target.partition(":")
    names = attribute.split(".")
    if not (colon and all(part.isidentifier() for part in [*module_name.split("."), *names])):
        raise Invalid(field, target, "must be package.module:Name, as in my_package.nets:Net")
    if module_name == PROGRAM:
        if attribute not in GIVEN.get():
            raise Invalid(field, target, f"a program gave it: gradlab.run(..., {attribute}=...)")
        return GIVEN.get()[attribute]
    search_here()
    importlib.invalidate_caches()  # the file may be seconds old
    found = _import(field, target, module_name)
    for name in names:
        try:
            found = getattr(found, name)
        except AttributeError:
            raise Invalid(field, target, f"{module_name} has no {attribute}") from None
    return found


def load_callable(field: str, target: str, kind: str = "a function") -> Callable[..., Any]:
    """Import what a user names to be called; `Invalid` where it cannot be. kind: what it must be, for the message."""
    found: Any = load_object(field, target)
    if not callable(found):
        raise Invalid(field, target, f"must name {kind}, but is {type(found).__name__}")
    return found  # type: ignore[no-any-return]


def search_here() -> None:
    """Search the working directory for modules, as `python -m` does, and a console script does not."""
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.insert(0, os.getcwd())


@contextmanager
def calling(field: str, target: str) -> Iterator[None]:
    """What the function of a user that a field names raises, in one line that says where."""
    try:
        yield
    except Invalid:
        raise
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        # below this frame and the caller's
        own = [frame for frame in frames[2:] if frame.filename == frames[2].filename]
        where = f" ({os.path.basename(own[-1].filename)}, line {own[-1].lineno})" if own else ""
        why = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise Invalid(field, target, f"raises {why}{where}") from error


def _import(field: str, target: str, module_name: str) -> Any:
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if module_name == missing or module_name.startswith(missing + "."):
            where = "here or on the Python path (the working directory is searched)"
            raise Invalid(field, target, f"there is no module {missing} {where}") from error
        raise Invalid(field, target, f"{module_name} was found but itself imports {missing}, which is not") from error
    except Exception as error:
        reason = " ".join(str(error).split())
        raise Invalid(field, target, f"{module_name} fails to import: {type(error).__name__}: {reason}") from error
