"""What to try for a verdict: remedies that apply to the run at hand, as overrides that can be pasted."""

from __future__ import annotations

import copy
import functools
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from gradlab.base.command import kept
from gradlab.base.option import OPTIONS, Invalid
from gradlab.config.compose import compose
from gradlab.config.remedy import chosen, described, label, overrides, shipped
from gradlab.config.remedy_option import Remedy
from gradlab.config.schema import Config

GROUPS = {group for group, _ in OPTIONS}

REMEDIES: dict[str, tuple[str, ...]] = {
    "nan_parameter": ("lower_lr", "clip_norm"),
    "nan_loss": ("stable_loss", "lower_lr", "clip_norm"),
    "scale_livelock": ("lower_lr", "bf16"),
    "scale_collapse": ("lower_lr", "bf16"),
    "exploding": ("clip_norm", "lower_lr", "warmup", "he_init", "pre_norm", "orthogonal_init", "gated"),
    "overflow_fp16": ("lower_lr", "bf16"),
    "nan_gradient": ("stable_loss", "lower_lr", "clip_norm"),
    "diverged": ("lower_lr", "clip_norm", "warmup"),
    "dead_units": ("gelu", "lower_lr", "he_init"),
    "zero_gradient": ("gelu", "lower_lr", "he_init"),
    "saturated_units": ("xavier_init", "relu+he_init", "layer_norm", "lower_lr"),
    "vanishing": ("relu+he_init", "residual", "layer_norm", "batch_norm", "gated"),
    "underflow_fp16": ("loss_scaling", "bf16"),
    "overclipped": ("looser_clip",),
    "dominant_layer": ("clip_per_layer",),
    "update_too_large": ("lower_lr", "warmup"),
    "stalled": ("higher_lr",),
    "loss_spike_recovered": ("clip_norm", "lower_lr", "warmup"),
}
"""Names of remedies (a plus combines them) by verdict, in the order in which to try them.

Faults that no configuration fixes are not here: data that are not finite, a broken graph.
"""


@dataclass
class Try:
    """A remedy, or a combination, on a run's own configuration."""

    name: str
    """As it is given to +remedy=."""
    overrides: list[str]
    """What to add to the run's own overrides."""
    why: str


def remedies(verdict: str, config: Config, given: list[str]) -> list[Try]:
    """The remedies of a verdict that apply to a run.

    config: the run's, with its own remedies applied. given: the overrides that it was started with.
    """
    names = REMEDIES.get(verdict, ())
    if not names:
        return []
    before = replace(config, init_from=None) if config.pretrain else config
    used = [name for name, remedy in config.remedy.items() if remedy.set or remedy.multiply]
    tries = []
    for combined in names:
        parts = {name: shipped(name) for name in combined.split("+") if name not in used}
        after, made = before, list[str]()
        try:
            for remedy in parts.values():
                after, more = tried(after, remedy)
                made += more
        except (Invalid, ValueError):
            continue
        if not made:
            continue
        if used or (not all("." in o for o in made) and not pasteable(given, made, after)):
            made = [f"+remedy={label([*used, *parts])}"]
        tries.append(Try(label(parts), made, "; ".join(remedy.why for remedy in parts.values())))
    return tries


def tried(config: Config, remedy: Remedy) -> tuple[Config, list[str]]:
    """What a remedy makes of a configuration, and the overrides that do. Raises `ValueError` where it does not apply.

    As `treat_` does with a composed configuration, in a hundredth of the time.
    """
    plain = {f.name: vars(value) if is_dataclass(value := getattr(config, f.name)) else value for f in fields(config)}
    made, after = overrides(remedy, plain), copy.copy(config)
    for override in made:
        name, _, value = override.lstrip("+").partition("=")
        group, _, field = name.partition(".")
        if field:
            setattr(after, group, replace(getattr(after, group), **{field: parsed(value)}))
        else:
            setattr(after, name, OmegaConf.to_object(chosen(name, value)) if name in GROUPS else parsed(value))
    if made and after == config:
        raise ValueError(f"{' '.join(made)} changes nothing here")
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
    typed = [*kept(given, made), *made]
    shape = tuple(o.partition("=")[0] if "." in o.partition("=")[0] and o[0] not in "+~" else o for o in typed)
    if shape not in PASTEABLE:
        try:
            PASTEABLE[shape] = described(compose(typed)) == described(OmegaConf.structured(after))
        except (HydraException, OmegaConfBaseException):
            PASTEABLE[shape] = False
    return PASTEABLE[shape]
