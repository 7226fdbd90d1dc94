"""`python -m gradlab.map` with overrides: `hydra/sweeper=quadtree` with its fields written short."""

from __future__ import annotations

from dataclasses import fields

from gradlab.sweep.options import QuadtreeOption

SHORT = [f.name for f in fields(QuadtreeOption) if not f.name.startswith("_") and f.name != "params"]


def asks_for_runs(arguments: list[str]) -> bool:
    """Whether the arguments of `python -m gradlab.map` are overrides of a map to be run, and no folder."""
    return any("=" in argument and not argument.startswith("--") for argument in arguments)


def overrides(arguments: list[str]) -> list[str]:
    """The arguments of `python -m gradlab` that run the map."""
    made = []
    for argument in arguments:
        name, equals, value = argument.partition("=")
        made.append(f"hydra.sweeper.{name}={value}" if equals and name in SHORT else argument)
    first = next((i for i, argument in enumerate(made) if "=" in argument), len(made))
    return [*made[:first], "hydra/sweeper=quadtree", *made[first:]]


def run(arguments: list[str]) -> int:
    """Run the map; returns the exit code."""
    from gradlab import app

    return app.run(overrides(arguments))
