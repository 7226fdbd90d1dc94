"""A stochastic policy that plays episodes with its current weights, and returns the probability of each action.

B episodes, T steps of the longest, S steps of all, D size of what is seen, K actions
"""

from __future__ import annotations

import copy
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from gradlab.data.episodes import make
from gradlab.data.spec import Spec
from gradlab.models.networks.layers import ACTIVATIONS


class Policy(nn.Module):
    """Seeds of episodes (B,) -> (B, T, 3): of every step log p(action), reward, and 1 (0 after the end).

    In training actions are drawn from PyTorch's generator of the CPU; in evaluation the likeliest is taken. Playing
    needs no gradient; then the probabilities of all steps are computed again, in one batch, for the backward pass.
    """

    def __init__(self, spec: Spec, *, layers: int, width: int, activation: str) -> None:
        """The fields of `model=policy` (see gradlab/models/policy.py)."""
        super().__init__()
        self.name = spec.environment
        self.environments: list[Any] = []
        sizes = [spec.shape[0], *[width] * layers]
        hidden = [
            layer
            for before, after in pairwise(sizes)
            for layer in (nn.Linear(before, after), ACTIVATIONS[activation]())
        ]
        self.net = nn.Sequential(*hidden, nn.Linear(sizes[-1], spec.outputs))

    def forward(self, seeds: Tensor) -> Tensor:
        device = next(self.net.parameters()).device
        seen, actions, where, rewards = self.play(seeds.tolist(), device)
        log_probs = self.net(seen.to(device)).log_softmax(-1)  # (S, K)
        chosen = log_probs.gather(1, actions.to(device)[:, None])[:, 0]  # (S,)
        steps = torch.stack([chosen, *torch.stack([rewards, torch.ones_like(rewards)]).to(chosen)], dim=1)  # (S, 3)
        out = steps.new_zeros(len(seeds), int(where[:, 1].max()) + 1, 3)
        return out.index_put(tuple(where.to(device).T), steps)  # (B, T, 3)

    @torch.no_grad()
    def play(self, seeds: list[int], device: torch.device) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Whole episodes side by side: what was seen (S, D), actions (S,), episode and step (S, 2), rewards (S,)."""
        self.environments += [make(self.name) for _ in range(len(seeds) - len(self.environments))]
        net = self.net if device.type == "cpu" else copy.deepcopy(self.net).cpu()
        now = [e.reset(seed=s)[0] for e, s in zip(self.environments, seeds, strict=False)]
        under_way = list(range(len(seeds)))
        seen, actions, where, rewards = [], list[int](), list[tuple[int, int]](), list[float]()
        step = 0
        while under_way:
            draws = torch.rand(len(seeds)) if self.training else None
            x = torch.stack([torch.as_tensor(now[i], dtype=torch.float32) for i in under_way])
            chosen = choose(logits(net, x), None if draws is None else draws[under_way]).tolist()
            seen.append(x)
            actions += chosen
            where += [(i, step) for i in under_way]
            going = []
            for i, action in zip(under_way, chosen, strict=True):
                now[i], reward, ended, cut, _ = self.environments[i].step(action)
                rewards.append(float(reward))
                if not (ended or cut):
                    going.append(i)
            under_way, step = going, step + 1
        return torch.cat(seen), torch.tensor(actions), torch.tensor(where), torch.tensor(rewards)


def logits(net: nn.Sequential, x: Tensor) -> Tensor:
    """In fp32 in every precision, and without hooks: this is not the forward pass that is differentiated."""
    with torch.autocast("cpu", enabled=False):
        for layer in net:
            x = layer.forward(x)
    return x


def choose(scores: Tensor, draws: Tensor | None) -> Tensor:
    """(N,) actions with probabilities softmax(scores) (N, K), from draws (N,) in [0, 1); None: the likeliest.

    Non-finite scores select some action too: the failure will show in the gradient.
    """
    if draws is None:
        return scores.argmax(-1)
    below = scores.softmax(-1).cumsum(-1) <= draws[:, None]  # (N, K)
    return below.sum(-1).clamp(max=scores.shape[-1] - 1)
