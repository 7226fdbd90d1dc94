"""What a user meant by a name that does not exist."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from gradlab.base.option import FIELDS, OPTIONS

SYNONYMS = {
    "learning_rate": "lr",
    "batch": "batch_size",
    "num_epochs": "epochs",
    "max_epochs": "epochs",
    "max_steps": "updates",
    "iterations": "updates",
    "max_grad_norm": "max_norm",
    "grad_clip": "max_norm",
    "gradient_accumulation_steps": "steps",
    "accumulation_steps": "steps",
    "num_layers": "layers",
    "depth": "layers",
    "hidden_size": "width",
    "num_heads": "heads",
    "warmup_steps": "warmup",
    "dtype": "precision",
    "amp": "precision",
    "random_seed": "seed",
}
"""Other projects' names, and ours."""


def closest(word: str, known: Sequence[str]) -> str | None:
    """The known name that a word misspells, or is a synonym of."""
    if SYNONYMS.get(word) in known:
        return SYNONYMS[word]
    return next(iter(difflib.get_close_matches(word, known, n=1)), None)


def did_you_mean(word: str, known: Sequence[str]) -> str:
    """To be put behind the word."""
    near = closest(word, known)
    return f" (did you mean {near}?)" if near else ""


def must_be(word: str, known: Sequence[str]) -> str:
    """What a name has to be; of a long list of names the one that was meant comes first."""
    listed = ", ".join(known) or "(none here)"
    near = closest(word, known)
    return f"did you mean {near}? It must be one of {listed}" if near else f"must be one of {listed}"


def full_names(field: str) -> list[str]:
    """Every `group.field`; with the options that have it, where not all of its group do."""
    found: dict[str, list[str]] = {}
    for (group, name), cls in OPTIONS.items():
        if group in FIELDS and field in getattr(cls, "__dataclass_fields__", {}):
            within = f"logger.{name}" if group == "logger" else group
            found.setdefault(f"{within}.{field}", []).append(name)
    usual = {name: options for name, options in found.items() if not name.startswith("pitfall.")}
    found = usual or found
    return [name + having(name.split(".")[0], options) for name, options in found.items()]


def having(group: str, options: list[str]) -> str:
    """` (with clip=norm or clip=per_layer)`, unless all options of the group have the field."""
    if group == "logger" or len(options) == sum(g == group for g, _ in OPTIONS):
        return ""
    return f" (with {' or '.join(f'{group}={name}' for name in options)})"


def no_such_field(name: str) -> str:
    """What is wrong with a field at the root of the configuration, and what was meant."""
    for leaf in (name, SYNONYMS.get(name, name), closest(name, FIELDS)):
        if leaf in FIELDS:
            break
        if leaf and (found := full_names(leaf)):
            return f"no such field; did you mean {' or '.join(found)}?"
    return f"no such field{did_you_mean(name, FIELDS)}; gradlab has {', '.join(FIELDS)}"
