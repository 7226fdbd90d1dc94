"""What to try on a failed run: overrides that can be pasted, and lines to change in the user's own code."""

from __future__ import annotations

import copy
import functools
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any

from omegaconf import OmegaConf

from gradlab.base.command import key, pasted, text
from gradlab.base.option import OPTIONS, Invalid
from gradlab.config.remedy import chosen, get, gives, label, overrides
from gradlab.config.remedy_option import Remedy
from gradlab.config.schema import Config

if TYPE_CHECKING:
    from gradlab.remedies.evidence import Evidence
    from gradlab.remedies.proposal import Proposal

GROUPS = {group for group, _ in OPTIONS}
SHOWN = 4
"""Changes that a run prints at its end, and as many of those that are in the user's code."""


class UnchangedError(ValueError):
    """A remedy changes nothing of a configuration."""


@dataclass
class Candidate:
    """One change on a run's own configuration, or in its code."""

    name: str
    """A shipped remedy, as it is given to +remedy=, or the field that it sets."""
    overrides: list[str]
    """What to add to the run's own overrides; empty where it is in the user's code."""
    why: str
    """The measurement that it rests on."""
    lines: str = ""
    """What to change in the user's code."""


def candidates_for(e: Evidence, config: Config, given: list[str], search: bool = False) -> list[Candidate]:
    """The changes that a run's evidence suggests and its configuration takes, the likeliest to cure first.

    config: the run's, with its own remedies applied. given: the overrides that it was started with; where remedies were
    among them, those of `untreated`. search: all that a search may try, instead of the few that are printed.
    """
    from gradlab.remedies.proposals import proposals

    before = replace(config, init_from=None) if config.pretrain else config
    found, seen, made_of = list[Candidate](), set[tuple[str, ...]](), [before]
    for proposal in (changing(before, each) for each in proposals(e, before, search)):
        if proposal.remedy is None:
            made = list[str]()
        else:
            try:
                after, made = tried(before, proposal.remedy)
            except (Invalid, ValueError):
                continue
            if not made or after in made_of:
                continue
            made_of.append(after)
            if not (all("." in o for o in made) or pasteable(given, made, after)):
                if not proposal.shipped or any(key(o) == "remedy" for o in given):
                    continue
                made = [f"+remedy={label(proposal.name.split('+'))}"]
        same = tuple(made) or (proposal.lines,)
        if same not in seen:
            seen.add(same)
            found.append(Candidate(label(proposal.name.split("+")), made, proposal.why, proposal.lines))
    few = [*[c for c in found if c.overrides][:SHOWN], *[c for c in found if c.lines][:SHOWN]]
    return found if search else [c for c in found if c in few]


def changing(config: Config, proposal: Proposal) -> Proposal:
    """Of several shipped remedies as one change those alone that change the configuration."""
    from gradlab.remedies.proposal import named

    parts = proposal.name.split("+") if proposal.shipped else []
    if len(parts) < 2:
        return proposal
    kept = []
    for part in parts:
        try:
            tried(config, named(part).remedy or Remedy())
        except UnchangedError:
            continue
        except (Invalid, ValueError):
            return proposal  # it does not apply, nor does the whole
        kept.append(part)
    return named("+".join(kept)) if kept else proposal


def tried(config: Config, remedy: Remedy) -> tuple[Config, list[str]]:
    """What a remedy makes of a configuration, and the overrides that do. Raises `ValueError` where it does not apply.

    As `treat_` does with a composed configuration, in a hundredth of the time.
    """
    plain = {f.name: vars(value) if is_dataclass(value := getattr(config, f.name)) else value for f in fields(config)}
    made, after = overrides(remedy, plain), copy.copy(config)
    groups = {key(o) for o in made}
    made = [o for o in made if key(o).split(".")[0] in groups or o != f"{key(o)}={text(get(plain, key(o)))}"]
    for override in made:
        name, _, value = override.lstrip("+~").partition("=")
        group, _, field = name.partition(".")
        if field:
            setattr(after, group, replace(getattr(after, group), **{field: parsed(value)}))
        else:
            option = OmegaConf.to_object(chosen(name, value)) if name in GROUPS and value else None
            setattr(after, name, option if name in GROUPS else parsed(value))
    if after == config and (remedy.set or remedy.multiply):
        raise UnchangedError
    return after, made


@functools.cache
def parsed(value: str) -> Any:
    """A value of an override."""
    return OmegaConf.from_dotlist([f"value={value}"]).value


PASTEABLE: dict[tuple[Any, ...], bool] = {}
"""Answers for overrides of the same names: of a sweep's jobs, all that differ in values only have one."""


def pasteable(given: list[str], made: list[str], after: Config) -> bool:
    """Whether a run's overrides with these give that configuration.

    They do not where an experiment has set fields of an option that these replace.
    """
    typed = pasted(given, made)
    shape = tuple(o.partition("=")[0] if "." in o.partition("=")[0] and o[0] not in "+~" else o for o in typed)
    if shape not in PASTEABLE:
        PASTEABLE[shape] = gives(typed, after)
    return PASTEABLE[shape]
