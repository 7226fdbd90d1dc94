"""What test_program_pages.py runs under torchrun: four updates of every program; leaves its weights, by rank."""

import os
import sys
import warnings
from pathlib import Path

import torch
from helpers import trainer, weights
from program_pages import NAMES, overrides, parts

from gradlab.base import distributed


def main() -> None:
    warnings.simplefilter("ignore")
    sys.path.insert(0, os.getcwd())
    world = distributed.world()
    for name in NAMES:
        small, _ = parts(name, overrides(name, Path.cwd()), times=2)
        run = trainer(Path(name), *small, "accumulation.steps=1", world=world)
        run.run()
        torch.save(weights(run.module), f"{name}.{world.rank}.pt")
    distributed.leave()
    os._exit(0)


if __name__ == "__main__":
    main()
