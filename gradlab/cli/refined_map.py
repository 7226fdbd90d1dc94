"""`python -m gradlab.map` with overrides: `hydra/sweeper=quadtree` with its fields written short."""

from __future__ import annotations

import os
from dataclasses import fields
from pathlib import Path

from gradlab.base.command import exit_code, key
from gradlab.base.errors import APPENDED, Usage
from gradlab.base.suggestions import closest, no_such_field
from gradlab.sweep.search.options import QuadtreeOption

SHORT = [f.name for f in fields(QuadtreeOption) if not f.name.startswith("_") and f.name != "params"]


def asks_for_runs(arguments: list[str]) -> bool:
    """Whether the arguments of `python -m gradlab.map` are overrides of a map to be run, and no folder."""
    given = [argument for argument in arguments if not argument.startswith("--")]
    return any("=" in argument and not Path(argument).is_dir() for argument in given)


def overrides(arguments: list[str]) -> list[str]:
    """The arguments of `python -m gradlab` that run the map."""
    from gradlab.config.schema import Config

    made, known = [], [*Config.__dataclass_fields__, *APPENDED]
    for argument in arguments:
        name, equals, value = argument.partition("=")
        bare = name.lstrip("+~")
        if equals and bare.isidentifier() and bare not in SHORT and bare not in known:
            near = closest(name, SHORT)
            wrong = f"no such field (did you mean {near}?)" if near else no_such_field(bare)
            raise Usage(f"{name}: {wrong}; a map has {', '.join(SHORT)}")
        made.append(f"hydra.sweeper.{name}={value}" if equals and name in SHORT else argument)
    typed = {key(argument).removeprefix("hydra.sweeper.") for argument in arguments if "=" in argument}
    for name, example in (("x", "optimizer.lr:1e-4:1"), ("y", "clip.max_norm:1e-3:100")):
        if name not in typed and "resume" not in typed:
            raise Usage(f"{name}: must be given, as FIELD:LOW:HIGH[:linear], such as {name}={example}")
    first = next((i for i, argument in enumerate(made) if "=" in argument), len(made))
    return [*made[:first], "hydra/sweeper=quadtree", *made[first:]]


def run(arguments: list[str]) -> int:
    """Run the map; returns the exit code."""
    from gradlab.base.lazy import lazy_import
    from gradlab.cli import main

    if "RANK" not in os.environ:
        lazy_import("torch")  # a wrong command is refused without
    return exit_code(lambda given: main.run(overrides(given)), arguments)
