"""How a component enters the configuration: a dataclass, its group and its name.

Free of Hydra and of PyTorch, so that every component can be imported alone and `--help` answers at once. What a module
under `@option` imports at its top is imported for every command: import PyTorch as `import torch`, which is put off
until its first use (`gradlab.base.lazy`), and import its classes inside of methods.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

T = TypeVar("T")

OPTIONS: dict[tuple[str, str], type] = {}
"""(group, name) -> dataclass, of the modules that were imported: see `gradlab.base.components`."""

FIELDS: list[str] = []
"""Names of the fields at the root of the configuration; `gradlab.config.schema` fills them in."""


def option(group: str, name: str) -> Callable[[type[T]], type[T]]:
    """Register a dataclass as `group=name`; its fields are the schema, `__post_init__` rejects bad values."""

    def register(cls: type[T]) -> type[T]:
        other = OPTIONS.setdefault((group, name), cls)
        if other is not cls and other.__module__ != cls.__module__:
            raise Invalid(group, name, f"is defined twice: in {other.__module__} and in {cls.__module__}")
        OPTIONS[group, name] = cls
        return cls

    return register


class Invalid(ValueError):
    """A value that its field does not allow: names the field, what was given and what is allowed."""

    def __init__(self, field: str, given: Any, allowed: str) -> None:
        super().__init__(field, given, allowed)
        self.field, self.given, self.allowed = field, given, allowed

    def __str__(self) -> str:
        return f"{self.field}={self.given}: {self.allowed}"


@contextmanager
def within(group: str) -> Iterator[None]:
    """Put the group's name in front of the field that an error names."""
    try:
        yield
    except Invalid as error:
        raise Invalid(f"{group}.{error.field}" if error.field else group, error.given, error.allowed) from None


def require(condition: bool, field: str, given: Any, allowed: str) -> None:
    """Raise `Invalid` unless the condition holds; NaN fails every comparison, so it is refused too."""
    if not condition:
        raise Invalid(field, given, f"must be {allowed}")


def at_least(option: object, **least: float) -> None:
    """Raise `Invalid` unless these fields of an option are no less, or null."""
    for field, bound in least.items():
        given = getattr(option, field)
        require(given is None or given >= bound, field, given, f">= {bound}")


def above_zero(option: object, *fields: str) -> None:
    """Raise `Invalid` unless these fields of an option are more than 0."""
    for field in fields:
        require(getattr(option, field) > 0, field, getattr(option, field), "> 0")


def one_of(field: str, given: Any, allowed: Sequence[str]) -> None:
    """Raise `Invalid` unless the value is one of those allowed."""
    require(given in allowed, field, given, f"one of {', '.join(allowed)}")
