"""The configurations of several ranks must be equal: else ranks train different runs, or wait forever."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from typing import Any

from gradlab.base.distributed import World
from gradlab.base.fields import dotted
from gradlab.base.option import Invalid

OWN = ("logger", "story", "trainer.progress")
"""What may differ from rank to rank, with all below: only rank 0 logs and prints."""
SHOWN = 3
"""Fields that an error names besides the first."""


def check_alike(plain: dict[str, Any], chosen: dict[str, str], world: World) -> None:
    """Raise `Invalid` on every rank where not all have the same configuration. plain: its values. chosen: options."""
    if world.size == 1:
        return
    fields = compared(plain, chosen)
    digest = hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()
    if len(set(world.gather(digest))) == 1:
        return
    raise refusal(differences(world.gather(fields)))


def compared(plain: dict[str, Any], chosen: dict[str, str]) -> dict[str, str]:
    """Field -> value of all that decides a run, as text. Of a file or folder that each host has, its name counts."""
    found = {name: shown(value) for name, value in {**dotted(plain), **chosen}.items()}
    return {name: text for name, text in found.items() if not any(f"{name}.".startswith(f"{own}.") for own in OWN)}


def shown(value: Any) -> str:
    if isinstance(value, str) and os.path.isabs(value) and os.path.exists(value):
        return os.path.basename(value.rstrip("/"))
    return "null" if value is None else value if isinstance(value, str) else json.dumps(value, default=str)


def differences(ranks: Sequence[dict[str, str]]) -> dict[str, str]:
    """Field -> `VALUE on rank 0, VALUE on ranks 1, 2`, where values differ; of another option, not its fields too."""
    found: dict[str, str] = {}
    for name in sorted({name for fields in ranks for name in fields}, key=lambda name: (name.count("."), name)):
        if name.partition(".")[0] in found:
            continue
        at: dict[str, list[str]] = {}
        for rank, fields in enumerate(ranks):
            at.setdefault(fields.get(name, "missing"), []).append(str(rank))
        if len(at) > 1:
            values = (f"{text} on rank{'s' * (len(who) > 1)} {', '.join(who)}" for text, who in at.items())
            found[name] = ", ".join(values)
    return found


def refusal(differing: dict[str, str]) -> Invalid:
    """What differs; two lines at most."""
    (field, values), *others = differing.items()
    why = "must be the same on all ranks"
    if others:
        listed = [f"{name}={text}" for name, text in others[:SHOWN]]
        listed += [f"and {len(others) - SHOWN} other fields"] * (len(others) > SHOWN)
        why += f"\n  so must {'; '.join(listed)}"
    return Invalid(field, values, why)
