"""Episodes in an environment: a sample is an episode's seed; the model plays it (models/networks/policy.py)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from gradlab.base.option import Invalid, at_least, option
from gradlab.data.base import Data, Splits, check_seed, generator, split_off
from gradlab.data.spec import Spec


@option("data", "episodes")
@dataclass
class EpisodesData(Data):
    """Seeds of episodes, which the model plays. There are no targets: they are zeros."""

    environment: str = "CartPole-v1"
    """Name of a gymnasium environment with vector observations and discrete actions."""
    samples: int = 1024
    """Training episodes of an epoch."""
    test_samples: int = 64
    """Test episodes; 0: none."""
    seed: int = 0
    """Decides the seeds."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, samples=1, test_samples=0)
        check_seed(self.seed)

    def load(self, device: torch.device) -> Splits:
        size, actions = spaces(self.environment)
        n = self.samples + self.test_samples
        seeds = torch.randint(2**31, (n,), generator=generator(self.seed))
        train, test = split_off(seeds.to(device), torch.zeros(n, device=device), self.test_samples)
        spec = Spec("episodes", (size,), "returns", actions, vocabulary=2**31, environment=self.environment)
        return Splits(train, test, spec, "episodes")


def make(name: str) -> Any:
    """Make an environment; `Invalid` if it does not exist, or gymnasium is not installed."""
    try:
        import gymnasium
    except ImportError:
        raise Invalid("environment", name, "needs gymnasium: pip install 'gradlab[rl]'") from None
    try:
        return gymnasium.make(name, disable_env_checker=True)
    except (gymnasium.error.Error, ImportError) as error:
        raise Invalid("environment", name, " ".join(str(error).split())) from None


def spaces(name: str) -> tuple[int, int]:
    """Size of an observation, and number of actions."""
    environment = make(name)
    try:
        seen, done = environment.observation_space, environment.action_space
    finally:
        environment.close()
    shape: tuple[int, ...] = getattr(seen, "shape", None) or ()
    start = getattr(done, "start", 0)
    if len(shape) != 1 or getattr(done, "n", None) is None or getattr(done, "shape", ()) != () or start:
        raise Invalid("environment", name, f"must show vectors and offer a number of actions, not {seen} and {done}")
    return int(shape[0]), int(done.n)
