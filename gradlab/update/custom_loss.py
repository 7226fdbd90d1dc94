"""A loss of the user's own: a mean, a sum and its count, a loss of each sample or element, or several such terms.

B samples, K terms
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, ClassVar

import torch

from gradlab.base.importing import calling, load_callable
from gradlab.base.option import Invalid, one_of, option, require
from gradlab.data.spec import Spec
from gradlab.data.tree import first, leaves, mapped, samples
from gradlab.update.loss import Loss, at_least_fp32, class_axis, full

EXACT = 1e-4
"""Relative difference between the loss of two samples and that of each, up to which the weighting is exact."""


HOW = {
    "mean": "returns one number, taken as a mean: micro-batches are weighted by their numbers of samples",
    "elements": "returns the losses of elements: each counts once, padding too",
}


@dataclass(frozen=True)
class Term:
    """One number that a loss function returned for a micro-batch."""

    form: str
    """mean, samples, elements, pair, or counted: what it was returned as; counted by `loss.counts`."""
    sum: torch.Tensor  # ()
    count: torch.Tensor  # ()

    @property
    def mean(self) -> torch.Tensor:
        return self.sum / or_one(self.count)


@option("loss", "custom")
@dataclass
class CustomLoss(Loss):
    """A function of (outputs, targets), which returns one of these, or a mapping of names to them, whose sum it is:

    the losses of the samples, (B,); their mean, (); a pair of a sum and the number of losses in it; or the losses of
    elements, of any other shape, each of which counts once. Each term of a mapping is a metric, with a mean of its own.

    Targets have the shape that they have in the data; where a batch is no pair, the function gets all of it in their
    place. A mean over tokens is a mean of means if the samples have unequal numbers of them: return a sum and a count.
    """

    target: str = ""
    """The function, as "package.module:function"; the working directory is searched too."""
    kwargs: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of each call."""
    weights: dict[str, float] = field(default_factory=dict)
    """Factors of the terms of a mapping, by name; others are added as they are."""
    outputs: str = "logits"
    """What the function gets of a model=custom: its logits, or all that it returns."""
    counts: str = ""
    """A function of the targets, as "package.module:function": the number of losses of a micro-batch, as of tokens that
    are not padding, by which it is weighted, or a mapping of such numbers by term; empty: its samples. The loss is then
    a mean over these, or a tensor of any shape, which is summed."""

    takes: ClassVar[str] = "batch"
    constant_sought: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        require(":" in self.target, "target", self.target, 'of the form "package.module:function"')
        one_of("outputs", self.outputs, ("logits", "all"))
        if self.counts:
            require(":" in self.counts, "counts", self.counts, 'of the form "package.module:function"')
        for name, weight in self.weights.items():
            require(isfinite(weight), f"weights.{name}", weight, "finite")
        self.whole_output = self.outputs == "all"
        self.forms: dict[str, str] = {}
        """The form in which each term was returned before the run; "" is the name of the only one."""
        self.number_of: dict[str, float] = {}
        """Losses of each term in a sample, as counted before the run."""
        self.exact, self.summed = True, False

    def resolve(self, spec: Spec) -> CustomLoss:
        self.function = load_callable("target", self.target)
        self.number = load_callable("counts", self.counts) if self.counts else None
        self.single, self.classes = spec.single, spec.outputs
        return self

    def correct(self, outputs: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | None:
        """None also where outputs are no score of each class, as thresholds between ordered ones, or embeddings."""
        found = super().correct(outputs, targets)
        return found if found and outputs.shape[class_axis(outputs, targets)] == self.classes else None

    def tried(self, model: torch.nn.Module, inputs: Any, outputs: Any, targets: Any) -> None:
        """Record what the function returns, and measure whether the loss of two samples is the mean of theirs."""
        self.forms, self.number_of = {}, {}  # those of another model, where it is tried again
        found, number = self.returned(outputs, targets), samples(targets)
        self.alone(found, outputs, targets, number)
        self.forms = {name: term.form for name, term in found.items()}
        self.number_of = {name: float(term.count) / number for name, term in found.items()}
        for given, names in (("weights", [*self.weights]), ("counts", [*self.known(targets, self.terms)])):
            for name in names:
                if name not in self.terms:
                    terms = ", ".join(self.terms) or "no terms with names"
                    raise Invalid(f"loss.{given}", name, f"is no term of {self.target}, which returns {terms}")

    def alone(self, found: dict[str, Term], outputs: Any, targets: Any, number: int) -> None:
        """Compare the loss of a batch with those of its samples, one at a time, where the function takes these.

        Two samples tell a sum from a mean.
        """
        if any(t.dim() and len(t) != number for t in leaves(outputs)):
            return  # samples are not the first dimension, as in a model whose first is time
        try:
            parts = [self.returned(*(rows(tree, i, number) for tree in (outputs, targets))) for i in range(number)]
            mine = {name: [part[name] for part in parts] for name in found}
        except Exception:
            return
        for name, whole in found.items():
            count = float(sum(term.count for term in mine[name]))
            if whole.form == "elements" and count != float(whole.count):
                why = f"returned {int(whole.count)} losses for {number} samples, but {count:g} for one at a time"
                raise Invalid("loss", "custom", f"{self.target} {why}: are outputs and targets broadcast?")
            mean, total = float(whole.mean), float(sum(term.sum for term in mine[name]))
            exact, least = not abs(total / max(count, 1e-9) - mean) > EXACT * max(abs(mean), 1.0), EXACT * abs(mean)
            if whole.form == "mean" and not exact and self.is_of_all_pairs(name, outputs, targets, total / count):
                shapes = f"outputs of shape {tuple(outputs.shape)} and targets of {tuple(self.as_given(targets).shape)}"
                why = f"is given {shapes}, and broadcasts them: each sample with all targets; make their shapes alike"
                raise Invalid("loss", "custom", f"{self.target} {why}")
            self.exact &= exact
            self.summed |= whole.form == "mean" and not exact and abs(total - mean) <= least

    def is_of_all_pairs(self, name: str, outputs: Any, targets: Any, alone: float) -> bool:
        """Whether outputs of the targets' shape have the loss of samples, one at a time: others are broadcast."""
        given = self.as_given(targets)
        if not (isinstance(outputs, torch.Tensor) and isinstance(given, torch.Tensor)):
            return False
        if outputs.dim() == given.dim() or outputs.numel() != given.numel():
            return False
        mean = float(self.returned(outputs.reshape(given.shape), targets)[name].mean)
        return abs(mean - alone) <= EXACT * max(abs(mean), 1.0)

    @property
    def terms(self) -> tuple[str, ...]:
        return tuple(name for name in self.forms if name)

    @property
    def needs_term_sums(self) -> bool:
        return bool(self.terms) or not {"pair", "elements"}.isdisjoint(self.forms.values())

    @property
    def weighting(self) -> str:
        """How micro-batches are weighted, where the function does not say; and whether that is exact."""
        said = []
        for form, how in HOW.items():
            if names := [name for name, found in self.forms.items() if found == form]:
                said.append(f"{' and '.join(filter(None, names))} of loss={self.target} ".removeprefix(" of ") + how)
        if self.ahead:
            said.append(f"loss={self.target}: each micro-batch runs forward twice, or loss.counts returns all numbers")
        if not self.exact:
            said.append(
                f"loss={self.target} of two samples is not the mean of the losses of each: accumulation would change it"
            )
        return "; ".join(said)

    @property
    def ahead(self) -> bool:
        """Whether a forward pass must count the losses of a window beforehand: terms have different numbers of them."""
        return bool(self.terms) and "pair" in self.forms.values()

    @property
    def late(self) -> bool:
        """Whether there is one number of losses, known only after the forward pass."""
        return self.needs_term_sums and not self.terms

    def returned(self, outputs: Any, targets: Any) -> dict[str, Term]:
        """What the function returns, by name."""
        with calling("loss.target", self.target):
            given = self.function(outputs, self.as_given(targets), **self.kwargs)
        terms = {str(k): v for k, v in given.items()} if isinstance(given, Mapping) else {"": given}
        number, known = samples(targets), self.known(targets, tuple(terms))
        found = {name: self.term(name, value, number, known.get(name)) for name, value in terms.items()}
        if self.forms and self.forms != (now := {name: term.form for name, term in found.items()}):
            raise Invalid("loss", "custom", f"{self.target} returned {told(self.forms)} at first, and now {told(now)}")
        return {name: found[name] for name in self.forms} or found

    def as_given(self, targets: Any) -> Any:
        """Targets with the shape that they have in the data; a whole batch is as it is."""
        return targets[:, 0] if self.single and isinstance(targets, torch.Tensor) else targets

    def term(self, name: str, value: Any, number: int, known: torch.Tensor | None) -> Term:
        whole, count = value, None
        if isinstance(value, tuple | list) and len(value) == 2:
            value, count = value
        if not isinstance(value, torch.Tensor) or (count is not None and value.dim()):
            raise self.refused(name, whole, number)
        losses = at_least_fp32(value)
        if known is not None:
            return Term("counted", losses.sum() if losses.dim() or count is not None else losses * known, known)
        if count is not None:
            counted = count if isinstance(count, torch.Tensor) else torch.full((), float(count), device=losses.device)
            return Term("pair", losses, counted.detach().reshape(()))
        if losses.shape in ((), (number,)) and self.forms.get(name) != "elements":
            count = full(number, losses)
            return Term("samples", losses.sum(), count) if losses.dim() else Term("mean", losses * count, count)
        wanted = self.number_of.get(name, 0.0) * number if self.terms else 0.0
        if wanted and losses.numel() != wanted:
            why = f"has {losses.numel()} losses of {number} samples, but had {wanted / number:g} of each before"
            raise Invalid("loss", "custom", f"{name} of {self.target} {why}: return its sum and their number as a pair")
        return Term("elements", losses.sum(), full(losses.numel(), losses))

    def refused(self, name: str, value: Any, number: int) -> Invalid:
        gives = tuple(value.shape) if isinstance(value, torch.Tensor) else type(value).__name__
        of = f"{self.target}{f', {name},' if name else ''}"
        why = "must return a tensor, a pair of a sum and a count, or a mapping of these, but returned"
        return Invalid("loss", "custom", f"{of} {why} {gives}")

    def sum(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Where `term_sums` are asked in an update: the mean of the micro-batch times its samples."""
        found = self.returned(outputs, targets)
        if not self.needs_term_sums and "" in found and found[""].form not in ("pair", "elements"):
            return found[""].sum
        return self.weighted([term.mean for term in found.values()], tuple(found)).sum() * samples(targets)

    def count(self, targets: torch.Tensor) -> torch.Tensor:
        known = {} if self.terms else self.known(targets, ("",))
        return known[""] if known else full(samples(targets), first(targets))

    def known(self, targets: Any, names: tuple[str, ...]) -> dict[str, torch.Tensor]:
        """() int64, the number of losses, by term as far as `counts` says."""
        if self.number is None:
            return {}
        with calling("loss.counts", self.counts):
            number = self.number(self.as_given(targets))
        numbers = number if isinstance(number, Mapping) else dict.fromkeys(names, number)
        return {str(k): n if isinstance(n, torch.Tensor) else full(int(n), first(targets)) for k, n in numbers.items()}

    def term_sums(self, outputs: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        found = self.returned(outputs, targets).values()
        return torch.stack([term.sum for term in found]), torch.stack([term.count.double() for term in found])

    def expected(self, targets: Any) -> torch.Tensor:
        """(K,) float64: the numbers of losses, estimated where they are not known before the forward pass."""
        known, number = self.known(targets, self.terms or ("",)), samples(targets)
        like = first(targets)
        return torch.stack(
            [
                known[name].double() if form == "counted" else full(0, like).double() + number * self.number_of[name]
                for name, form in self.forms.items()
            ]
        )

    def weighted(self, values: Iterable[torch.Tensor], names: tuple[str, ...] = ()) -> torch.Tensor:
        """(K,) the numbers of the terms, times their weights."""
        pairs = zip(names or self.forms, values, strict=True)
        return torch.stack([value * self.weights.get(name, 1.0) for name, value in pairs])

    def total(self, means: torch.Tensor) -> torch.Tensor:
        return self.weighted(means).sum() if self.forms else super().total(means)


def or_one(count: torch.Tensor) -> torch.Tensor:
    """What a sum is divided by: a sum of nothing is 0."""
    return torch.where(count > 0, count, 1)


def rows(tree: Any, i: int, number: int) -> Any:
    """One sample of a batch."""
    return mapped(lambda t: t[i : i + 1] if t.dim() and len(t) == number else t, tree)


def told(forms: Mapping[str, str]) -> str:
    return ", ".join(f"{name} ({form})" if name else form for name, form in forms.items())
