"""Small modules and data sets that the tests name in a configuration, as a user would: model.target=nets:Tiny."""

import os
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn


class Tiny(nn.Sequential):
    """A digit (1, 8, 8) -> 10 logits."""

    def __init__(self, width: int = 16, dropout: float = 0.0, outputs: int = 10) -> None:
        layers = [nn.Flatten(), nn.Linear(64, width), nn.Tanh(), nn.Dropout(dropout), nn.Linear(width, outputs)]
        super().__init__(*layers)


class Overflows(Tiny):
    """Logits that no fp16 number holds, in so many forward passes in training after the first."""

    def __init__(self, after: int = 0, factor: float = 1e30, passes: float = float("inf")) -> None:
        super().__init__()
        self.left, self.factor, self.passes = after, factor, passes

    def forward(self, x: Tensor) -> Tensor:
        self.left -= self.training
        return super().forward(x) * (self.factor if -self.passes <= self.left < 0 else 1.0)


class Exponential(nn.Sequential):
    """(B, 4) -> (B, 1), the exponential of a linear function's output times a factor."""

    def __init__(self, factor: float) -> None:
        super().__init__(nn.Linear(4, 1))
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return (super().forward(x) * self.factor).exp()


class Normalised(nn.Module):
    """(B, 4) -> (B, 1); a sample of zeros is 0/0, or has a gradient of 0/0 where the norm comes after a layer."""

    def __init__(self, after: bool) -> None:
        super().__init__()
        self.first, self.last, self.after = nn.Linear(4, 16, bias=False), nn.Linear(16, 1), after

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x if self.after else x / x.square().sum(1, keepdim=True).sqrt())
        norm = x.square().sum(1, keepdim=True).sqrt() if self.after else 1.0
        return self.last((x / (norm + 1e-6)).relu())


class Repeated(nn.Module):
    """(B, 4) -> (B, 1), through one linear layer again and again; or squared as often, whatever the weights."""

    def __init__(self, squares: bool = False) -> None:
        super().__init__()
        self.first, self.again, self.last = nn.Linear(4, 8), nn.Linear(8, 8, bias=False), nn.Linear(8, 1)
        self.squares = squares
        nn.init.orthogonal_(self.again.weight)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for _ in range(40):
            x = self.again(x)
        if self.squares:
            x = x * 1e20 * x * 1e20
        return self.last(x)


class Unused(Tiny):
    """Has a layer that it does not use."""

    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        for layer in list(self)[:-1]:
            x = layer(x)
        return x


class NaNAt(Tiny):
    """One forward pass in training, counted from 1, gives NaN."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.at = at

    def forward(self, x: Tensor) -> Tensor:
        self.at -= self.training
        return super().forward(x) * (float("nan") if self.at == 0 and self.training else 1.0)


class FailsOnRank1(Tiny):
    """Raises in the third forward pass of rank 1, and notes when."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        if self.calls == 3 and os.environ.get("RANK") == "1":
            Path("failed_at").write_text(str(time.time()))
            raise RuntimeError("the third forward pass of rank 1 is out of luck")
        return super().forward(x)


def data_missing_on_rank1() -> tuple[Tensor, Tensor]:
    """A data set whose file one machine does not have."""
    if os.environ.get("RANK") == "1":
        Path("failed_at").write_text(str(time.time()))
        raise FileNotFoundError(2, "No such file or directory", "/data/shard_1")
    return torch.randn(32, 1, 8, 8), torch.randint(0, 10, (32,))


def more_data_on_rank1() -> tuple[Tensor, Tensor]:
    """A data set of which one machine has another version."""
    samples = 65 if os.environ.get("RANK") == "1" else 64
    return torch.randn(samples, 1, 8, 8), torch.arange(samples) % 10


def other_data_on_rank1() -> tuple[Tensor, Tensor]:
    """A data set that each machine has shuffled in its own way."""
    draw = torch.Generator().manual_seed(int(os.environ.get("RANK", "0")))
    return torch.randn(64, 1, 8, 8, generator=draw), torch.arange(64) % 10


class SlowToExplain(Overflows):
    """Takes its time when somebody follows its forward pass."""

    def forward(self, x: Tensor) -> Tensor:
        if len(self._forward_hooks) > 1:  # one is gradlab's own
            time.sleep(5)
        return super().forward(x)


class Odd(nn.Module):
    """A tied weight, one number, a frozen layer, a layer that is not used, and a buffer that training changes."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.first, self.second, self.tied = nn.Linear(64, width), nn.Linear(width, width), nn.Linear(width, width)
        self.tied.weight = self.second.weight
        self.frozen = nn.Linear(width, width).requires_grad_(False)
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.head, self.unused = nn.Linear(width, 10), nn.Linear(3, 3)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x.flatten(1)).tanh()
        if self.training:
            self.seen += x.detach().square().mean()
        x = self.tied(self.second(x).tanh()).tanh() + self.frozen(x)
        return self.head(x * self.scale)


class TwoCells(nn.Module):
    """(B, T, 2) -> (B, 1) through two recurrent layers, of which the later one is defined first, and used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.second, self.first = nn.GRU(8, 8, batch_first=True), nn.RNN(2, 8, batch_first=True)
        self.never, self.head = nn.LSTM(8, 8, batch_first=True), nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.second(self.second(self.first(x)[0])[0])[0]
        return self.head(x[:, -1])


class Branching(Tiny):
    """Takes another way where its input says so."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x if x.mean() > 1e9 else x * 2) if self[1].weight.sum() < 1e9 else x


class Replacing(Tiny):
    """Puts a new tensor in the place of its buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.mean = 0.9 * self.mean + 0.1 * x.detach().mean()
        return super().forward(x)


class Remembering(Tiny):
    """Keeps a running mean in a tensor that is no buffer: replaced, changed in place, or in a list."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.still = how, torch.ones(3)
        self.mean = torch.zeros((), dtype=torch.bfloat16)
        self.means = [torch.zeros(())]
        self.last: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        outputs = super().forward(x)
        now = outputs.detach().mean()
        if self.how == "replaced":
            self.mean = 0.9 * self.mean + 0.1 * now
        elif self.how == "in place":
            self.mean += now
        elif self.how == "list":
            self.means[0] = now
        elif self.how == "first":
            self.last = now
        return outputs * self.still.sum()


class Drawing(Tiny):
    """Draws its noise from NumPy."""

    def forward(self, x: Tensor) -> Tensor:
        import numpy

        return super().forward(x + float(numpy.random.randn()))


class Heads(nn.Module):
    """A digit as its rows, through one of PyTorch's attention layers."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.head = nn.MultiheadAttention(8, 2, batch_first=True), nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1, 2)
        return self.head(self.attention(x, x, x)[0].mean(1))


def doubled() -> Tiny:
    return Tiny().double()


class Halved(Tiny):
    """Weights in bfloat16."""

    def __init__(self) -> None:
        super().__init__()
        self.to(torch.bfloat16)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.to(torch.bfloat16)).float()


def quits() -> nn.Module:
    raise SystemExit(3)


class Typed(Tiny):
    """Weights of a given type."""

    def __init__(self, dtype: str) -> None:
        super().__init__()
        self.to(getattr(torch, dtype))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.to(self[1].weight.dtype))


class Denoiser(nn.Sequential):
    """Images (1, 6, 6) -> images of their size."""

    def __init__(self) -> None:
        super().__init__(nn.Conv2d(1, 4, 3, padding=1), nn.Tanh(), nn.Conv2d(4, 1, 3, padding=1))


def noisy_images() -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Pairs of a noisy image and the image, (1, 6, 6) each."""
    clean = torch.randn(20, 1, 6, 6, generator=torch.Generator().manual_seed(0)).cumsum(-1)
    noise = torch.randn(clean.shape, generator=torch.Generator().manual_seed(1))
    return (clean[:16] + noise[:16], clean[:16]), (clean[16:] + noise[16:], clean[16:])


def absolute(outputs: Tensor, targets: Tensor) -> Tensor:
    """Mean absolute difference of each image, (B,)."""
    assert outputs.shape == targets.shape and targets.dim() == 4
    return (outputs - targets).abs().mean((1, 2, 3))


def squared_sum(outputs: Tensor, targets: Tensor) -> Tensor:
    """Over all samples of the batch, ()."""
    return (outputs - targets).square().sum()


def ordinal(outputs: Tensor, targets: Tensor) -> Tensor:
    """Of (B, 9) logits of being above each digit but the last, as of ordered classes: (B,)."""
    above = (targets[:, None] > torch.arange(9)).float()
    return nn.functional.binary_cross_entropy_with_logits(outputs, above, reduction="none").sum(1)


def relative(outputs: Tensor, targets: Tensor) -> Tensor:
    """A loss that a target of 0 makes infinite."""
    return ((outputs - targets) / targets).abs().mean()


class Vectors(torch.optim.SGD):
    """Steps no matrix, as an optimizer does whose arithmetic of matrices DTensors do not have."""

    def step(self, closure: Any = None) -> None:
        if any(p.dim() > 1 for group in self.param_groups for p in group["params"]):
            raise RuntimeError("no matrices")


class Counting(torch.optim.SGD):
    """State of its own in its group, as schedule-free optimizers have it."""

    def __init__(self, params: Any, lr: float, growth: float = 0.1) -> None:
        super().__init__(params, lr=lr)
        for group in self.param_groups:
            group["steps"] = 0

    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            group["steps"] += 1
            for p in group["params"]:
                p.data.sub_(p.grad, alpha=group["lr"] / group["steps"])


class Sparse(nn.Sequential):
    """A digit -> 10 logits, by an embedding with sparse gradients."""

    def __init__(self) -> None:
        super().__init__(nn.Flatten(), nn.EmbeddingBag(64, 10, sparse=True))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.clamp(0, 1).long())


class HeldInHalf(Tiny):
    """Its weights are fp16, its arithmetic is fp32's outside of autocast."""

    def __init__(self) -> None:
        super().__init__()
        self.half()

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.half()).float()


class ScheduleFree(torch.optim.SGD):
    """Trains weights, and evaluates a third of them, as one that is schedule-free evaluates an average."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, lr=lr)
        self.training = False

    def scale(self, factor: float, training: bool) -> None:
        if self.training is not training:
            for group in self.param_groups:
                torch._foreach_mul_([p.detach() for p in group["params"]], factor)
        self.training = training

    def train(self) -> None:
        self.scale(3.0, True)

    def eval(self) -> None:
        self.scale(1 / 3.0, False)

    def step(self, closure: Any = None) -> Any:
        if not self.training:
            raise Exception("Optimizer was not in train mode when step is called.")
        return super().step(closure)


class Unfreezing(Tiny):
    """Of which the first layer is frozen until a forward pass in training; and again from another on."""

    def __init__(self, at: int = 5, until: int = 1000) -> None:
        super().__init__()
        self.at, self.until = at, until
        self.register_buffer("passes", torch.zeros((), dtype=torch.int64))
        self[1].requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.passes += 1
            if int(self.passes) in (self.at, self.until):
                self[1].requires_grad_(int(self.passes) == self.at)
        return super().forward(x)
