"""REINFORCE (Williams 1992): the gradient of the expected return, from the returns of episodes that were played.

B episodes, T steps
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from gradlab.base.option import Invalid, option, require
from gradlab.data.spec import Spec
from gradlab.update.loss import Loss, at_least_fp32, fits


@option("loss", "policy_gradient")
@dataclass
class PolicyGradient(Loss):
    """Minus the return of an episode, whose gradient is -sum over t of advantage(t) * d log p(action(t)).

    The usual -sum(advantage * log p) has that gradient too, but its value measures nothing: it need not fall while the
    policy improves. This one's is the return itself (as in Foerster et al., arXiv:1802.05098), so that everything that
    reads losses works. Outputs are (B, T, 3): log p(action), reward, and 1 (0 after the end).
    """

    discount: float = 1.0
    """Factor on a reward for each step until it."""
    normalise: bool = False
    """Whether advantages are standardised over the steps of a micro-batch; else they are the returns from each step on.
    Gradients of a window of several micro-batches then depend on how it is cut, as with batch norm."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 < self.discount <= 1, "discount", self.discount, "in (0, 1]")

    def resolve(self, spec: Spec) -> PolicyGradient:
        fits("policy_gradient", spec, "returns")
        return self

    def sum(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        if outputs.dim() != 3 or outputs.shape[2] != 3 or len(outputs) != len(targets):
            message = f"needs outputs of shape ({len(targets)}, T, 3), but the model returns {tuple(outputs.shape)}"
            raise Invalid("loss", "policy_gradient", message)
        log_probs, rewards, there = at_least_fp32(outputs).unbind(-1)  # (B, T)
        with torch.no_grad():
            advantages = returns_to_go(rewards, self.discount)
            if self.normalise:
                advantages = standardised(advantages, there)
        score = (log_probs * advantages).sum()
        return -(rewards.sum() + score - score.detach())


def returns_to_go(rewards: torch.Tensor, discount: float) -> torch.Tensor:
    """(B, T) sum over s >= t of discount^(s - t) * reward(s)."""
    result, after = torch.empty_like(rewards), torch.zeros_like(rewards[:, 0])
    for t in reversed(range(rewards.shape[1])):
        after = rewards[:, t] + discount * after
        result[:, t] = after
    return result


def standardised(values: torch.Tensor, there: torch.Tensor) -> torch.Tensor:
    """Mean 0 and standard deviation 1 over the elements where `there` is 1; zeros where all values are equal."""
    count = there.sum()
    values = (values - (values * there).sum() / count) * there
    spread = (values.square().sum() / count).sqrt()
    return values / (spread + 1e-8)
