"""Changes of the model and the loss, from initial weights, the failing operation, units and terms."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from dataclasses import MISSING, fields
from typing import Any

from gradlab.base.visible import several
from gradlab.config.remedy_option import Remedy
from gradlab.config.schema import Config
from gradlab.diagnosis.advice.line import two_digits
from gradlab.diagnosis.rules.layers import gated
from gradlab.diagnosis.update_sizes import LARGE_UPDATE
from gradlab.diagnosis.wording import CUTS, percent
from gradlab.remedies.evidence import Evidence
from gradlab.remedies.own_code import is_users
from gradlab.remedies.proposal import Proposal, code, named, setting
from gradlab.update.adam import AdamW
from gradlab.update.sgd import SGD

RECURRENT = 1.5
"""Initial size of a weight that is applied at every time step above which it stretches the state."""
SIZES = (0.2, 4.0)
"""Initial sizes (`Evidence.sizes`) outside of which a layer stretches or shrinks what passes it."""
LARGE_BIAS = 1.0
"""Root mean square of a bias that outweighs the weighted sum beside it, of inputs of size 1."""
MANY = 5
"""Layers over which a factor each adds up."""
STABLE = {
    "log": "log(x.clamp(min=tiny)); of a softmax log_softmax, of a sigmoid logsigmoid, or a loss that takes logits",
    "log2": "log2(x.clamp(min=tiny))",
    "log10": "log10(x.clamp(min=tiny))",
    "exp": "subtract the maximum first (logsumexp, softmax), or bound its argument: x.clamp(max=80), softplus",
    "cosh": "log(cosh(x)) is x + softplus(-2 * x) - log(2); else bound its argument: x.clamp(-80, 80)",
    "sinh": "bound its argument: x.clamp(-80, 80)",
    "sqrt": "sqrt(x.clamp(min=0) + eps): below 0 it is NaN, and at 0 its slope is infinite",
    "rsqrt": "rsqrt(x + eps)",
    "div": "divide by x.clamp(min=eps), or by where(x.abs() < eps, eps, x)",
    "reciprocal": "1 / x.clamp(min=eps)",
    "pow": "bound the base: away from 0 where the exponent is negative, else from above",
    "norm": "(x.square().sum() + eps).sqrt(): the slope of a norm at 0 is NaN",
    "linalg_vector_norm": "(x.square().sum() + eps).sqrt(): the slope of a norm at 0 is NaN",
    "softmax": "leave one position of each row unmasked, or mask with a large negative number instead of -inf",
    "acos": "acos(x.clamp(-1 + eps, 1 - eps))",
    "asin": "asin(x.clamp(-1 + eps, 1 - eps))",
    "atanh": "atanh(x.clamp(-1 + eps, 1 - eps))",
    "std": "sqrt(var + eps): the slope of a standard deviation of 0 is NaN",
}
"""Operation -> its stable form."""
OUTWEIGHED = 0.01
"""Of the weight of the other terms, with which one that is not learnt is to have a part in the gradient."""


def initial_sizes(e: Evidence, c: Config) -> Iterator[Proposal]:
    """Weights that begin off by a factor: all of a deep model's, or one layer's among the others."""
    sizes = [s for s in e.sizes.values() if s > 0]
    if not sizes:
        if e.sizes:
            begun = of_zero("all weights")
            yield from (named("he_init", begun.why), begun)
        return
    middle, usual = statistics.median(sizes), math.sqrt(2)
    if any(e.sizes[name] > RECURRENT for name in e.of_relus):
        yield from identity(e, c)
    for name in (n for n, size in e.sizes.items() if n in e.recurrent - e.of_relus and size > RECURRENT):
        said = f"{name} begins at {e.sizes[name]:.2g} / sqrt(fan-in), and is applied at every time step"
        yield named("orthogonal_init", said)
        yield code("initial weights", f"scale the initial {name} by {1 / e.sizes[name]:.2g}", said)
    off = (len(sizes) >= MANY and not 0.3 < middle < 2) or not SIZES[0] < middle < SIZES[1]
    apart = {n: s for n, s in e.sizes.items() if s == 0 or not 0.1 < s / middle < 10}
    odd = {n: s for n, s in apart.items() if not (off and SIZES[0] < s < SIZES[1])}
    if off:
        said = f"weights begin at {middle:.2g} / sqrt(fan-in), {middle / usual:.2g} times the {usual:.2g} of He's"
        yield named("he_init", said)
        but = f", but for {several(apart)}," if apart else ""
        yield code("initial weights", f"scale the initial weights{but} by {usual / middle:.2g}", said)
    saturated = str(e.found.get("saturated_units", {}).get("module"))
    for name in (n for n, size in e.sizes.items() if n.startswith(f"{saturated}.") and size > SIZES[1]):
        if name not in odd:
            said = f"{name} begins at {e.sizes[name]:.2g} / sqrt(fan-in), and {saturated} is saturated"
            yield code("initial weights", f"scale the initial {name} by {1 / e.sizes[name]:.2g}", said)
    for name, size in list(odd.items())[:3]:
        said = f"{name} begins at {size:.2g} / sqrt(fan-in), the other layers at {middle:.2g}"
        to = usual if off else middle
        scale = f"scale the initial {name} by {to / size:.2g}, or leave it" if size else f"leave the initial {name}"
        yield code("initial weights", f"{scale} as PyTorch makes it", said)


def identity(e: Evidence, c: Config) -> Iterator[Proposal]:
    """What recurrences of ReLUs begin with (Le, Jaitly and Hinton, arXiv:1504.00941), unless they are of that size.

    Of other weights each step keeps sqrt(1/2) of the gradient for each 1 / sqrt(fan-in), in the mean alone: at
    sqrt(2) it grew or shrank by 1e3 over 60 steps of 24 units, and orthogonal ones lost all of it. Through the
    identity it comes whole, and that of all steps adds up: of SGD, a step is then too large.
    """
    if names := [name for name in e.sizes if name in e.of_relus and abs(e.sizes[name] - 1) > 0.01]:
        those = f"begin with {several(names)} as the identity (torch.nn.init.eye_)"
        rate = f", and train with optimizer=adamw optimizer.lr={AdamW.lr:g}: the gradients of all time steps add up"
        adds_up = rate * isinstance(c.optimizer, SGD)
        why = f"{'they begin' if len(names) > 1 else 'it begins'} at {e.sizes[names[0]]:.2g} / sqrt(fan-in), and ReLU"
        why += " leaves half of the state at every time step: a gradient passes many best with the identity"
        yield code("initial weights", those + adds_up, why)


def of_zero(which: str) -> Proposal:
    why = "they begin at zero, and of a product of two such weights neither gets a gradient"
    return code("initial weights", f"begin with {which} different from zero (torch.nn.init.normal_)", why)


def initial_biases(e: Evidence, c: Config) -> Iterator[Proposal]:
    """Biases that begin so large that they alone turn units off or saturate them."""
    large = {name: size for name, size in e.biases.items() if size > LARGE_BIAS}
    if len(large) > 1 and e.verdict == "dead_units":
        large.pop(e.last_bias, None)  # that of outputs, which are no units, may be meant
    if large:
        sizes = [f"{size:.2g}" for size in large.values()][:3] + ["..."] * (len(large) > 3)
        many = f"begin{'s' * (len(large) == 1)} at {', '.join(sizes)} (root mean square)"
        said = f"{several(large)} {many}, more than what inputs of size 1 add to {'them' if len(large) > 1 else 'it'}"
        yield code("initial biases", f"begin with {several(large)} at zero (torch.nn.init.zeros_)", said)


def stable_loss(e: Evidence, c: Config) -> Iterator[Proposal]:
    """The stable form of the operation that failed: of gradlab's loss a field, of the user's own code its lines."""
    o = e.overflow
    if hasattr(c.loss, "stable"):
        yield named("stable_loss", f"{o.place} in the loss is what fails" if o and o.place else "")
    if o is None or o.phase in ("parameters", "inputs", "targets"):
        return
    in_loss = o.phase == "loss" or not o.kind
    if not is_users(c.loss if in_loss else c.model):
        return
    operation = o.derivative or o.operation or ""
    where = "in the loss"
    if not in_loss:
        where = f"{'before' if o.phase == 'between' else 'in'} {o.module or 'the model'} ({o.kind})"
    form = STABLE.get(operation.strip("_"))
    if form is not None:
        why = f"{o.failure} in {o.place}" if o.undefined and o.place else "it is the first that is not finite"
        why += ": no learning rate keeps what it divides by from zero" * (o.by_zero and not o.derivative)
        yield code("stable form", f"{operation.strip('_')} {where}: {form}", why)


def units(e: Evidence, c: Config) -> Iterator[Proposal]:
    """The activation of the layer whose units are dead or saturated."""
    for verdict, form in (
        ("dead_units", "a leaky ReLU"),
        ("saturated_units", "ReLU or GELU, or normalise before"),
    ):
        if (module := e.found.get(verdict, {}).get("module")) is not None:
            if gated(str(e.found[verdict].get("kind"))):
                form = "smaller initial weights, or normalise before"
            part = float(e.found[verdict].get("fraction", 1.0))
            yield code(
                "activation",
                f"{module or 'the ' + (e.found[verdict].get('operation') or 'activation') + ' in the model'}: {form}",
                f"{percent(part)} of {'its units are dead' if 'dead' in verdict else 'it is saturated'}",
            )


def terms(e: Evidence, c: Config) -> Iterator[Proposal]:
    """As much weight for those that are not learnt as another has; where they have it, less for all others."""
    unlearnt = e.found.get("unlearnt_term", {}).get("terms", [])
    names, weights = several(unlearnt), getattr(c.loss, "weights", None)
    they = "is" if len(unlearnt) == 1 else "are"
    if weights is not None and (others := [name for name in e.terms if name not in unlearnt]):
        of = {name: weights.get(name, 1.0) for name in e.terms}
        most = max(abs(of[name]) for name in others)
        if light := {name: math.copysign(most, of[name]) for name in unlearnt if 0 < abs(of.get(name, 1.0)) < most}:
            # a step of SGD is as small as its weight, however little the others have
            made, largest = {**weights, **light}, several([name for name in others if abs(of[name]) == most])
            why = f"{names} {they} not learnt: as large a weight as that of {largest}"
        else:
            made = {**weights, **{name: two_digits(OUTWEIGHED * of[name]) for name in others}}
            why = f"{names} {they} not learnt: a hundredth of the weight of {several(others)}"
        yield setting("loss.weights", why, {"loss.weights": made})
    lines = f"raise the weight of {names} (loss.weights), or lower those of the other terms"
    yield code("weights", lines, f"{names} {they} not learnt")


def logits(e: Evidence, c: Config) -> Iterator[Proposal]:
    """What a loss that takes a softmax itself is to be given."""
    if e.found.get(e.verdict, {}).get("probabilities"):
        lines = "return what goes into the last softmax or sigmoid, and not what comes out"
        yield code("logits", lines, "the loss takes a softmax of the outputs, which are probabilities already")


def bounded(e: Evidence, c: Config) -> Iterator[Proposal]:
    yield code("loss", "check the sign of the loss, and bound what it rewards", "the loss falls without bound")


def longer(e: Evidence, c: Config) -> Iterator[Proposal]:
    """A run of at least a hundred updates."""
    least = 100
    factor = math.ceil(least / max(e.attempts, 1))
    if factor > 1:
        why = f"{e.attempts} updates are too few to judge; this makes {least} or more"
        updates = {} if c.trainer.updates is None else {"trainer.updates": max(least, c.trainer.updates)}
        yield setting("trainer.epochs", why, {"trainer.epochs": c.trainer.epochs * factor, **updates})


def graph(e: Evidence, c: Config) -> Iterator[Proposal]:
    """What ends it on the way to parameters that never have a gradient, or none but zero."""
    zero = e.found.get("not_learning", {}).get("zero", [])
    names = several(e.found.get("broken_graph", {}).get("parameters", zero))
    why = "their gradient is exactly zero in every record" if zero else "no gradient ever reaches them"
    ends = f"weights of zero, {CUTS}" if zero else CUTS
    if names:
        yield code("graph", f"look for {ends} on the way from {names} to the loss", why)


def cut(e: Evidence, c: Config) -> Iterator[Proposal]:
    """Where the gradient was zero from the first update on, and units are alive."""
    zero = e.found.get("zero_gradient", {}).get("zero", [])
    if zero or e.weights == 0:
        yield of_zero(several(zero) if zero else "all weights")
    if e.weights != 0:
        why = "the gradient is exactly zero from the first update on"
        why += ", and in no layer are all units dead" * (not zero)
        yield code("graph", f"look for {CUTS} between the weights and the loss", why)


def decay(e: Evidence, c: Config) -> Iterator[Proposal]:
    """Weight decay that by itself moves the weights further than an update should, or that took them away."""
    part, found = c.optimizer.lr * c.optimizer.weight_decay, e.found.get("not_learning", e.found.get("diverged", {}))
    why = ""
    if part > LARGE_UPDATE:
        why = f"at the full rate weight decay alone takes {part:.2g} of the weights in each update"
        why += f"; {LARGE_UPDATE:g} is a large update"
    elif "weights_last" in found:
        why = (
            f"weight decay took the weights from a norm of {found['weights_first']:.2g} to {found['weights_last']:.2g}"
        )
    if why:
        yield setting("optimizer.weight_decay", why, {"optimizer.weight_decay": type(c.optimizer).weight_decay})


def no_noise(e: Evidence, c: Config) -> Iterator[Proposal]:
    """Where more of it is added to gradients than they are."""
    if times := e.found.get(e.verdict, {}).get("noise"):
        yield setting(
            "noise=none", f"it had {times:.2g} times the norm of usual, or first, gradients", {"noise": "none"}
        )


def pitfall(e: Evidence, c: Config) -> Iterator[Proposal]:
    if c.pitfall is not None:
        yield setting("pitfall", "the right update in place of the wrong one", {"pitfall": None})


def defaults(e: Evidence, c: Config) -> Iterator[Proposal]:
    """Numbers of the update that are far from their defaults, each set back."""
    kept = ("lr", "warmup")  # changes of their own are derived for these
    for group in ("optimizer", "precision", "clip", "schedule", "noise", "loss", "model"):
        option: Any = getattr(c, group)
        for f in fields(option):
            value = getattr(option, f.name)
            if f.name in kept or f.default is MISSING or value == f.default or (group == "model" and f.name != "gain"):
                continue
            if isinstance(value, (int, float)) and isinstance(f.default, (int, float)):
                name, why = f"{group}.{f.name}", f"its default; it was {value:g}"
                yield Proposal(name, Remedy(why, {name: f.default}), why)
