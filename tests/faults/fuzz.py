"""Random overrides, seeded: each is run, or refused in one or two lines that name what is wrong."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from gradlab.base import components, errors
from gradlab.base.option import OPTIONS
from gradlab.cli.arguments import check_overrides, normal, parse
from gradlab.config.compose import check, compose
from gradlab.config.remedy import treated
from gradlab.config.schema import to_config

VALUES = (
    *("0", "-1", "1", "2", "3", "0.5", "-0.5", "1e-30", "1e30", "1e400", "nan", "inf", "-inf", "null", "true", "false"),
    *("''", "x", "[]", "[1,2]", "[x]", "{}", "{a:1}", "'a b'", "1_000", "99999999999999999999", "ä", "~", "${seed}"),
    *("${nothing}", "${oc.env:NOTHING}", "${oc.decode:'1'}", "${oc.decode:'['}", "${", "???", "1,2", "a:b", "/", ".."),
    *(
        "range(0,3)",
        "logspace(1,2,3)",
        "logspace(1,2,1e9)",
        "glob(*)",
        "choice(1,2)",
        "int(x)",
        "\\",
        "'",
        "%",
        "\x1b[2J",
    ),
)
"""What is put into a field."""
LARGE = ("width", "layers", "depth", "length", "samples", "heads", "epochs", "updates", "steps", "batch_size", "size")
"""Fields that are left small where a run is made: it would only be long."""


def fields() -> list[str]:
    """The fields of all options, and of the configuration itself."""
    from dataclasses import fields as fields_of

    from gradlab.config.schema import Config

    found = [f.name for f in fields_of(Config)]
    for group, name in sorted(OPTIONS):
        found += [f"{group}.{f.name}" for f in fields_of(OPTIONS[group, name])]
    return list(dict.fromkeys(found))


def overrides(draw: random.Random, known: list[str], groups: list[str]) -> list[str]:
    """One command."""
    made = []
    for _ in range(draw.choice([1, 1, 2, 3])):
        kind = draw.random()
        if kind < 0.35:
            group = draw.choice(groups)
            name = draw.choice([*components.names(group), draw.choice(VALUES)])
            plus = "+" * (group in errors.APPENDED and draw.random() < 0.9)
            made.append(f"{plus}{group}={name}")
        elif kind < 0.9:
            made.append(f"{draw.choice(known)}={draw.choice(VALUES)}")
        else:
            text = f"{draw.choice(known)}={draw.choice(VALUES)}"
            at = draw.randrange(len(text))
            made.append(text[:at] + draw.choice(["", "=", ".", "+", "@", "~", " ", ":", "/"]) + text[at + 1 :])
    return made


def outcome(given: list[str]) -> str:
    """accepted, or refused; raises what is a fault."""
    try:
        args = parse([normal(o) for o in given])
        check_overrides(args)
        cfg: Any = compose(args.overrides)
        config = to_config(cfg)
        check(config)
        treated(cfg, args.overrides, config)
        OmegaConf.to_container(cfg, resolve=True)
    except Exception as error:
        said = errors.explain(error)
        if said is None:
            raise
        lines = said.splitlines()
        if not (1 <= len(lines) <= 2 and lines[0].strip() and "\x1b" not in said and len(said) < 3000):
            raise AssertionError(f"said {said!r}") from error
        return "refused"
    return "accepted"


def fuzz(seed: int, cases: int) -> tuple[Counter[str], list[str]]:
    """How many commands were accepted and refused, and the faults."""
    draw, counts, faults = random.Random(seed), Counter[str](), list[str]()
    compose([])  # registers all options
    known, groups = fields(), [g for g in components.groups() if components.names(g)]
    for case in range(cases):
        given = overrides(draw, known, sorted(groups))
        try:
            counts[outcome(given)] += 1
        except Exception:
            counts["faults"] += 1
            faults.append(f"case {case} {given}\n{traceback.format_exc(limit=-3)}")
    return counts, faults


def commands(seed: int, cases: int, folder: Path, seconds: int = 120) -> tuple[Counter[str], list[str]]:
    """How many commands ended with which code, each a process of its own, and the faults."""
    draw, counts, faults = random.Random(seed), Counter[str](), list[str]()
    compose([])
    known = [f for f in fields() if not any(part in f for part in LARGE)]
    groups = sorted(g for g in components.groups() if components.names(g) and g not in ("sweep", "experiment"))
    env = os.environ | {"WANDB_MODE": "offline", "XDG_STATE_HOME": str(folder / "state"), "OMP_NUM_THREADS": "1"}
    small = ("data.samples=64", "data.batch_size=16", "trainer.epochs=1", "trainer.updates=2", "expect=any")
    for case in range(cases):
        given = overrides(draw, known, groups)
        one = [*(o for o in small if o.split("=")[0] not in {g.split("=")[0] for g in given}), *given]
        try:
            ended = subprocess.run(
                [sys.executable, "-m", "gradlab", *one],
                **{"cwd": folder, "env": env, "timeout": seconds, "stdin": subprocess.DEVNULL},
                **{"capture_output": True, "text": True, "errors": "backslashreplace"},
            )
        except subprocess.TimeoutExpired:
            faults.append(f"command {case} {given}: still at work after {seconds} seconds")
            continue
        except ValueError:  # the system takes no null bytes
            continue
        counts[f"exit code {ended.returncode}"] += 1
        said = ended.stderr
        long = ended.returncode == 2 and not 1 <= len(said.splitlines()) <= 2
        if ended.returncode not in (0, 1, 2) or long or "Traceback" in said + ended.stdout or "\x1b" in said:
            faults.append(f"command {case} {given}: {ended.returncode}\n{said[-1500:]}")
    return counts, faults
