"""`--cfg`: the configuration that would run, as Hydra prints it, with its remedies applied."""

from __future__ import annotations

import argparse
import copy
import os
import sys

from hydra._internal.hydra import Hydra
from hydra._internal.utils import create_automatic_config_search_path
from hydra.core.config_search_path import SearchPathQuery
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import SearchPathException
from hydra.types import RunMode
from omegaconf import Container, DictConfig, OmegaConf, flag_override, open_dict, read_write

from gradlab.base.conf import conf_dir
from gradlab.base.errors import Usage
from gradlab.cli.job import compose


def show_config(args: argparse.Namespace, main_rank: bool) -> None:
    """Compose, refuse what a run would refuse, and print on rank 0."""
    try:
        cfg = composed(args)
        text = printed(cfg, args)
    finally:
        GlobalHydra.instance().clear()
    if main_rank:
        sys.stdout.write(text)


def composed(args: argparse.Namespace) -> DictConfig:
    """The whole configuration, Hydra's own part included."""
    search_path = create_automatic_config_search_path(None, None, str(conf_dir()))
    if args.config_dir is not None:
        folder = os.path.abspath(args.config_dir)
        if not os.path.isdir(folder):
            raise SearchPathException(f"Additional config directory '{folder}' not found")
        search_path.prepend("command-line", f"file://{folder}", SearchPathQuery(provider="schema"))
    hydra = Hydra.create_main_hydra2(task_name="gradlab", config_search_path=search_path)
    cfg = hydra.compose_config(args.config_name or "config", args.overrides, RunMode.RUN)
    HydraConfig.instance().set_config(cfg)
    OmegaConf.set_readonly(cfg.hydra, None)
    task = copy.deepcopy(cfg)
    with read_write(task), open_dict(task):
        del task["hydra"]
    made = compose(task, args.overrides)
    if made.remedy:
        with flag_override(cfg, ["struct", "readonly"], [False, False]):
            for name in made.composed:
                cfg[name] = made.composed._get_node(name)  # as it is written: not resolved
    return cfg


def printed(cfg: DictConfig, args: argparse.Namespace) -> str:
    """The part of a configuration that --cfg and --package choose, as text."""
    if args.cfg == "hydra":
        cfg = Hydra.get_sanitized_hydra_cfg(cfg)
    elif args.cfg == "job":
        with flag_override(cfg, ["struct", "readonly"], [False, False]):
            del cfg["hydra"]
    package = None if args.package == "_global_" else args.package
    part = cfg if package is None else OmegaConf.select(cfg, package)
    if part is None:
        raise Usage(f"--package {package}: there is none in the configuration")
    if not isinstance(part, Container):
        return f"{part}\n"
    if args.resolve:
        OmegaConf.resolve(part)
    return (f"# @package {package}\n" if package is not None else "") + OmegaConf.to_yaml(part)
