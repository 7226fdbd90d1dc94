"""Faults that others have published, as small loops under `gradlab.watch`: what it says, beside what the source says.

python experiments/diagnosis/public.py [NAME ...]

Sources are DeepFD's benchmark (Cao et al., ICSE 2022: programs of Stack Overflow, each with a repair), the problems of
AUTOTRAINER (Zhang et al., ICSE 2021), silent errors of TrainCheck (Jiang et al., OSDI 2025), and post-mortems. Models
and data are of a size for a CPU; what is wrong, and its repair, are the source's.
A fault counts if the repair is better.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

import torch
import torch.nn.functional as F
from sklearn import datasets
from torch import Tensor, nn

import gradlab

BATCH = 32


@dataclass
class Training:
    """A model with its optimizer, loss and data, and how it is trained where that is unusual."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    loss: Callable[[Tensor, Tensor], Tensor]
    x: Tensor
    y: Tensor
    updates: int = 300
    loop: Callable[[Training], None] | None = None
    batch: int = BATCH

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        for _ in range(self.updates):
            chosen = torch.randperm(len(self.x))[: self.batch]
            yield self.x[chosen], self.y[chosen]

    def run(self) -> None:
        if self.loop:
            return self.loop(self)
        for x, y in self.batches():
            self.optimizer.zero_grad()
            self.loss(self.model(x), y).backward()
            self.optimizer.step()

    @torch.no_grad()
    def quality(self) -> float:
        """The accuracy, or of a regression the explained share of the variance (0 where there is none)."""
        self.model.eval()
        out, y = self.model(self.x), self.y
        if not torch.isfinite(out).all():
            return 0.0
        if y.dtype == torch.long:
            return (out.argmax(1) == y).float().mean().item()
        if len(y.unique()) == 2:
            middle = 0.0 if self.loss is F.binary_cross_entropy_with_logits else 0.5
            return ((out > middle).float() == y).float().mean().item()
        return max(0.0, 1 - (F.mse_loss(out.view_as(y), y) / y.var(correction=0)).item())


@dataclass
class Case:
    name: str
    source: str
    fault: str
    expected: set[str]
    """Verdicts and codes that name it; fixed before the first run."""
    make: Callable[[bool], Training]
    """Of whether it is repaired."""


CASES: list[Case] = []


def case(source: str, fault: str, *expected: str) -> Callable[[Callable[[bool], Training]], None]:
    def add(make: Callable[[bool], Training]) -> None:
        CASES.append(Case(make.__name__, source, fault, set(expected), make))

    return add


def digits() -> tuple[Tensor, Tensor]:
    x, y = datasets.load_digits(return_X_y=True)
    return torch.tensor(x / 16, dtype=torch.float32), torch.tensor(y)


def table(load: Callable[..., tuple[object, object]], scaled: bool) -> tuple[Tensor, Tensor]:
    x, y = (torch.tensor(a) for a in load(return_X_y=True))
    return ((x - x.mean(0)) / x.std(0) if scaled else x).float(), y


def circles() -> tuple[Tensor, Tensor]:
    x, y = datasets.make_circles(512, noise=0.05, factor=0.5, random_state=0)
    return torch.tensor(x, dtype=torch.float32), torch.tensor(y, dtype=torch.float32)[:, None]


def mlp(*widths: int, act: type[nn.Module] | None = nn.ReLU, last: type[nn.Module] | None = None) -> nn.Sequential:
    layers: list[nn.Module] = []
    for i, (a, b) in enumerate(pairwise(widths)):
        layers.append(nn.Linear(a, b))
        kind = act if i < len(widths) - 2 else last
        if kind:
            layers.append(kind(dim=1) if kind is nn.Softmax else kind())
    return nn.Sequential(*layers)


def normal(model: nn.Module, std: float) -> nn.Module:
    for p in model.parameters():
        nn.init.normal_(p, std=std)
    return model


def sgd(model: nn.Module, lr: float, momentum: float = 0.0) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum)


def adam(model: nn.Module, lr: float = 1e-3) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=lr)


def one_hot(loss: Callable[[Tensor, Tensor], Tensor], out: Tensor, y: Tensor) -> Tensor:
    return loss(out, F.one_hot(y, out.shape[1]).float())


squares = partial(one_hot, F.mse_loss)


def log_of_shares(out: Tensor, y: Tensor) -> Tensor:
    """Keras's categorical_crossentropy of probabilities."""
    return F.nll_loss(torch.log((out / out.sum(1, keepdim=True).clamp_min(1e-7)).clamp(1e-7, 1)), y)


# DeepFD: the number is the question of Stack Overflow


@case(
    "DeepFD 48385830", "no activations, squares for classes, rate 3", "diverged", "exploding", "nan_loss", "nan_forward"
)
def no_activation(fixed: bool) -> Training:
    x, y = digits()
    model = mlp(64, 30, 10, act=nn.Sigmoid if fixed else None)
    normal(model, 1.0)
    return Training(model, sgd(model, 3.0), F.cross_entropy if fixed else squares, x, y)


@case(
    "DeepFD 48251943",
    "a last ReLU where targets are negative too",
    "dead_units",
    "vanishing",
    "not_learning",
    "stalled",
)
def relu_at_the_end(fixed: bool) -> Training:
    x = torch.linspace(-3, 3, 512)[:, None]
    model = mlp(1, 32, 32, 1, last=nn.Tanh if fixed else nn.ReLU)
    return Training(model, adam(model), F.mse_loss, x, torch.sin(2 * x), 600)


@case("DeepFD 38648195", "softmax and squares for independent labels", "not_learning", "stalled", "vanishing")
def softmax_for_labels(fixed: bool) -> Training:
    x, y = digits()
    labels = torch.stack([y % 2 == 0, y > 4, y % 3 == 0, y < 3], 1).float()
    model = mlp(64, 32, 4, last=nn.Sigmoid if fixed else nn.Softmax)
    return Training(model, sgd(model, 0.1), F.binary_cross_entropy if fixed else F.mse_loss, x, labels, 1000)


@case(
    "DeepFD 33969059",
    "softmax over one output of a regression",
    "zero_gradient",
    "not_learning",
    "stalled",
    "vanishing",
)
def softmax_of_one(fixed: bool) -> Training:
    x = torch.randn(512, 8)
    model = mlp(8, 16, 1, last=None if fixed else nn.Softmax)
    return Training(model, adam(model, 0.01), F.mse_loss, x, x[:, :1] - 2 * x[:, 1:2])


@case(
    "DeepFD 55328966",
    "pixels to 255, sigmoid for classes",
    "not_learning",
    "saturated_units",
    "dead_units",
    "diverged",
    "update_too_large",
)
def raw_pixels(fixed: bool) -> Training:
    x, y = digits()
    model = mlp(64, 64, 64, 10, last=None if fixed else nn.Sigmoid)
    return Training(model, sgd(model, 0.1), F.cross_entropy if fixed else log_of_shares, x if fixed else 255 * x, y)


@case(
    "DeepFD 31880720, 42800203",
    "softmax over one output of a classifier",
    "zero_gradient",
    "not_learning",
    "stalled",
    "vanishing",
)
def softmax_of_one_class(fixed: bool) -> Training:
    x, y = circles()
    model = mlp(2, 32, 32, 1, last=nn.Sigmoid if fixed else nn.Softmax)
    return Training(model, adam(model, 0.01), lambda out, y: F.binary_cross_entropy(out.clamp(1e-7, 1 - 1e-7), y), x, y)


@case("DeepFD 39217567", "an autoencoder of sigmoids with tiny weights", "vanishing", "stalled", "not_learning")
def sigmoid_autoencoder(fixed: bool) -> Training:
    x, _ = digits()
    model = mlp(64, 64, 64, 64, act=nn.ReLU if fixed else nn.Sigmoid)
    normal(model, 0.05)
    return Training(model, sgd(model, 0.5), F.mse_loss, x, x, 500)


@case("DeepFD 48934338", "a rate a thousand times too high for a regression", "exploding", "diverged", "nan_loss")
def high_rate_of_regression(fixed: bool) -> Training:
    x = torch.linspace(0, 20, 256)[:, None]
    model = mlp(1, 8, 1, act=None)
    return Training(model, sgd(model, 1e-3 if fixed else 0.1), F.mse_loss, x, 3 * x + 2)


@case(
    "DeepFD 47724077, 39525358",
    "unscaled features",
    "not_learning",
    "stalled",
    "diverged",
    "update_too_large",
    "dead_units",
    "exploding",
)
def unscaled_features(fixed: bool) -> Training:
    x, y = table(datasets.load_wine, fixed)
    model = mlp(13, 16, 3)
    return Training(model, sgd(model, 0.05), F.cross_entropy, x, y)


@case(
    "DeepFD 52800582", "unscaled inputs and targets of a regression", "exploding", "diverged", "nan_loss", "nan_forward"
)
def unscaled_regression(fixed: bool) -> Training:
    x = torch.arange(0, 1000.0)[:, None] / (1 if not fixed else 500) - (1 if fixed else 0)
    model = mlp(1, 32, 32, 1)
    y = x**2
    return Training(model, sgd(model, 0.01), F.mse_loss, x, (y - y.mean()) / y.std() if fixed else y, 600)


@case(
    "DeepFD 48221692",
    "sigmoid at the end of a regression to 100",
    "saturated_units",
    "not_learning",
    "stalled",
    "vanishing",
    "zero_gradient",
)
def sigmoid_at_the_end(fixed: bool) -> Training:
    x = torch.randn(512, 4)
    model = mlp(4, 32, 1, last=None if fixed else nn.Sigmoid)
    return Training(model, adam(model, 0.05), F.mse_loss, x, 40 + 20 * x[:, :1] + 10 * x[:, 1:2])


@case(
    "DeepFD 47352366",
    "ReLU in place of softmax before the log",
    "dead_units",
    "not_learning",
    "vanishing",
    "zero_gradient",
    "stalled",
)
def relu_for_softmax(fixed: bool) -> Training:
    x, y = digits()
    model = mlp(64, 32, 10, last=None if fixed else nn.ReLU)
    return Training(model, adam(model), F.cross_entropy if fixed else log_of_shares, x, y, 500)


@case("DeepFD 56380303", "SGD at its default rate for deep plain convolutions", "not_learning", "stalled", "vanishing")
def slow_convolutions(fixed: bool) -> Training:
    x, y = digits()
    layers = [layer for i in range(9) for layer in (nn.Conv2d(1 if not i else 16, 16, 3, padding=1), nn.ReLU())]
    model = nn.Sequential(nn.Unflatten(1, (1, 8, 8)), *layers, nn.Flatten(), nn.Linear(16 * 64, 10))
    return Training(model, adam(model, 1e-3) if fixed else sgd(model, 0.01), F.cross_entropy, x, y)


@case(
    "DeepFD 37624102",
    "SGD at 0.1 with momentum for plain convolutions",
    "diverged",
    "not_learning",
    "dead_units",
    "exploding",
    "vanishing",
    "update_too_large",
)
def fast_convolutions(fixed: bool) -> Training:
    x, y = digits()
    layers = [layer for i in range(4) for layer in (nn.Conv2d(1 if not i else 32, 32, 3, padding=1), nn.ReLU())]
    model = nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)), *layers, nn.Flatten(), nn.Linear(32 * 64, 128), nn.ReLU(), nn.Linear(128, 10)
    )
    for p in model.parameters():
        if p.ndim > 1:
            nn.init.kaiming_normal_(p)
    return Training(model, sgd(model, 0.01 if fixed else 0.1, 0.9), F.cross_entropy, 4 * x, y)


@case("DeepFD 46642627", "a rate ten thousand times too high for unscaled data", "exploding", "diverged", "nan_loss")
def high_rate_of_unscaled(fixed: bool) -> Training:
    x, y = table(datasets.load_diabetes, True)
    x, y = (x, y[:, None].float()) if not fixed else (x, (y[:, None].float() - 152) / 77)
    model = mlp(10, 64, 1)
    return Training(model, sgd(model, 0.01), F.mse_loss, 100 * x if not fixed else x, y)


@case(
    "DeepFD 46995209",
    "ten tanh layers on unscaled features",
    "vanishing",
    "saturated_units",
    "not_learning",
    "stalled",
    "dead_units",
)
def deep_on_unscaled(fixed: bool) -> Training:
    x, y = table(datasets.load_wine, fixed)
    model = mlp(13, 10, 25, 3) if fixed else mlp(13, 10, 90, *[10] * 8, 3, act=nn.Tanh)
    return Training(model, sgd(model, 0.1), F.cross_entropy, x, y)


@case("DeepFD 51181393", "RMSprop at 0.001 for targets of thousands", "stalled", "not_learning", "too_short")
def slow_rmsprop(fixed: bool) -> Training:
    x = torch.randn(512, 8)
    model = mlp(8, 16, 1, act=None)
    y = 5000 + 1000 * x[:, :1]
    return Training(model, torch.optim.RMSprop(model.parameters(), lr=1.0 if fixed else 1e-3), F.mse_loss, x, y, 1000)


@case(
    "DeepFD FacialKeypointsDetection",
    "Adam at 0.1",
    "diverged",
    "not_learning",
    "dead_units",
    "update_too_large",
    "exploding",
    "vanishing",
)
def fast_adam(fixed: bool) -> Training:
    x, _ = digits()
    model = mlp(64, 100, 100, 100, 16)
    return Training(model, adam(model, 1e-3 if fixed else 0.1), F.mse_loss, x, x[:, 16:32], 500)


@case("DeepFD gol_nn, 44998910", "a rate too low, stopped early", "stalled", "not_learning", "too_short")
def low_rate(fixed: bool) -> Training:
    x = torch.randn(512, 8)
    model = mlp(8, 16, 1, act=nn.Tanh)
    return Training(model, sgd(model, 0.1 if fixed else 1e-5), F.mse_loss, x, torch.sin(x[:, :1]) + x[:, 1:2], 500)


# AUTOTRAINER: its five problems


@case("AUTOTRAINER gradient vanish", "fifteen sigmoid layers", "vanishing")
def vanish(fixed: bool) -> Training:
    x, y = circles()
    model = mlp(2, *[16] * (15 if not fixed else 3), 1, act=nn.Sigmoid if not fixed else nn.SELU)
    return Training(model, adam(model, 0.01), F.binary_cross_entropy_with_logits, x, y)


@case(
    "AUTOTRAINER gradient explode", "twelve ReLU layers with large initial weights", "exploding", "diverged", "nan_loss"
)
def explode(fixed: bool) -> Training:
    x, y = digits()
    model = mlp(64, *[64] * 12, 10)
    for p in model.parameters():
        if p.ndim > 1:
            nn.init.normal_(p, std=(2 / 64) ** 0.5 * (1 if fixed else 4))
    return Training(model, sgd(model, 0.01), F.cross_entropy, x, y)


@case("AUTOTRAINER dying ReLU", "ReLU layers with negative biases", "dead_units")
def dying(fixed: bool) -> Training:
    x, y = digits()
    model = mlp(64, 32, 32, 10)
    for p in model.parameters():
        if p.ndim == 1 and not fixed:
            nn.init.constant_(p, -2.0)
    return Training(model, adam(model), F.cross_entropy, x, y)


@case(
    "AUTOTRAINER oscillating loss",
    "a rate at which the loss goes up and down",
    "diverged",
    "update_too_large",
    "not_learning",
    "exploding",
    "dead_units",
)
def oscillating(fixed: bool) -> Training:
    x, y = digits()
    model = mlp(64, 64, 64, 10, act=nn.Tanh)
    return Training(model, sgd(model, 0.1 if fixed else 8.0), F.cross_entropy, x, y)


@case("AUTOTRAINER slow convergence", "a rate ten thousand times too low", "stalled", "not_learning")
def slow(fixed: bool) -> Training:
    x, y = digits()
    model = mlp(64, 64, 10)
    return Training(model, adam(model, 1e-3 if fixed else 1e-7), F.cross_entropy, x, y, 500)


# TrainCheck, and post-mortems


@case("TrainCheck, Stack Overflow 60335387", "no zero_grad()", "GL305")
def no_zero_grad(fixed: bool) -> Training:
    def loop(t: Training) -> None:
        for x, y in t.batches():
            if fixed:
                t.optimizer.zero_grad()
            t.loss(t.model(x), y).backward()
            t.optimizer.step()

    x, y = digits()
    model = mlp(64, 64, 10)
    return Training(model, sgd(model, 0.1), F.cross_entropy, x, y, loop=loop)


@case(
    "TrainCheck, PyTorch's forum 84911",
    "all but batch norm frozen, in a network that was not trained",
    "GL703",
    "not_learning",
    "stalled",
    "GL709",
)
def all_but_norms_frozen(fixed: bool) -> Training:
    x, y = digits()
    norms = [layer for _ in range(2) for layer in (nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU())]
    model = nn.Sequential(*norms, nn.Linear(64, 10))
    for module in model:
        if not isinstance(module, nn.BatchNorm1d) and not fixed:
            module.requires_grad_(False)
    return Training(model, sgd(model, 1e-3 if not fixed else 0.1), F.cross_entropy, x, y)


@case(
    "TrainCheck, Accelerate 2665", "the optimizer holds the weights of before the model was wrapped", "GL701", "GL708"
)
def weights_of_before(fixed: bool) -> Training:
    x, y = digits()
    model = mlp(64, 64, 10)
    optimizer = sgd(model, 0.1)
    for module in model:
        if isinstance(module, nn.Linear) and not fixed:
            module.weight, module.bias = (
                nn.Parameter(module.weight.detach().clone()),
                nn.Parameter(module.bias.detach()),
            )
    return Training(model, optimizer, F.cross_entropy, x, y)


class Contiguous(torch.optim.Optimizer):
    """Adam's direction without memory, whose writes to weights that are not contiguous go to a copy."""

    def __init__(self, model: nn.Module, fixed: bool) -> None:
        super().__init__(model.parameters(), {"lr": 0.01})
        self.fixed = fixed

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                to = p.data if self.fixed else p.data.contiguous()
                to.addcdiv_(p.grad, p.grad.abs() + 1e-3, value=-group["lr"])


@case(
    "post-mortem: elanapearl.github.io, addcdiv_ on MPS",
    "an encoder that a kernel's write never reaches",
    "updates_lost",
    "stalled",
    "not_learning",
)
def lost_writes(fixed: bool) -> Training:
    x, _ = digits()
    model = mlp(64, 16, 64)
    model[0].weight = nn.Parameter(torch.empty(64, 16).t().copy_(0.1 * model[2].weight.t()))
    return Training(model, Contiguous(model, fixed), F.mse_loss, x, x)


@case(
    "post-mortem: PaLM, OPT-175B",
    "batches that throw the loss, learning goes on",
    "bad_batch",
    "loss_spike_recovered",
    "spike",
)
def bad_batches(fixed: bool) -> Training:
    def loop(t: Training) -> None:
        for i, (x, y) in enumerate(t.batches()):
            t.optimizer.zero_grad()
            t.loss(t.model(x * 300 if i % 150 == 100 and not fixed else x), y).backward()
            t.optimizer.step()

    x, y = digits()
    model = mlp(64, 64, 64, 10)
    return Training(model, sgd(model, 0.1, 0.9), F.cross_entropy, x, y, loop=loop)


def watched(case: Case, fixed: bool) -> tuple[float, str, set[str]]:
    """What a training came to, its verdict, and the codes that were reported as errors or warnings."""
    torch.manual_seed(0)
    training = case.make(fixed)
    with tempfile.TemporaryDirectory() as folder:
        with gradlab.watch(training.model, training.optimizer, folder=Path(folder) / "watch") as watch:
            training.run()
        verdict = next(line for line in watch.report().splitlines() if line.startswith("verdict:")).split()[1]
    codes = {f.kind.code for f in watch.faults if f.kind.severity != "advice"}
    return training.quality(), verdict, codes


def main() -> None:
    print("| source | fault | reached, repaired | says | as expected | repaired it says |\n|---|---|---|---|---|---|")
    for one in CASES:
        if len(sys.argv) > 1 and one.name not in sys.argv[1:]:
            continue
        (bad, verdict, codes), (good, after, more) = watched(one, False), watched(one, True)
        named = "yes" if one.expected & {verdict, *codes} else "no"
        effect = named if good - bad > 0.05 else f"no effect ({named})"
        says = ", ".join([verdict, *sorted(codes)]), ", ".join([after, *sorted(more)])
        print(f"| {one.source} | {one.fault} | {bad:.2f}, {good:.2f} | {says[0]} | {effect} | {says[1]} |", flush=True)


if __name__ == "__main__":
    main()
