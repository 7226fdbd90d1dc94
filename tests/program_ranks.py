"""What test_program_pages.py runs under torchrun: four updates of programs; leaves their weights, by rank.

torchrun ... program_ranks.py [NAME of a program to divide, its loss as it is]
"""

import os
import sys
import warnings
from pathlib import Path

import torch
from helpers import trainer, weights
from program_pages import NAMES, STILL, overrides, parts

from gradlab.base import distributed


def main() -> None:
    warnings.simplefilter("ignore")
    sys.path.insert(0, os.getcwd())
    world = distributed.world()
    for name in sys.argv[1:]:
        small, _ = parts(name, overrides(name, Path.cwd()), times=2)
        whole = [o for o in small if o not in STILL.get(name, ())]
        run = trainer(Path(name), *whole, "accumulation.steps=1", "trainer.parallel=fsdp", world=world)
        run.run()
        torch.save(run.full_state()["model"], f"{name}.{world.rank}.pt")
    for name in NAMES if len(sys.argv) == 1 else ():
        small, _ = parts(name, overrides(name, Path.cwd()), times=2)
        run = trainer(Path(name), *small, "accumulation.steps=1", world=world)
        run.run()
        torch.save(weights(run.module), f"{name}.{world.rank}.pt")
    distributed.leave()
    os._exit(0)


if __name__ == "__main__":
    main()
