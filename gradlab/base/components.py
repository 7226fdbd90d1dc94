"""Which options there are, gradlab's own and those of plugins: found by the text of their modules, before any import.

A component is a class under a line `@option("clip", "norm")`, in any module of the packages below or of a plugin. A
plugin is a module or a package that its user names: an installed one by an entry point of the group `gradlab.plugins`,
any other in the environment variable GRADLAB_PLUGINS (`GRADLAB_PLUGINS=my_clips,my_package.rules`; the working
directory is searched too). Nothing else is imported.
"""

from __future__ import annotations

import functools
import importlib
import os
import re
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from gradlab.base.conf import conf_dir, yaml_names
from gradlab.base.importing import search_here
from gradlab.base.option import Invalid

PACKAGES = ("config", "data", "diagnosis", "loggers", "measure", "models", "pitfalls", "update")
"""Packages of gradlab with components."""
LINE = re.compile(r'^(?:@|\w+ = )(?:option\("(\w+)", |(rule)\()"(\w+)"', re.MULTILINE)
VARIABLE = "GRADLAB_PLUGINS"
ENTRY_POINTS = "gradlab.plugins"


class Component(NamedTuple):
    """An option, and the module that defines it."""

    group: str
    name: str
    module: str


@functools.cache
def components() -> tuple[Component, ...]:
    """All of them; `Invalid` where there is no such plugin."""
    own = [f"gradlab.{package}" for package in PACKAGES]
    return tuple(found for package in (*own, *plugins()) for found in of_package(package))


@functools.cache
def plugins() -> tuple[str, ...]:
    """The modules and packages of the plugins."""
    return (*installed_plugins(), *filter(None, map(str.strip, os.environ.get(VARIABLE, "").split(","))))


def installed_plugins() -> list[str]:
    """Plugins that installed packages name; importlib.metadata, slow to import, is asked only where there is one."""
    folders = (Path(folder) for folder in sys.path)
    files = (file for folder in folders for file in folder.glob("*-info/entry_points.txt"))
    if not any(f"[{ENTRY_POINTS}]" in file.read_text(encoding="utf-8", errors="replace") for file in files):
        return []
    from importlib.metadata import entry_points

    return [entry.module for entry in entry_points(group=ENTRY_POINTS)]


def of_package(package: str) -> Iterator[Component]:
    """The components of a module, or of a package and all that is below it."""
    for module, path in sorted(modules(package)):
        for group, rule, name in LINE.findall(path.read_text(encoding="utf-8")):
            yield Component(group or rule, name, module)


def modules(package: str) -> Iterator[tuple[str, Path]]:
    """The modules of a package by name, with their files; of a module, itself."""
    if package.startswith("gradlab."):
        folders = [str(Path(__file__).parents[1] / package.partition(".")[2])]
    else:
        search_here()
        try:
            spec = find_spec(package)
        except (ImportError, ValueError):
            spec = None
        if spec is None:
            where = "here or on the Python path (the working directory is searched)"
            raise Invalid(VARIABLE, package, f"there is no such module {where}")
        if spec.submodule_search_locations is None:
            yield package, Path(str(spec.origin))
            return
        folders = list(spec.submodule_search_locations)
    for folder in folders:
        for path in Path(folder).rglob("*.py"):
            parts = path.relative_to(folder).with_suffix("").parts
            yield ".".join((package, *parts)).removesuffix(".__init__"), path


def load(group: str | None = None) -> None:
    """Import the modules with options of a group, or with any, so that `OPTIONS` holds these."""
    wanted = [found.module for found in components() if group in (None, found.group)]
    for module in dict.fromkeys([*wanted, *(plugins() if group is None else ())]):
        try:
            importlib.import_module(module)
        except Exception as error:
            if module.startswith("gradlab.") or isinstance(error, Invalid):
                raise
            reason = " ".join(str(error).split())
            raise Invalid(VARIABLE, module, f"fails to import: {type(error).__name__}: {reason}") from error


def groups() -> list[str]:
    """Groups of the configuration: those of the options, and of files."""
    of_files = {path.name for path in conf_dir().iterdir() if path.is_dir()}
    return sorted(of_files | {found.group for found in components()} - {"rule"})


def names(group: str) -> list[str]:
    """Names of a group's options: of its classes, and of the files that gradlab ships."""
    return sorted({*yaml_names(conf_dir() / group), *(found.name for found in components() if found.group == group)})
