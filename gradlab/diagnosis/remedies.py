"""What to try for a verdict: remedies that apply to the run at hand, as overrides that can be pasted."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from gradlab import cli
from gradlab.config import Config, to_config
from gradlab.option import Invalid
from gradlab.remedy import described, label, shipped, treat_

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

What no configuration mends is not here: data that are not finite, a broken graph.
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
    before = OmegaConf.structured(replace(config, init_from=None) if config.pretrain else config)
    used = [name for name, remedy in config.remedy.items() if remedy.set or remedy.multiply]
    tries = []
    for combined in names:
        parts = {name: shipped(name) for name in combined.split("+") if name not in used}
        after, made = before.copy(), list[str]()
        try:
            for name, remedy in parts.items():
                made += treat_(after, name, remedy)
            to_config(after)
        except Invalid:
            continue
        if not made:
            continue
        if used or not pasteable(given, made, after):
            made = [f"+remedy={label([*used, *parts])}"]
        tries.append(Try(label(parts), made, "; ".join(remedy.why for remedy in parts.values())))
    return tries


def pasteable(given: list[str], made: list[str], after: DictConfig) -> bool:
    """Whether a run's overrides with these give that configuration.

    They do not where an experiment has set fields of an option that these replace.
    """
    if all("." in override for override in made):
        return True
    from gradlab.verdict import kept

    try:
        return described(cli.compose([*kept(given, made), *made])) == described(after)
    except (HydraException, OmegaConfBaseException):
        return False
