"""Losses of one's own in every form that they have: accumulated, each mean is that of one big batch."""

from pathlib import Path

import pytest
import torch
from helpers import differences, load, metrics, of_the_run, trainer, updates, weights
from streams import Tagger
from test_resume import Copying, resumed
from test_streamed_data import TEXT
from torch import Tensor

from gradlab.base.option import Invalid
from gradlab.train.evaluation import evaluate

OWN = (*TEXT, "loss=custom", "trainer.epochs=2")
FORMS = {
    "mean": ("loss.target=streams:mean_of_samples",),
    "pair": ("loss.target=streams:pair",),
    "elements": ("loss.target=streams:tokens_alone",),
    "sum": ("loss.target=streams:pair", "loss.reduction=sum", "optimizer.lr=0.001"),
    "terms": ("loss.target=streams:terms", "+loss.weights={size: 0.1, words: -0.5}"),
    "counted": (
        *("loss.target=streams:early_terms", "loss.counts=streams:counted_terms"),
        "+loss.weights={size: 0.1, words: -0.5}",
    ),
    "counted pairs": (
        *("loss.target=streams:terms", "loss.counts=streams:counted_terms"),
        "+loss.weights={size: 0.1, words: -0.5}",
    ),
}
TERMS = ("tokens", "size", "mean", "words")


class Late(Tagger):
    """Registers its only buffer in its second update, when its weights have changed, and multiplies with it."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = [float(self.out.bias.detach().sum())]

    def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        found = super().forward(input_ids, attention_mask)
        if not self.training or float(self.out.bias.detach().sum()) in self.begun:
            return found
        if not hasattr(self, "passes"):
            self.register_buffer("passes", torch.zeros(()))
        self.passes += 1
        return {"logits": found["logits"] * (1 + 0.1 * self.passes)}


@pytest.mark.parametrize("form", FORMS)
def test_unequal_micro_batches_are_one_big_batch(tmp_path: Path, form: str) -> None:
    runs = [
        trainer(tmp_path / str(size), *OWN, *FORMS[form], f"data.batch_size={size}", f"accumulation.steps={steps}")
        for size, steps in ((22, 1), (4, 6), (3, 8))
    ]
    for run in runs:
        run.run()
    whole = updates(tmp_path / "22")
    named = ["train/loss", *(f"train/loss/{name}" for name in TERMS if "terms" in FORMS[form][0])]
    for size, run in zip((4, 3), runs[1:], strict=True):
        for mine, theirs in zip(updates(tmp_path / str(size)), whole, strict=True):
            assert [mine[name] for name in named] == pytest.approx([theirs[name] for name in named], rel=1e-5)
        assert torch.allclose(weights(run.module), weights(runs[0].module), atol=1e-6)
        for mine, theirs in zip(run.outcome.eval, runs[0].outcome.eval, strict=True):
            assert mine == pytest.approx(theirs, rel=1e-5)


def test_the_forms_of_a_loss_are_one_another(tmp_path: Path) -> None:
    """Means over tokens as a pair, as elements, counted before or by a forward pass: the same weights."""
    found = {}
    for form, fields in {"built in": (*TEXT, "trainer.epochs=2"), **{k: (*OWN, *v) for k, v in FORMS.items()}}.items():
        run = trainer(tmp_path / form, *fields, "data.batch_size=4", "accumulation.steps=3")
        run.run()
        found[form] = weights(run.module)
    for form in ("pair", "elements"):
        assert torch.allclose(found[form], found["built in"], atol=1e-6)
    for form in ("counted", "counted pairs"):
        assert torch.allclose(found["terms"], found[form], atol=1e-6)
    assert not torch.allclose(found["pair"], found["terms"], atol=1e-3)


def test_the_loss_is_the_weighted_sum_of_its_terms(tmp_path: Path) -> None:
    run = trainer(tmp_path, *OWN, *FORMS["terms"], "data.batch_size=22")
    (batch,), _ = run.batches(0, 0, 1)
    tokens, words, mask = (batch.targets[name] for name in ("labels", "input_ids", "attention_mask"))
    outputs = run.module(batch.inputs).detach()
    mean = torch.nn.functional.cross_entropy(outputs.transpose(1, 2), tokens, ignore_index=-100)
    size = (outputs.square().mean(2) * mask).sum(1) / mask.sum(1)
    wanted = [mean, size.mean(), size.sqrt().mean(), outputs[:, :, 0][words > 5].mean()]
    run.run()
    first = updates(tmp_path)[0]
    assert [first[f"train/loss/{name}"] for name in TERMS] == pytest.approx([float(x) for x in wanted], rel=1e-5)
    assert first["train/loss"] == pytest.approx(float(wanted[0] + 0.1 * wanted[1] + wanted[2] - 0.5 * wanted[3]))
    assert {f"eval/loss/{name}" for name in TERMS} < run.outcome.eval[0].keys()


def test_counting_ahead_draws_nothing_and_leaves_buffers_alone(tmp_path: Path) -> None:
    """A forward pass more changes neither dropout nor running statistics."""
    found = []
    for form in ("terms", "counted"):
        fields = (*OWN, *FORMS[form], "model.target=streams:Noisy", "data.batch_size=4", "accumulation.steps=3")
        run = trainer(tmp_path / form, *fields)
        run.run()
        found.append((weights(run.module), *run.module.buffers()))
    for one, other in zip(*found, strict=True):
        assert torch.allclose(one.float(), other.float(), atol=1e-6)


def test_a_buffer_that_is_registered_late_begins_after_counting(tmp_path: Path) -> None:
    found = []
    for form in ("terms", "counted"):
        fields = (*OWN, *FORMS[form], "model.target=test_terms:Late", "data.batch_size=4", "accumulation.steps=3")
        run = trainer(tmp_path / form, *fields)
        run.run()
        found.append((weights(run.module), run.module.passes))
    assert torch.equal(found[0][1], found[1][1]) and torch.allclose(found[0][0], found[1][0], atol=1e-6)


@pytest.mark.parametrize("form", ["pair", "terms"])
def test_killed_and_resumed_it_ends_the_same(tmp_path: Path, form: str) -> None:
    fields = (*OWN, *FORMS[form], "data.batch_size=4", "accumulation.steps=2", "trainer.checkpoint_every=1")
    trainer(tmp_path / "whole", *fields, cls=Copying).run()
    for folder in sorted(tmp_path.glob("killed_*"))[1::2]:
        resumed(folder, *fields).run()
        assert differences(of_the_run(load(folder)), of_the_run(load(tmp_path / "whole"))) == []
        assert differences(metrics(folder), metrics(tmp_path / "whole")) == []


@pytest.mark.parametrize("form", ["pair", "terms"])
def test_in_fp16_the_gradient_is_the_same_and_overflows_are_skipped(tmp_path: Path, form: str) -> None:
    runs = [
        trainer(tmp_path / precision, *OWN, *FORMS[form], "data.batch_size=6", "accumulation.steps=4", *more)
        for precision, more in {"fp32": (), "fp16": ("precision=fp16", f"precision.init_scale={2.0**10}")}.items()
    ]
    for run in runs:
        run.run()
    assert torch.allclose(weights(runs[0].module), weights(runs[1].module), atol=2e-3)
    large = trainer(
        tmp_path / "large", *OWN, *FORMS[form], "data.batch_size=6", "precision=fp16", f"precision.init_scale={2.0**60}"
    )
    large.run()
    assert any(line["update/skipped"] for line in updates(tmp_path / "large"))
    assert weights(large.module).isfinite().all()


@pytest.mark.parametrize(
    ("target", "said"),
    [
        (
            "mean_of_samples",
            "loss=streams:mean_of_samples returns one number, taken as a mean: micro-batches are weighted by their",
        ),
        ("tokens_alone", "loss=streams:tokens_alone returns the losses of elements: each counts once, padding too"),
        (
            "terms",
            "mean of loss=streams:terms returns one number, .*; loss=streams:terms: each micro-batch runs forward",
        ),
        (
            "unlike",
            "; loss=streams:unlike of two samples is not the mean of the losses of each: accumulation would change it",
        ),
        ("pair", ""),
        ("own", ""),
    ],
)
def test_what_a_function_does_not_say_is_said(tmp_path: Path, target: str, said: str) -> None:
    import re

    run, lines = trainer(tmp_path, *OWN, "data.batch_size=4", f"loss.target=streams:{target}", "trainer.updates=1"), []
    run.say = lines.append
    run.run()
    about = [line for line in lines if "streams:" + target in line]
    assert len(about) == bool(said) and (not said or re.search(said, about[0]))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            ("loss.target=streams:pair", "+loss.weights={kl: 0.1}"),
            r"^loss.weights=kl: is no term of streams:pair, which returns no terms with names$",
        ),
        (
            ("loss.target=streams:terms", "+loss.weights={kl: 0.1}"),
            r"^loss.weights=kl: is no term of streams:terms, which returns tokens, size, mean, words$",
        ),
        (
            ("loss.target=streams:early_terms", "loss.counts=streams:counted_wrongly"),
            r"^loss.counts=token: is no term of streams:early_terms, which returns tokens, size, mean, words$",
        ),
        (
            ("loss.target=streams:mean_of_samples", "loss.counts=streams:counted_wrongly"),
            r"^loss.counts=token: is no term of streams:mean_of_samples, which returns no terms with names$",
        ),
        (
            ("loss.target=streams:pair", "loss.counts=streams:NUMBER"),
            r"^loss.counts=streams:NUMBER: must name a function, but is int$",
        ),
        (
            ("loss.target=streams:pair", "loss.counts=streams:mistaken"),
            r"^loss.counts=streams:mistaken: raises KeyError: 'msak' \(streams.py, line \d+\)$",
        ),
        (
            ("loss.target=streams:mistaken",),
            r"^loss.target=streams:mistaken: raises KeyError: 'msak' \(streams.py, line \d+\)$",
        ),
        (
            ("loss.target=streams:Net",),
            r"^loss.target=streams:Net: raises TypeError: [^()]*__init__\(\) takes .* were given$",
        ),
        (
            ("loss.target=streams:pair", "data.lengths=streams:mistaken"),
            r"^data.lengths=streams:mistaken: raises TypeError: .* \(streams.py, line \d+\)$",
        ),
        (("loss.target=streams:broadcast",), r"returned 4 losses for 2 samples, but 2 for one at a time: are outputs"),
        (("loss.target=streams:strange",), r"^loss=custom: streams:strange, kl, must return a tensor, a pair .* str$"),
        (("loss.target=streams:elements_of_terms",), r"ce of streams:elements_of_terms has .* their number as a pair$"),
        (("loss.target=streams:terms", "+pitfall=mean_of_means"), r"^pitfall=.*not with a loss of several terms"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(tmp_path: Path, fields: tuple[str, ...], message: str) -> None:
    with pytest.raises(Invalid, match=message):
        trainer(tmp_path, *OWN, *fields, "data.batch_size=4").run()


def test_elements_of_outputs_whose_first_dimension_is_time_are_no_fault(tmp_path: Path) -> None:
    fields = ("model.target=streams:TimeMajor", "loss.target=streams:of_time_major", "optimizer.lr=0.001")
    run = trainer(tmp_path, *OWN, *fields, "data.batch_size=4")
    run.run()
    losses = [line["train/loss"] for line in updates(tmp_path)]
    assert losses[-1] < losses[0]


def test_a_term_of_which_a_split_has_nothing_is_zero(tmp_path: Path) -> None:
    run = trainer(tmp_path, *OWN, *FORMS["terms"], "data.batch_size=4")
    for stream in (run.data.train, run.data.test):
        for sample in stream.reader.dataset:  # type: ignore[union-attr]
            sample["input_ids"] = [min(i, 5) for i in sample["input_ids"]]
    run.run()
    assert updates(tmp_path)[0]["train/loss/words"] == 0 and weights(run.module).isfinite().all()
    found = evaluate(run.module, run.data.test, run.loss, run.update.precision, 4, run.world)  # type: ignore[arg-type]
    assert found["eval/loss/words"] == 0 and found["eval/loss"] > 0
