"""Loops whose flags come from command lines, configurations and frameworks."""

from __future__ import annotations

from pathlib import Path

import pytest
from loop_shapes import Shapes, assert_broken, assert_silent, found

SHAPES: Shapes = {
    # name: text, what is replaced, by what, the rule, a part of its line
    "absl": ("""
from absl import app, flags
FLAGS = flags.FLAGS
flags.DEFINE_integer("accumulate", 4, "")
def main(_):
    for i, (x, y) in enumerate(loader):
        (criterion(model(x), y) / FLAGS.accumulate).backward()
        if (i + 1) % FLAGS.accumulate == 0 or i + 1 == len(loader):
            optimizer.step()
            optimizer.zero_grad()
app.run(main)
""", "(criterion(model(x), y) / FLAGS.accumulate)", "criterion(model(x), y)", "GL301", "backward()"),
    "deepspeed": ("""
import deepspeed
engine, _, _, schedule = deepspeed.initialize(model=model, optimizer=optimizer, config="ds.json")
total = 0.0
for x, y in loader:
    loss = engine(x, y)
    engine.backward(loss)
    engine.step()
    total += loss.item()
""", "loss.item()", "loss", "GL605", "total +="),
    "fastai": ("""
from fastai.vision.all import Learner
learn = Learner(dls, model, loss_func=criterion)
learn.fit_one_cycle(3)
for x, y in loader:
    optimizer.zero_grad()
    loss = criterion(learn.model(x), y)
    loss.backward()
    clip_grad_norm_(learn.model.parameters(), 1.0)
    optimizer.step()
""", "clip_grad_norm_(learn.model.parameters(), 1.0)\n    optimizer.step()",
     "optimizer.step()\n    clip_grad_norm_(learn.model.parameters(), 1.0)", "GL101", "clip_grad_norm_(learn"),
}  # fmt: skip


@pytest.mark.parametrize("name", SHAPES)
def test_nothing_is_found_in_the_correct_loop(name, tmp_path):
    assert_silent(SHAPES[name], tmp_path)


@pytest.mark.parametrize("name", SHAPES)
def test_the_mistake_is_found_at_its_line(name, tmp_path):
    assert_broken(SHAPES[name], tmp_path)


def test_arguments_that_contradict_each_other(tmp_path):
    both = "from transformers import TrainingArguments\na = TrainingArguments('o', fp16=True,\n    bf16=True)\n"
    assert found(both, tmp_path) == [("GL812", "    bf16=True)")]
    text = (Path(__file__).parents[1] / "right" / "lightning_manual.py").read_text()
    for line, code in (("gradient_clip_val=1.0", "GL813"), ("accumulate_grad_batches=4", "GL813"),
                       ("accumulate_grad_batches=1", ""), ("gradient_clip_val=None", "")):  # fmt: skip
        last = f"lightning.Trainer({line})"
        assert found(f"{text}\nimport lightning\n{last}\n", tmp_path) == ([(code, last)] if code else [])


def test_arguments_of_a_trainer_that_are_parsed_or_in_a_dictionary(tmp_path):
    module = (Path(__file__).parents[1] / "right" / "lightning_manual.py").read_text()
    head = f"{module}\nimport argparse\nfrom lightning import Trainer\nparser = argparse.ArgumentParser()\n"
    parsed = 'parser.add_argument("--gradient-clip-val", type=float, default={})\nargs = parser.parse_args()\n{}\n'
    for made, at in (
        ("Trainer.from_argparse_args(args, max_epochs=3)", "default=1.0"),
        ("Trainer(**vars(args))", "default=1.0"),
        ("Trainer(gradient_clip_val=args.gradient_clip_val)", "args.gradient_clip_val"),
    ):
        [(code, line)] = found(head + parsed.format("1.0", made), tmp_path)
        assert code == "GL813" and at in line
        assert found(head + parsed.format("0.0", made), tmp_path) == []
    for options in ('{"accumulate_grad_batches": 4}', "dict(accumulate_grad_batches=4)"):
        text = f"{head}options = {options}\nTrainer(**options)\n"
        assert found(text, tmp_path) == [("GL813", f"options = {options}")]
        assert found(f"{text}options.clear()\n", tmp_path) == []
    text = head + parsed.format("1.0", "Trainer.from_argparse_args(args, gradient_clip_val=0)")
    assert found(text, tmp_path) == []


FITTED = """
import lightning
from modules import {name}
def main(batches, trainer):
    module = {made}
    trainer = lightning.Trainer({given})
    trainer.fit(module, batches)
"""


@pytest.mark.parametrize(
    ("name", "made", "given", "wrong"),
    [
        ("Manual", "Manual(3)", "gradient_clip_val=1.0", True),
        ("Manual", "Manual.load_from_checkpoint('last.ckpt')", "accumulate_grad_batches=4", True),
        ("Manual", "Manual(3)", "gradient_clip_val=None", False),
        ("Automatic", "Automatic(3)", "gradient_clip_val=1.0", False),
        ("Chosen", "Chosen(3)", "gradient_clip_val=1.0", False),
        ("Manual, wrap", "wrap(Manual(3))", "gradient_clip_val=1.0", False),
    ],
)
def test_a_module_of_another_file_that_optimizes_manually(name, made, given, wrong, tmp_path):
    body = (
        "    def __init__(self, n):\n        super().__init__(){}\n    def training_step(self, batch):\n        pass\n"
    )
    sets = {"Manual": "False", "Automatic": "True", "Chosen": "n > 2"}
    made_of = [(one, f"\n        self.automatic_optimization = {flag}") for one, flag in sets.items()]
    classes = "".join(f"class {one}(lightning.LightningModule):\n{body.format(text)}" for one, text in made_of)
    (tmp_path / "modules.py").write_text(f"import lightning\n{classes}def wrap(module):\n    return module.inner\n")
    text = FITTED.format(name=name, made=made, given=given)
    line = f"    trainer = lightning.Trainer({given})"
    assert found(text, tmp_path) == ([("GL813", line)] if wrong else [])
