"""Remedies: one change to the composed configuration, made in code, so that nothing on the command line overrules it.

A remedy is a file conf/remedy/NAME.yaml: `why`, and `set` (values; a key without a dot chooses a group's option) or
`multiply` (factors on the composed value). Fields that the configuration does not have are left out, so that one file
serves several models; a remedy of which nothing is left, that changes nothing or whose value is refused does not apply.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, is_dataclass
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from gradlab.base.command import key as key_of
from gradlab.base.command import text
from gradlab.base.conf import conf_dir
from gradlab.base.errors import APPENDED
from gradlab.base.option import OPTIONS, Invalid
from gradlab.config.compose import compose
from gradlab.config.remedy_option import Remedy
from gradlab.config.schema import Config, to_config

NOT_COMPARED = ("remedy", "expect", "story", "resume", "fix", "logger")
"""Fields that do not decide what is computed."""


class DoesNotApply(Invalid):
    """A remedy that this configuration cannot take, or that would change nothing; the message says why."""

    def __init__(self, names: Iterable[str], why: str) -> None:
        self.names, self.why = list(names), why
        super().__init__("remedy", label(self.names), f"does not apply: {why}")

    def record(self) -> dict[str, Any]:
        return record(self.names, {}, self.why)


def label(names: Iterable[str]) -> str:
    """A remedy's name, or a combination's, as on the command line."""
    names = list(names)
    return names[0] if len(names) == 1 else f"[{','.join(names)}]"


@functools.cache
def shipped(name: str) -> Remedy:
    """A remedy that gradlab ships."""
    return Remedy(**OmegaConf.to_container(OmegaConf.load(conf_dir() / "remedy" / f"{name}.yaml")))  # type: ignore


def overrides(remedy: Remedy, plain: Mapping[str, Any]) -> list[str]:
    """The overrides that a remedy makes on a configuration of plain values; `ValueError` if it has no such field."""
    groups = {group for group, _ in OPTIONS}
    replaced = {key for key in remedy.set if key in groups and key in plain}
    made = []
    for key, value in remedy.set.items():
        if "." not in key and key not in plain:
            raise ValueError(f"the configuration has no {key}")
        if key in replaced:
            made.append(f"{'+' * (key in APPENDED)}{key}={value}" if value is not None else f"~{key}")
        elif key.split(".")[0] in replaced or has(plain, key):
            made.append(f"{key}={text(value)}")
    for key, factor in remedy.multiply.items():
        if has(plain, key) and is_number(value := get(plain, key)):
            made.append(f"{key}={text(times(value, factor))}")
    if not made and (asked := [*remedy.set, *remedy.multiply]):
        raise ValueError(f"the configuration has no {' or '.join(asked)}")
    return made


def has(plain: Mapping[str, Any], key: str) -> bool:
    group, _, name = key.partition(".")
    return group in plain and (not name or (isinstance(plain[group], Mapping) and name in plain[group]))


def get(plain: Mapping[str, Any], key: str) -> Any:
    group, _, name = key.partition(".")
    return plain[group][name] if name else plain[group]


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def times(value: float, factor: float) -> float:
    """The product, to three digits; a whole number stays one, and at least 1."""
    if isinstance(value, int):
        return max(1, int(value * factor + 0.5))
    return float(f"{value * factor:.3g}")


def apply_(cfg: DictConfig, made: Iterable[str]) -> None:
    """Change a configuration. A group's new option comes with its own defaults: the old one's fields go with it."""
    for override in made:
        name, _, value = override.lstrip("+").partition("=")
        if any(group == name for group, _ in OPTIONS):
            cfg[name] = chosen(name, value)
        else:
            OmegaConf.update(cfg, name, OmegaConf.from_dotlist([f"value={value}"]).value)


def chosen(group: str, name: str) -> DictConfig:
    """A group's option with its defaults."""
    cls = OPTIONS.get((group, name))
    made: DictConfig = (
        OmegaConf.structured(cls)  # as in its file, without reading it
        if cls
        else compose([f"{'+' * (group in APPENDED)}{group}={name}"])[group]
    )
    return made


def described(cfg: DictConfig) -> dict[str, Any]:
    """Every field that decides what is computed, by its full name, with the options chosen."""
    flat: dict[str, Any] = {}
    names = {cls: name for (_, name), cls in OPTIONS.items()}
    for key in cfg:
        if key in NOT_COMPARED or OmegaConf.is_missing(cfg, key):
            continue
        node = cfg[key]
        kind = OmegaConf.get_type(node)
        value = OmegaConf.to_container(node, resolve=True) if OmegaConf.is_config(node) else node
        if not (is_dataclass(kind) and isinstance(value, dict)):
            flat[str(key)] = value
            continue
        flat[str(key)] = names.get(kind, kind.__name__)
        flat |= {f"{key!s}.{name!s}": v for name, v in value.items()}
    return flat


def difference(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Fields that differ, with both values; null where one side has no such field."""
    absent = object()
    keys = [k for k in sorted({**before, **after}) if before.get(k, absent) != after.get(k, absent)]
    return {k: [before.get(k), after.get(k)] for k in keys}


def treat_(cfg: DictConfig, name: str, remedy: Remedy) -> list[str]:
    """Change a configuration by one remedy; returns the overrides that it made. Raises `DoesNotApply`."""
    before = described(cfg)
    try:
        made = overrides(remedy, OmegaConf.to_container(cfg, resolve=True))  # type: ignore[arg-type]
        apply_(cfg, made)
    except (ValueError, OmegaConfBaseException) as error:
        raise DoesNotApply([name], str(error).splitlines()[0]) from None
    if made and described(cfg) == before:
        raise DoesNotApply([name], f"{' '.join(made)} changes nothing here")
    return made


@dataclass(frozen=True)
class Treated:
    """A composed configuration to which its remedies have been applied."""

    composed: DictConfig
    config: Config
    """`composed` as objects."""
    untreated: Config
    """The configuration without its remedies, as objects."""
    remedy: dict[str, Any] | None = None
    """What the remedies changed, as in diagnosis.json; None where there is no remedy."""


def treated(cfg: DictConfig, given: list[str], untreated: Config | None = None) -> Treated:
    """Apply the remedies of a composed configuration, one after the other. Raises `DoesNotApply`.

    given: the overrides of the command line. untreated: `cfg`, typed, where that is at hand.
    """
    untreated = untreated or to_config(cfg)
    names = [str(name) for name in cfg.remedy]
    if not names:
        return Treated(cfg, untreated, untreated)
    changed = copy.deepcopy(cfg)
    try:
        for name, remedy in zip(names, untreated.remedy.values(), strict=True):
            treat_(changed, name, remedy)
        if "expect" not in map(key_of, given):
            changed.expect = "any"
        config = to_config(changed)
    except DoesNotApply as error:
        raise DoesNotApply(names, f"{error.names[0]}: {error.why}" if len(names) > 1 else error.why) from None
    except Invalid as error:
        raise DoesNotApply(names, str(error)) from None
    return Treated(changed, config, untreated, record(names, difference(described(cfg), described(changed))))


def gives(made: list[str], config: Config) -> bool:
    """Whether these overrides compose to a configuration."""
    from hydra.errors import HydraException

    try:
        return described(compose(made)) == described(OmegaConf.structured(config))
    except (HydraException, OmegaConfBaseException):
        return False


def record(names: list[str], changed: dict[str, list[Any]], why_not: str | None = None) -> dict[str, Any]:
    """The entry `remedy` of diagnosis.json."""
    return {"names": names, "changed": changed, "applies": why_not is None, "why_not": why_not}


def summary(record: dict[str, Any]) -> str:
    """The change in one line."""
    return f"remedy {label(record['names'])}: {changes(record['changed']) or 'nothing is changed'}"


def changes(changed: Mapping[str, list[Any]]) -> str:
    """A difference in one line; of a replaced option only the new one's fields are shown."""
    parts = []
    for key, (before, after) in changed.items():
        within = "." in key and key.split(".")[0] in changed
        if within and before is None:
            parts.append(f"{key} {text(after)}")
        elif not within or after is not None:
            parts.append(f"{key} {text(before)} -> {text(after)}")
    return ", ".join(parts)
